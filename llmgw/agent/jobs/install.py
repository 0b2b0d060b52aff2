"""Installs an engine into a virtual environment of its own. Environments can't be moved once they are made, so it is
built in its final place and the marker, written last, says that it is whole.
"""

import asyncio
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llmgw.agent.jobs.commands import kill_leftovers, run_command
from llmgw.agent.jobs.files import (
    RESERVE,
    read_marker,
    remove_tree,
    require_space,
    tree_size,
    write_marker,
)
from llmgw.agent.jobs.pip import pip_environment, pip_failure, require_wheel_dir, without_credentials
from llmgw.agent.jobs.runner import Progress
from llmgw.agent.jobs.targets import ENGINE_MARKER
from llmgw.model.facts import EngineFact
from llmgw.model.launch import InstallSpec, Program
from llmgw.model.problems import StalledError

MAX_SHEBANG = 127
"""Bytes of a ``#!`` line that every Linux kernel in use reads."""
_PLAIN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")
MIN_SPACE = 64 * 1024 * 1024
MEASURE_EVERY = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Installer:
    """``runtime`` is the directory with llmgw's own programs; ``env`` the base environment of pip."""

    engines: Path
    runtime: Path
    env: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    reserve: int = RESERVE

    def folder(self, spec: InstallSpec) -> Path:
        if not _PLAIN.match(spec.engine) or not _PLAIN.match(spec.version):
            raise StalledError(
                f"installing engine {spec.engine!r:.60} {spec.version!r:.60}: only letters, digits and ._+- in either"
            )
        return self.engines / f"{spec.engine}-{spec.version}-{spec.digest[:8]}"

    def _marker(self, spec: InstallSpec) -> str:
        return f"{spec.job}@{self.engines}"

    def complete(self, spec: InstallSpec) -> bool:
        found = read_marker(EngineFact, self.folder(spec) / ENGINE_MARKER)
        return found is not None and found.digest == spec.digest

    async def run(self, spec: InstallSpec, progress: Progress) -> None:
        folder = self.folder(spec)
        if self.complete(spec):
            return
        temporary = self.engines / f".tmp-{spec.job}"
        require_space(
            self.engines, MIN_SPACE, reserve=self.reserve, what=f"installing {spec.engine} {spec.version}"
        )
        require_wheel_dir(spec.wheel_dir)
        try:
            await asyncio.to_thread(remove_tree, folder)
            await asyncio.to_thread(remove_tree, temporary)
            temporary.mkdir(mode=0o700)
            measuring = asyncio.ensure_future(_measure((folder, temporary), progress))
            try:
                await self._build(spec, folder, temporary, progress)
            finally:
                measuring.cancel()
        except OSError as wrong:
            raise StalledError(
                f"installing {spec.engine} {spec.version} in {folder}: {wrong.strerror}: {wrong.filename}"
            ) from wrong
        finally:
            await asyncio.to_thread(remove_tree, temporary)
        write_marker(
            EngineFact(name=spec.engine, version=spec.version, digest=spec.digest, path=str(folder)),
            folder / ENGINE_MARKER,
        )

    async def clean(self, going_on: frozenset[str]) -> None:
        """Folders without a marker are kept for the jobs that go on: those begin by removing them."""
        for temporary in self.engines.glob(".tmp-*"):
            job = temporary.name.removeprefix(".tmp-")
            kill_leftovers(f"{job}@{self.engines}")
            if job not in going_on:
                await asyncio.to_thread(remove_tree, temporary)
        for folder in self.engines.glob("*-*-*"):
            job = f"install-{folder.name.rpartition('-')[2]}"
            if job not in going_on and read_marker(EngineFact, folder / ENGINE_MARKER) is None:
                await asyncio.to_thread(remove_tree, folder)

    # ---- steps -----------------------------------------------------------------------------------

    async def _build(self, spec: InstallSpec, folder: Path, temporary: Path, progress: Progress) -> None:
        env = pip_environment(
            self.env, index_url=spec.index_url, wheel_dir=spec.wheel_dir, temporary=temporary
        )
        await self._make_environment(spec, folder, env, progress)
        if spec.requirements:
            progress.say(f"installing {' '.join(spec.requirements)}")
            ended = await run_command(
                [str(folder / "bin" / "python"), "-m", "pip", "install", "--", *spec.requirements],
                env=env,
                marker=self._marker(spec),
                directory=temporary,
                told=lambda line: progress.say(without_credentials(line)),
            )
            if ended.code != 0:
                raise pip_failure(f"installing {spec.engine} {spec.version} by pip", ended)
        for program in spec.programs:
            install_program(program, runtime=self.runtime, environment=folder)
        progress.say("installed")

    async def _make_environment(
        self, spec: InstallSpec, folder: Path, env: Mapping[str, str], progress: Progress
    ) -> None:
        python = spec.python or self.python or sys.executable
        progress.say("making a virtual environment")
        argv = [python, "-m", "venv", *([] if spec.requirements else ["--without-pip"]), str(folder)]
        ended = await run_command(
            argv, env=env, marker=self._marker(spec), directory=self.engines, told=progress.say
        )
        if ended.code != 0:
            why = "; ".join(ended.last_lines[-3:])
            version = await self._version(python, env)
            raise StalledError(
                f"making a virtual environment with {shlex.join(argv)}: {why}: on Debian and Ubuntu"
                f" `sudo apt install python{version}-venv` brings what it needs, on Fedora and RHEL"
                f" `sudo dnf install python{version} python3-pip`"
            )

    async def _version(self, python: str, env: Mapping[str, str]) -> str:
        """``3.11``; empty when that Python can't even tell."""
        ask = "import sys; print('%d.%d' % sys.version_info[:2])"
        ended = await run_command(
            [python, "-I", "-S", "-c", ask], env=env, marker="version", directory=self.engines, told=_ignore
        )
        return ended.last_lines[-1] if ended.code == 0 and ended.last_lines else "3"


def _ignore(_: str) -> None:
    return None


async def _measure(folders: tuple[Path, ...], progress: Progress) -> None:
    """Pip tells no bytes: what lies on the disk so far is the honest number."""
    while True:
        await asyncio.sleep(MEASURE_EVERY)
        sizes = await asyncio.to_thread(lambda: sum(tree_size(folder) for folder in folders))
        progress.bytes(max(progress.done, sizes))


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
