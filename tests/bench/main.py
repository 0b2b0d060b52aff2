"""``make bench``: measure what the project promises, print it, and write docs/benchmarks.md.

Times are medians of whole processes, start included. The machines that run this are shared and noisy: compare ratios
within one run, and read the CPU column before the wall column.
"""

import asyncio
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.fleets import commit, record_fleet, write_fleet, write_manifests
from tests.bench.measure import Figure, command

ROOT = Path(__file__).parent.parent.parent
LLMGW = str(Path(sys.executable).with_name("llmgw"))
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    what: str
    figure: Figure
    target: str = ""

    def cells(self) -> str:
        figure = self.figure
        return f"| {self.what} | {figure.wall:.2f} s | {figure.cpu:.2f} s | {figure.peak / MIB:.0f} MiB | {self.target} |"


def environment(folder: Path) -> Mapping[str, str]:
    """Nothing of the person who measures: a home, a state and a secret of the fleet's own."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LLMGW_STATE_DIR": str(folder / "state"),
        "LLMGW_SECRET_FILE": str(folder / "secret"),
        "LC_ALL": "C.UTF-8",
    }


def help_text(base: Path) -> Row:
    figure = command([LLMGW, "--help"], cwd=base, env=environment(base), runs=9)
    return Row(what="`llmgw --help`", figure=figure, target="0.15 s")


def validation(base: Path) -> Row:
    folder = base / "thousand"
    count = write_manifests(folder, 1000)
    figure = command([LLMGW, "validate", str(folder)], cwd=base, env=environment(base))
    return Row(what=f"`llmgw validate`, {count:,} manifests", figure=figure, target="1.5 s")


def plans(base: Path, *, nodes: int, models: int, targets: tuple[str, str, str] = ("", "", "")) -> list[Row]:
    """Three plans of one fleet: everything new, nothing to do, one model changed."""
    folder = base / f"nodes{nodes}" / "fleet"
    write_fleet(folder, nodes=nodes, models=models)
    commit(folder, "A fleet")
    env = environment(folder.parent)
    words = [LLMGW, "plan", "--offline", "--json"]
    size = f"{nodes:,} nodes"
    fresh = command(words, cwd=folder, env=env, runs=3)
    replicas = asyncio.run(record_fleet(folder, env))
    nothing = command([*words, "--detailed-exitcode"], cwd=folder, env=env)
    profile = next((folder / "manifests" / "models").iterdir())
    profile.write_text(profile.read_text() + "  args: [--load-seconds, '1']\n")
    commit(folder, "Change a flag")
    one = command([*words, "--detailed-exitcode"], cwd=folder, env=env, expect=2)
    return [
        Row(what=f"plan: {size}, all {replicas:,} replicas new", figure=fresh, target=targets[0]),
        Row(what=f"plan: {size}, {replicas:,} replicas, nothing to do", figure=nothing, target=targets[1]),
        Row(
            what=f"plan: {size}, {replicas:,} replicas, one model of {models} changed",
            figure=one,
            target=targets[2],
        ),
    ]


def measured(base: Path) -> list[Row]:
    rows = [help_text(base), validation(base)]
    target = "2 s, 350 MiB"
    for nodes, models in ((10, 3), (100, 30), (300, 90)):
        rows += plans(base, nodes=nodes, models=models)
    rows += plans(base, nodes=1000, models=300, targets=(target, target, target))
    rows += plans(base, nodes=3000, models=900)
    return rows


def part(name: str) -> str:
    """In a process of its own: what a child starts with counts in its peak memory, and these parts load much."""
    command = [sys.executable, "-m", f"tests.bench.{name}"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout


def page(rows: list[Row], further: str) -> str:
    head = (
        "# Benchmarks\n\nMade by `make bench`: medians of whole processes, start included, on one machine "
        f"({os.cpu_count()} cores, Python {platform.python_version()}, Linux {platform.release().split('-')[0]}; "
        f"load {os.getloadavg()[2]:.1f} from this and all else). "
        "Shared machines are noisy: read ratios between rows, and CPU before wall time.\n\n"
        "## Commands and plans\n\nA node has 8 GPUs, a model 10 "
        "replicas of 2 GPUs; plans are offline, from the record on the state branch, so no agent's answer is in them.\n\n"
        "| what | wall | CPU | peak memory | target |\n|---|---|---|---|---|\n"
    )
    return head + "\n".join(row.cells() for row in rows) + "\n\n" + further


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        text = page(measured(Path(folder)), part("agent") + "\n" + part("ssh") + "\n" + part("serving"))
    (ROOT / "docs" / "benchmarks.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
