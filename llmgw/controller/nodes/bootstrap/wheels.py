"""Wheels for machines unlike this one: from the fleet's wheel directory, else from its package index by pip. Where packages
come from travels in pip's environment, because an index's address may hold a password."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llmgw.controller.nodes.bootstrap.target import Target
from llmgw.model.manifest import Pip
from llmgw.model.problems import RetryError, StalledError
from llmgw.model.struct import Struct, replace

if TYPE_CHECKING:
    from packaging.version import Version

    from llmgw.controller.nodes.bootstrap.packages import Need

SECONDS: Final = 600.0
MAX_SAID: Final = 256 * 1024
PASSED_ON: Final = frozenset(
    {
        "PATH",
        "HOME",
        "TMPDIR",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
    }
)  # fmt: skip - one list
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")


class Wheels(Struct):
    """``cache`` keeps what was fetched; ``home`` stands for ``~`` in ``pip.wheelDir``."""

    cache: Path
    home: Path
    environ: Mapping[str, str]
    python: str = sys.executable

    async def find(self, need: "Need", target: Target, pip: Pip) -> Path:
        """A wheel of the package that runs on the target. Raises StalledError saying where it was looked for."""
        cached = self.cache / str(target)
        if (there := newest(cached, need, target)) is not None:
            return there
        folder = self._wheel_dir(pip)
        if folder is not None and folder.is_dir():
            any_version = replace(need, pinned=None)
            there = newest(folder, need, target) or newest(folder, any_version, target)
            if there is not None:
                return there
            raise StalledError(
                f"looking for a wheel of {need} for {target} in {folder} (pip.wheelDir): none there runs on it: put one there"
            )
        await self._download(need, target, cached, pip)
        if (there := newest(cached, need, target)) is not None:
            return there
        raise StalledError(f"fetching a wheel of {need} for {target}: pip brought none that runs there")

    def _wheel_dir(self, pip: Pip) -> Path | None:
        written = pip.wheel_dir
        if written is None:
            return None
        return self.home / written[2:] if written.startswith("~/") else Path(written)

    async def _download(self, need: "Need", target: Target, into: Path, pip: Pip) -> None:
        _make(into)
        doing = f"fetching a wheel of {need} for {target}"
        process = await asyncio.create_subprocess_exec(
            *self.command(need, target, into),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment(pip),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(SECONDS):
                out, _ = await process.communicate()
        except TimeoutError as late:
            raise RetryError(f"{doing}: pip has not ended within {SECONDS:g} s") from late
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode != 0:
            raise StalledError(f"{doing}: {self._why(out[-MAX_SAID:].decode(errors='replace'))}")

    def command(self, need: "Need", target: Target, into: Path) -> tuple[str, ...]:
        """Pip asks no markers about another Python, so dependencies are followed here and not by it."""
        platforms = [word for name in target.platforms for word in ("--platform", name)]
        return (
            *(self.python, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
            *("--implementation", "cp", "--python-version", ".".join(map(str, target.python))),
            *(*platforms, "--dest", str(into), "--", str(need)),
        )

    def _environment(self, pip: Pip) -> dict[str, str]:
        env = {
            name: value
            for name, value in self.environ.items()
            if name in PASSED_ON or name.startswith("PIP_") or name.lower().endswith("_proxy")
        }
        if pip.index_url is not None:
            env["PIP_INDEX_URL"] = pip.index_url
        return {**env, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}

    def _why(self, text: str) -> str:
        lines = [_CREDENTIALS.sub("***@", line) for line in text.splitlines() if line.strip()]
        if any("No module named pip" in line for line in lines):
            return (
                f"{self.python} has no pip: install it, or put wheels for this kind of machine into a directory and name it in"
                " Fleet.spec.pip.wheelDir"
            )
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        return (
            "; ".join(errors) or "pip said nothing"
        ) + ": where there is no index, put wheels into a directory and name it in Fleet.spec.pip.wheelDir"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as wrong:
        raise StalledError(f"making {folder} for wheels: {wrong.strerror}: see to stateDir") from wrong


def newest(folder: Path, need: "Need", target: Target) -> Path | None:
    """The newest wheel in a directory that fits the need and runs on the target; None: there is none."""
    from packaging.utils import (  # noqa: PLC0415 - most commands bootstrap nothing, and packaging takes its time
        InvalidWheelFilename,
        canonicalize_name,
        parse_wheel_filename,
    )

    fitting: list[tuple[Version, str]] = []
    try:
        names = sorted(path.name for path in folder.iterdir() if path.suffix == ".whl")
    except OSError:
        return None
    for name in names:
        try:
            package, version, _, tags = parse_wheel_filename(name)
        except InvalidWheelFilename:
            continue
        if package != canonicalize_name(need.requirement.name) or target.tags.isdisjoint(tags):
            continue
        wanted = str(version) == need.pinned if need.pinned else need.requirement.specifier.contains(version)
        if wanted:
            fitting.append((version, name))
    return folder / max(fitting)[1] if fitting else None
