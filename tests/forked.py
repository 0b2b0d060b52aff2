"""llmgw's commands, each in a process of its own that is forked from one that has imported them.

Words, environment, folder and output are the command's own, so it does what it would do by itself; of its time half is spared, the
half that Python takes to start and import. That commands start from nothing is proved by all tests that run the installed program.
"""

import multiprocessing
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from tempfile import TemporaryDirectory

from llmgw.cli.main import COMMANDS, main
from tests.rig import namespaces

NOTHING = Path(os.devnull)


@cache
def _forks() -> ForkServerContext:
    """Of this process; its server ends with it."""
    places = (entry.place for section in COMMANDS.values() for entry in section.values())
    modules = {f"llmgw.cli.{place.partition(':')[0]}" for place in places}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *sorted(modules)])
    return context


def llmgw(
    *words: str, cwd: Path, env: Mapping[str, str], timeout: float, network: str = ""
) -> "CompletedProcess[str]":
    """Its standard input is empty. ``timeout`` in seconds; raises TimeoutExpired. ``network`` is a namespace to be in."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        for file in (out, err):
            file.touch()
        process = _forks().Process(target=_command, args=(words, cwd, dict(env), out, err, network))
        process.start()
        try:
            process.join(timeout)
            if process.exitcode is None:
                raise TimeoutExpired(["llmgw", *words], timeout, out.read_bytes(), err.read_bytes())
        finally:
            process.kill()
            process.join()
        return CompletedProcess(["llmgw", *words], process.exitcode, out.read_text(), err.read_text())


def _command(
    words: Sequence[str], cwd: Path, env: Mapping[str, str], out: Path, err: Path, network: str
) -> None:
    for number, path in ((0, NOTHING), (1, out), (2, err)):
        opened = os.open(path, os.O_WRONLY if number else os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
    if network:
        namespaces.enter(network)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if env.get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    sys.argv = ["llmgw", *words]
    main()
