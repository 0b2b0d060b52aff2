"""Virtual environments for engines and tools: made in their final place, since they can't be moved, and filled by pip."""

import asyncio
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from llmgw.agent.jobs.commands import run_command
from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.files import tree_size
from llmgw.agent.jobs.pip import pip_failure, without_credentials
from llmgw.model.problems import StalledError

MEASURE_EVERY = 2.0


async def make_environment(
    folder: Path, *, python: str, with_pip: bool, env: Mapping[str, str], progress: Progress
) -> None:
    progress.say("making a virtual environment")
    argv = [python, "-m", "venv", *([] if with_pip else ["--without-pip"]), str(folder)]
    ended = await run_command(argv, env=env, directory=folder.parent, told=progress.say)
    if ended.code != 0:
        why = "; ".join(ended.last_lines[-3:])
        version = await _version(python, env, folder.parent)
        raise StalledError(
            f"making a virtual environment with {shlex.join(argv)}: {why}: on Debian and Ubuntu"
            f" `sudo apt install python{version}-venv` brings what it needs, on Fedora and RHEL"
            f" `sudo dnf install python{version} python3-pip`"
        )


async def _version(python: str, env: Mapping[str, str], directory: Path) -> str:
    """``3.11``; empty when that Python can't even tell."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    ended = await run_command([python, "-I", "-S", "-c", ask], env=env, directory=directory, told=_ignore)
    return ended.last_lines[-1] if ended.code == 0 and ended.last_lines else "3"


def _ignore(_: str) -> None:
    return None


async def pip_install(
    folder: Path, requirements: tuple[str, ...], *, env: Mapping[str, str], progress: Progress, doing: str
) -> None:
    """Into the environment at ``folder``. ``env`` says where packages come from and where pip may work."""
    progress.say(f"installing {' '.join(requirements)}")
    ended = await run_command(
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--", *requirements],
        env=env,
        directory=Path(env["TMPDIR"]),
        told=lambda line: progress.say(without_credentials(line)),
    )
    if ended.code != 0:
        raise pip_failure(f"{doing} by pip", ended)


@contextmanager
def measured(folders: tuple[Path, ...], progress: Progress) -> Iterator[None]:
    """Where a program tells no bytes, what lies on the disk so far is the honest number."""
    measuring = asyncio.ensure_future(_measure(folders, progress))
    try:
        yield
    finally:
        measuring.cancel()


async def _measure(folders: tuple[Path, ...], progress: Progress) -> None:
    while True:
        sizes = await asyncio.to_thread(lambda: sum(tree_size(folder) for folder in folders))
        progress.bytes(max(progress.done, sizes))
        await asyncio.sleep(MEASURE_EVERY)
