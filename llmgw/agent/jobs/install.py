"""Installs an engine: an environment of its own filled by pip, or an archive. Built in its final place, because environments
can't be moved once they are made; the marker, written last, says that it is whole.
"""

import asyncio
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from llmgw.agent.jobs.archives import link_programs, unpack
from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.download import download_proved
from llmgw.agent.jobs.environments import make_environment, measured, pip_install
from llmgw.agent.jobs.files import (
    RESERVE,
    disk_refused,
    in_thread,
    remove_tree,
    require_space,
    sync_disk,
    write_marker,
)
from llmgw.agent.jobs.helptext import Asker, Heard, filled_in
from llmgw.agent.jobs.pip import pip_environment, require_wheel_dir
from llmgw.agent.jobs.targets import ENGINE_MARKER, TEMPORARY, engine_complete, engine_folder
from llmgw.model.facts import EngineFact
from llmgw.model.launch import InstallSpec, Program
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct, field

MAX_SHEBANG = 127
"""Bytes of a ``#!`` line that every Linux kernel in use reads."""
MIN_SPACE = 64 * 1024 * 1024


class Installer(Struct):
    """``runtime`` is the directory with llmgw's own programs; ``env`` the base environment of pip, which also says which
    proxy to use. ``settle`` brings what was made onto the disk, so that no marker outlives it in a power failure."""

    engines: Path
    runtime: Path
    env: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    reserve: int = RESERVE
    engine_user: str | None = None
    settle: Callable[[Path], None] = sync_disk

    def complete(self, spec: InstallSpec) -> bool:
        return engine_complete(self.engines, spec)

    async def run(self, spec: InstallSpec, progress: Progress) -> None:
        if self.complete(spec):
            return
        folder = engine_folder(self.engines, spec)
        temporary = self.engines / f"{TEMPORARY}{spec.job}"
        doing = f"installing {spec.engine} {spec.version}"
        require_space(self.engines, MIN_SPACE, reserve=self.reserve, what=doing)
        require_wheel_dir(spec.wheel_dir)
        done = False
        try:
            await asyncio.to_thread(remove_tree, folder)
            if spec.url is None:
                await asyncio.to_thread(remove_tree, temporary)
            temporary.mkdir(mode=0o700, exist_ok=True)
            await self._build(spec, folder, temporary, progress, doing)
            progress.say("writing it to the disk")
            await asyncio.to_thread(self.settle, folder)
            done = True
        except OSError as wrong:
            raise disk_refused(doing, folder, wrong) from wrong
        finally:
            if done or spec.url is None:  # half an archive is gone on with
                await asyncio.to_thread(remove_tree, temporary)
        heard = await self._help(spec, folder, progress)
        write_marker(
            EngineFact(
                name=spec.engine,
                version=spec.version,
                digest=spec.digest,
                path=str(folder),
                flags=heard.flags,
                flags_problem=heard.problem,
            ),
            folder / ENGINE_MARKER,
        )
        progress.say("installed")

    async def _help(self, spec: InstallSpec, folder: Path, progress: Progress) -> Heard:
        """Which flags it knows. An engine that can't tell is installed all the same: what was wrong is told."""
        if spec.help is None:
            return Heard()
        progress.say(f"reading the help of {spec.engine} {spec.version}")
        try:
            argv = filled_in(spec.help.argv, str(folder))
        except StalledError as wrong:
            return Heard(problem=str(wrong))
        return await Asker(user=self.engine_user, env=self.env).help(spec.help, argv)

    # ---- ways ------------------------------------------------------------------------------------

    async def _build(
        self, spec: InstallSpec, folder: Path, temporary: Path, progress: Progress, doing: str
    ) -> None:
        if spec.url is not None:
            await self._from_archive(spec, spec.url, folder, temporary, progress)
            return
        env = pip_environment(
            self.env, index_url=spec.index_url, wheel_dir=spec.wheel_dir, temporary=temporary
        )
        with measured((folder, temporary), progress):
            await make_environment(
                folder,
                python=spec.python or self.python or sys.executable,
                with_pip=bool(spec.requirements),
                env=env,
                progress=progress,
            )
            if spec.requirements:
                await pip_install(folder, spec.requirements, env=env, progress=progress, doing=doing)
        for program in spec.programs:
            install_program(program, runtime=self.runtime, environment=folder)

    async def _from_archive(
        self, spec: InstallSpec, url: str, folder: Path, temporary: Path, progress: Progress
    ) -> None:
        if spec.sha256 is None:
            raise StalledError(
                f"installing {spec.engine} {spec.version}: no sha256 to prove what comes: write engine.sha256"
            )
        archive = temporary / "archive"
        name = PurePosixPath(url.partition("?")[0]).name or url
        progress.say(f"downloading {name}")
        await download_proved(
            url,
            archive,
            sha256=spec.sha256,
            what=name,
            env=self.env,
            progress=progress,
            reserve=self.reserve,
        )
        await asyncio.to_thread(folder.mkdir, mode=0o755)
        progress.total = None
        await in_thread(
            lambda stop: unpack(
                archive, folder, name=name, reserve=self.reserve, stop=stop, progress=progress
            )
        )
        await asyncio.to_thread(link_programs, folder, spec.finds, archive=name)


def install_program(program: Program, *, runtime: Path, environment: Path) -> None:
    """Lays one of llmgw's own programs into the environment, run by that environment's Python."""
    source = runtime / f"{program.runtime}.py"
    if not source.is_file() or "/" in program.runtime or "/" in program.install_as:
        raise StalledError(
            f"installing program {program.install_as}: this agent has no program {program.runtime!r}: upgrade the agent"
        )
    target = environment / "bin" / program.install_as
    python = environment / "bin" / "python"
    line = f"#!{python}\n"
    if " " not in str(python) and len(line.encode()) <= MAX_SHEBANG:
        target.write_text(line + source.read_text(encoding="utf-8"), encoding="utf-8")
    else:
        beside = target.with_name(f".{program.install_as}.py")
        shutil.copyfile(source, beside)
        target.write_text(
            f'#!/bin/sh\nexec {shlex.quote(str(python))} {shlex.quote(str(beside))} "$@"\n', encoding="utf-8"
        )
    target.chmod(target.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
