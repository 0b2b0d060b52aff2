"""The bundle: everything an agent is, for one kind of machine, in one file that is named by its content. The same content
gives the same bytes, whoever builds it and when.

``lib/`` holds the agent part of llmgw and the packages it imports, ``main.py`` starts it, ``bundle.json`` says what it is.
"""

import asyncio
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import llmgw
from llmgw import __version__
from llmgw.controller.nodes.bootstrap.build import build_of
from llmgw.controller.nodes.bootstrap.closure import agent_files
from llmgw.controller.nodes.bootstrap.target import Target
from llmgw.controller.nodes.bootstrap.wheels import Wheels
from llmgw.model.manifest import Pip
from llmgw.model.problems import StalledError

if TYPE_CHECKING:
    from llmgw.controller.nodes.bootstrap.packages import Package

MAIN: Final = """\
# Starts the agent from the library beside this file, and from nothing else but the standard library.
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))

from llmgw.agent.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
"""
MAX_PACKAGES: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """``digest`` is that of the archive before compression: compressors differ, content does not. ``data`` is compressed.
    ``build`` is the same for every kind of machine."""

    digest: str
    build: str
    data: bytes = field(repr=False)
    target: Target
    packages: tuple[str, ...]  # name==version


class Bundles:
    """Builds each kind once and keeps it in ``folder``. ``package`` is the llmgw that is shipped, this one by default."""

    def __init__(self, folder: Path, wheels: Wheels, *, package: Path | None = None) -> None:
        self._folder = folder
        self._package = package or Path(llmgw.__file__).parent
        self._wheels = wheels
        self._built: dict[tuple[Target, Pip], Bundle] = {}
        self._building = asyncio.Lock()

    async def bundle(self, target: Target, pip: Pip) -> Bundle:
        """``pip`` says where packages come from that this installation does not have in the right form. Raises StalledError naming the package that can't be had for the target."""
        async with self._building:
            key = (target, pip)
            if key not in self._built:
                packages = await self._packages(target, pip)
                built = await asyncio.to_thread(pack, target, packages, self._package)
                await asyncio.to_thread(self._keep, built)
                self._built[key] = built
            return self._built[key]

    async def _packages(self, target: Target, pip: Pip) -> tuple["Package", ...]:
        """The roots and everything they ask for on the target."""
        from packaging.requirements import Requirement  # noqa: PLC0415 - most commands bootstrap nothing, and packaging takes its time
        from packaging.utils import canonicalize_name  # noqa: PLC0415 - same

        from llmgw.controller.nodes.bootstrap.packages import (  # noqa: PLC0415 - same
            ROOTS,
            Need,
            installed,
            read_wheel,
            required,
        )

        found: dict[str, Package] = {}
        todo = [Requirement(text) for text in ROOTS]
        while todo:
            requirement = todo.pop(0)
            name = canonicalize_name(requirement.name)
            if name in found:
                continue
            if len(found) == MAX_PACKAGES:
                raise StalledError(
                    f"building the agent's bundle for {target}: more than {MAX_PACKAGES} packages"
                )
            package = await asyncio.to_thread(installed, requirement, target)
            if isinstance(package, Need):
                wheel = await self._wheels.find(package, target, pip)
                package = await asyncio.to_thread(read_wheel, wheel)
            found[name] = package
            todo += required(package, target)
        return tuple(found[name] for name in sorted(found))

    def _keep(self, bundle: Bundle) -> None:
        """For people who want to look into it. Later controllers build anew: it takes less than a second."""
        file = self._folder / f"{bundle.target}-{bundle.digest[:12]}.tar.gz"
        beside = file.with_name(f".{file.name}.new")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for older in self._folder.glob(f"{bundle.target}-*.tar.gz"):
                if older != file:
                    older.unlink(missing_ok=True)
            beside.write_bytes(bundle.data)
            beside.replace(file)
        except OSError as wrong:
            raise StalledError(
                f"keeping a bundle in {self._folder}: {wrong.strerror}: see to stateDir"
            ) from wrong


def pack(target: Target, packages: tuple["Package", ...], package: Path) -> Bundle:
    """``package`` is the folder of llmgw."""
    names = tuple(f"{one.name}=={one.version}" for one in packages)
    about = {"version": __version__, "target": str(target), "packages": names}
    files: dict[str, bytes] = {
        "main.py": MAIN.encode(),
        "bundle.json": (json.dumps(about, indent=2) + "\n").encode(),
    }
    for one in packages:
        for name, data in one.files.items():
            files[f"lib/{name}"] = data
    for file in agent_files(package):
        files[f"lib/llmgw/{file.relative_to(package)}"] = file.read_bytes()
    data = _archive(files)
    return Bundle(
        digest=hashlib.sha256(data).hexdigest(),
        build=build_of(package),
        data=gzip.compress(data, compresslevel=6, mtime=0),
        target=target,
        packages=names,
    )


def _archive(files: Mapping[str, bytes]) -> bytes:
    """Sorted, and without owners, times and the builder's modes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()
