"""Times whole commands as their users meet them: process start included, by the operating system's own accounting."""

import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmgw.model.struct import Struct


class Figure(Struct):
    """Medians over the runs: wall and CPU seconds, peak resident bytes."""

    wall: float
    cpu: float
    peak: int


def command(
    words: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    runs: int = 5,
    expect: int = 0,
    warm: bool = True,
) -> Figure:
    """The median of ``runs``, after one to warm up where the command can be repeated. One that fails is no measurement."""
    if warm:
        _once(words, cwd=cwd, env=env, expect=expect)
    figures = [_once(words, cwd=cwd, env=env, expect=expect) for _ in range(runs)]
    return Figure(
        wall=statistics.median(figure.wall for figure in figures),
        cpu=statistics.median(figure.cpu for figure in figures),
        peak=int(statistics.median(figure.peak for figure in figures)),
    )


def _once(words: Sequence[str], *, cwd: Path, env: Mapping[str, str], expect: int) -> Figure:
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        pid = os.posix_spawn(
            "/usr/bin/env",
            ["env", "-C", str(cwd), *words],
            dict(env),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, output.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, output.fileno(), 2),
            ],
        )
        _, status, usage = os.wait4(pid, 0)
        wall = time.perf_counter() - began
        if os.waitstatus_to_exitcode(status) != expect:
            output.seek(0)
            raise RuntimeError(f"{' '.join(words)} failed:\n{output.read().decode()[-4000:]}")
    return Figure(wall=wall, cpu=usage.ru_utime + usage.ru_stime, peak=usage.ru_maxrss * 1024)
