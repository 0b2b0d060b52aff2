"""A tool that fetches is made once, in an environment of its own, whole or not at all."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.files import NoSpaceError
from llmgw.agent.jobs.targets import TOOLS, DiskTargets
from llmgw.agent.jobs.tools import MARKER, tool_python
from llmgw.model.problems import StalledError
from tests.agent.agents import fetch_spec
from tests.agent.jobs.test_install import ENV
from tests.agent.jobs.wheels import make_wheel


async def made(folder: Path, *, reserve: int = 0, **changes: Any) -> Path:
    spec = fetch_spec(**{"tool": "tinytool==1.0", "wheel_dir": str(folder / "wheels"), **changes})
    return await tool_python(
        spec, engines=folder / "engines", python=sys.executable, env=ENV, reserve=reserve, progress=Progress()
    )


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "engines").mkdir()
    make_wheel(tmp_path / "wheels", "tinytool", files={"tinytool.py": b"VALUE = 7\n"})
    return tmp_path


def tools(folder: Path) -> list[str]:
    return sorted(
        entry.name for entry in (folder / "engines" / TOOLS).iterdir() if not entry.name.endswith(".lock")
    )


def test_two_jobs_that_need_it_at_once_make_it_once_and_the_next_finds_it(node: Path) -> None:
    async def both() -> list[Path]:
        return list(await asyncio.gather(made(node), made(node)))

    first, second = asyncio.run(both())
    assert first == second
    told = subprocess.run(
        [first, "-I", "-c", "import tinytool; print(tinytool.VALUE)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "7\n"
    settings = first.parent.parent / "pyvenv.cfg"
    before = settings.stat().st_mtime_ns
    assert asyncio.run(made(node)) == first
    assert settings.stat().st_mtime_ns == before
    assert tools(node) == [first.parent.parent.name]
    targets = DiskTargets(engines_folder=node / "engines", weights_folder=node)
    assert [tool.name for tool in targets.tools()] == tools(node)
    assert targets.engines() == ()


def test_one_that_cannot_be_had_is_told_and_never_taken_for_whole(node: Path) -> None:
    with pytest.raises(StalledError, match=r"installing tinytool==2\.0, which fetches weights by pip: ERROR"):
        asyncio.run(made(node, tool="tinytool==2.0"))
    assert not list((node / "engines" / TOOLS).glob(f"*/{MARKER}"))


def test_without_room_or_wheels_nothing_is_begun(node: Path) -> None:
    with pytest.raises(NoSpaceError):
        asyncio.run(made(node, reserve=2**60))
    with pytest.raises(StalledError, match="no such directory on this node"):
        asyncio.run(made(node, wheel_dir=str(node / "nowhere")))
    assert tools(node) == []


@pytest.mark.parametrize("tool", ["tinytool", "tinytool>=1", "../x==1", "x==../1", ""])
def test_a_tool_is_one_version_and_never_a_path(node: Path, tool: str) -> None:
    with pytest.raises(StalledError, match="is no tool with one version"):
        asyncio.run(made(node, tool=tool))
