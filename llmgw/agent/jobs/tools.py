"""Programs that fetch weights, such as huggingface_hub, each in an environment of its own below ``<engines>/tools``: what they
need never meets what an engine needs. Made once, by whichever job is first to need it.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.environments import make_environment, pip_install
from llmgw.agent.jobs.files import read_marker, remove_tree, require_space, sync_disk, write_marker
from llmgw.agent.jobs.pip import pip_environment, require_wheel_dir
from llmgw.agent.jobs.targets import TOOLS
from llmgw.model import ids
from llmgw.model.launch import FetchSpec
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct

MARKER = "llmgw-tool.json"
NEEDED = 256 * 1024 * 1024
"""Bytes that the hub's client takes with what it needs, and pip's temporary files."""
LOOK_EVERY = 0.2


class Tool(Struct):
    """What its marker says."""

    requirement: str


async def tool_python(
    spec: FetchSpec, *, engines: Path, python: str, env: Mapping[str, str], reserve: int, progress: Progress
) -> Path:
    """The Python of the environment that holds ``spec.tool``, made if it is not there."""
    requirement = spec.tool or ""
    name, pinned, version = requirement.partition("==")
    if not pinned or not name.replace("_", "").replace("-", "").isalnum() or "/" in version:
        raise StalledError(f"fetching {spec.description}: {requirement!r:.80} is no tool with one version")
    source = {"tool": requirement, "python": python, "indexUrl": spec.index_url, "wheelDir": spec.wheel_dir}
    folder = engines / TOOLS / f"{name}-{version}-{ids.digest(source)[:8]}"
    folder.parent.mkdir(mode=0o755, exist_ok=True)
    async with _alone(folder):
        found = read_marker(Tool, folder / MARKER)
        if found is None or not (folder / "bin" / "python").exists():
            await _make(spec, folder, python=python, env=env, reserve=reserve, progress=progress)
    return folder / "bin" / "python"


async def _make(
    spec: FetchSpec, folder: Path, *, python: str, env: Mapping[str, str], reserve: int, progress: Progress
) -> None:
    assert spec.tool is not None
    doing = f"installing {spec.tool}, which fetches {spec.description}"
    require_space(folder.parent, NEEDED, reserve=reserve, what=doing)
    require_wheel_dir(spec.wheel_dir)
    temporary = folder.with_name(f".tmp-{folder.name}")
    await asyncio.to_thread(remove_tree, folder)
    await asyncio.to_thread(remove_tree, temporary)
    temporary.mkdir(mode=0o700)
    try:
        made = pip_environment(env, index_url=spec.index_url, wheel_dir=spec.wheel_dir, temporary=temporary)
        await make_environment(folder, python=python, with_pip=True, env=made, progress=progress)
        await pip_install(folder, (spec.tool,), env=made, progress=progress, doing=doing)
        await asyncio.to_thread(sync_disk, folder)
    finally:
        await asyncio.to_thread(remove_tree, temporary)
    write_marker(Tool(requirement=spec.tool), folder / MARKER)


@asynccontextmanager
async def _alone(folder: Path) -> AsyncIterator[None]:
    """Among the workers of this node: two that need the same tool make it once. A lock dies with its worker."""
    lock = os.open(folder.with_name(f".{folder.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _locked(lock):  # noqa: ASYNC110 - another worker's end is no event of ours
            await asyncio.sleep(LOOK_EVERY)
        yield
    finally:
        os.close(lock)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
