"""Measures how long a commit takes to reach its node while `llmgw serve` runs: a real repository, a real agent, both on this
machine. From the moment in which the branch pointed to the commit to the one in which the agent had the order on disk."""

import os
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.stories.stage import Stage, model, node, stage_in, until

COMMITS: Final = 9
NANOSECONDS: Final = 1e9
TARGET: Final = "0.30 s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Seconds of one commit. ``cpu``: of `serve` and the gits that it ran, until the pass had ended."""

    wall: float
    cpu: float


def measured(folder: Path) -> list[Took]:
    """One for each commit."""
    with stage_in(folder) as stage:
        stage.commit("A fleet", here=node(stage), chat=model())
        serving = stage.begin("serve", "--listen", "none")
        told: list[str] = []
        reader = threading.Thread(target=lambda: told.extend(serving.stderr or ()), daemon=True)
        reader.start()
        try:
            process = psutil.Process(serving.pid)
            return [_one(stage, process, told, count) for count in range(2, 2 + COMMITS)]
        finally:
            _end(serving)
            reader.join(timeout=10)


def _one(stage: Stage, process: psutil.Process, told: Sequence[str], replicas: int) -> Took:
    """The replicas so far serve, and nothing is going on."""
    until(lambda: _serving(stage) == replicas - 1, f"{replicas - 1} replicas to serve", within=120)
    until(lambda: told and told[-1].rstrip().endswith(": nothing to do"), "the fleet to settle", within=120)
    before, said, spent = _orders(stage), len(told), sum(process.cpu_times()[:4])
    stage.commit(f"{replicas} replicas", chat=model(replicas=replicas))
    moved = (stage.fleet / ".git/refs/heads/main").stat().st_ctime_ns
    new = until(lambda: set(_orders(stage)) - set(before), "the new order", within=60)
    wall = (_orders(stage)[new.pop()] - moved) / NANOSECONDS
    until(lambda: any("ended=accepted" in line for line in told[said:]), "the pass to end", within=60)
    return Took(wall=wall, cpu=sum(process.cpu_times()[:4]) - spent)


def _orders(stage: Stage) -> dict[str, int]:
    return {file.name: file.stat().st_ctime_ns for file in (stage.work / "shards").glob("*.json")}


def _serving(stage: Stage) -> int:
    return stage.llmgw("status", "--json", golden=False).out.count('"state": "ready"')


def _end(serving: "subprocess.Popen[str]") -> None:
    serving.terminate()
    serving.wait(timeout=60)


def table(took: Sequence[Took]) -> str:
    walls = [one.wall for one in took]
    cpu = statistics.median(one.cpu for one in took)
    return (
        "## From a commit to its node\n\n"
        "`llmgw serve` runs beside a local repository and a local agent; a replica more is committed. From the branch pointing to "
        "the commit to the agent's order on disk, which is before the process starts. Some twenty-five runs of git are on that way, "
        "one after the other, so a busy machine shows here more than elsewhere: the CPU column, which has the outcome's commit in it as well, "
        "is what a quiet one needs at least.\n\n"
        "| what | median | slowest | CPU | load | target |\n|---|---|---|---|---|---|\n"
        f"| {len(took)} commits, one replica more each | {statistics.median(walls):.2f} s | {max(walls):.2f} s | {cpu:.2f} s "
        f"| {os.getloadavg()[0]:.1f} | {TARGET} |\n"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as place:
        print(table(measured(Path(place))))
