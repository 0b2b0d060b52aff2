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
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from llmgw.model.struct import Struct
from tests.bench.fleets import change, commit, record_fleet, write_fleet, write_manifests
from tests.bench.measure import Figure, command

ROOT = Path(__file__).parent.parent.parent
LLMGW = str(Path(sys.executable).with_name("llmgw"))
MIB = 1024 * 1024
PLANS = "## Commands and plans"


class Row(Struct):
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


class Size(Struct):
    """A fleet, how many of its models change at once, and what the plans of it may take: everything new, nothing to do, one
    model changed, many."""

    nodes: int
    models: int
    many: int = 0
    targets: tuple[str, str, str, str] = ("", "", "", "")


SIZES = (
    Size(nodes=10, models=3),
    Size(nodes=100, models=30),
    Size(nodes=300, models=90),
    Size(
        nodes=1000,
        models=300,
        many=100,
        targets=("2 s, 350 MiB", "1 s, 350 MiB", "1.2 s, 350 MiB", "2 s, 350 MiB"),
    ),
    Size(nodes=3000, models=900, many=300),
)


def plans(base: Path, size: Size) -> list[Row]:
    """Plans of one fleet, one after another."""
    folder = base / f"nodes{size.nodes}" / "fleet"
    write_fleet(folder, nodes=size.nodes, models=size.models)
    commit(folder, "A fleet")
    env = environment(folder.parent)
    words = [LLMGW, "plan", "--offline", "--json"]
    detailed = [*words, "--detailed-exitcode"]
    fresh = command(words, cwd=folder, env=env, runs=3)
    replicas = asyncio.run(record_fleet(folder, env))
    what = f"plan: {size.nodes:,} nodes, {replicas:,} replicas"
    rows = [
        Row(what=f"{what}, all new", figure=fresh, target=size.targets[0]),
        Row(
            what=f"{what}, nothing to do",
            figure=command(detailed, cwd=folder, env=env),
            target=size.targets[1],
        ),
    ]
    for count, target in ((1, size.targets[2]), (size.many, size.targets[3])):
        if count:
            change(folder, count)
            figure = command(detailed, cwd=folder, env=env, expect=2)
            changed = "one model" if count == 1 else f"{count} models"
            rows.append(Row(what=f"{what}, {changed} of {size.models} changed", figure=figure, target=target))
    return rows


def measured(base: Path) -> list[Row]:
    rows = [help_text(base), validation(base)]
    for size in SIZES:
        rows += plans(base, size)
    return rows


def part(name: str) -> str:
    """In a process of its own: what a child starts with counts in its peak memory, and these parts load much."""
    command = [sys.executable, "-m", f"tests.bench.{name}"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout


def plans_part() -> str:
    """The part that is measured here."""
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        rows = measured(Path(folder))
    head = (
        f"{PLANS}\n\nA node has 8 GPUs, a model 10 replicas of 2 GPUs under vLLM; plans are offline, from the record on the "
        f"state branch, so no agent's answer is in them. Load while they were measured: {os.getloadavg()[2]:.1f}. What was "
        "learnt: [benchmarks-notes.md](benchmarks-notes.md).\n\n"
        "| what | wall | CPU | peak memory | target |\n|---|---|---|---|---|\n"
    )
    return head + "\n".join(row.cells() for row in rows) + "\n"


PARTS: Mapping[str, Callable[[], str]] = {
    "plans": plans_part,
    **{name: partial(part, name) for name in ("agent", "ssh", "serving")},
}
"""In the order of the page."""


def head() -> str:
    return (
        "# Benchmarks\n\nMade by `make bench`: medians of whole processes, start included, on one machine "
        f"({os.cpu_count()} cores, Python {platform.python_version()}, Linux {platform.release().split('-')[0]}). "
        "Shared machines are noisy: read ratios between rows, and CPU before wall time.\n"
    )


def main() -> None:
    """``python -m tests.bench.main plans`` (or ``agent``, ``ssh``, ``serving``) measures one part, and leaves the others of the
    page as they are."""
    page = ROOT / "docs" / "benchmarks.md"
    _, *kept = (f"{text.rstrip()}\n" for text in page.read_text().split("\n## "))
    asked = sys.argv[1:] or list(PARTS)
    told = [PARTS[name]() if name in asked else f"## {old}" for name, old in zip(PARTS, kept, strict=True)]
    text = "\n".join((head(), *told))
    page.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
