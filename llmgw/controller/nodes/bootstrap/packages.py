"""Which packages an agent needs on a machine, and their files: from this installation where they run there too, else from
wheels."""

import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name

from llmgw.controller.nodes.bootstrap.target import Target
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct

ROOTS: Final = (
    "httpx>=0.28",
    "msgspec>=0.20",
    "nvidia-ml-py>=13.580",
    "psutil>=7.0",
    "ruamel.yaml>=0.19",
    "sniffio>=1.3",
)
"""What llmgw/agent and llmgw/wire import; httpx imports sniffio and does not always ask for it. Of the two readers of YAML
the one without compiled parts, because it runs on every machine as it is.
A test holds them to what pyproject.toml says."""
MAX_FILE: Final = 64 * 1024 * 1024
NOT_SHIPPED: Final = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""Of a package's metadata: what tells of this machine's installation and not of the package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One package with its files, as paths below the bundle's library."""

    name: str
    version: str
    files: Mapping[str, bytes] = field(repr=False)
    requires: tuple[str, ...]


class Need(Struct):
    """A package that is needed and not here in a form that runs there; ``pinned`` to this installation's version, where that
    version may run there at all."""

    requirement: Requirement
    pinned: str | None = None

    def __str__(self) -> str:
        name = self.requirement.name
        return f"{name}=={self.pinned}" if self.pinned else f"{name}{self.requirement.specifier}"


def installed(requirement: Requirement, target: Target) -> Package | Need:
    """The package of this installation, if it runs on the target."""
    try:
        found = distribution(requirement.name)
    except PackageNotFoundError:
        return Need(requirement=requirement)
    needs = dict(found.metadata.json).get("requires_python", "")
    if needs and not SpecifierSet(str(needs)).contains(".".join(map(str, target.python))):
        return Need(requirement=requirement)
    if target.tags.isdisjoint(_tags(found)) or found.files is None:
        return Need(requirement=requirement, pinned=found.version)
    return Package(
        name=canonicalize_name(requirement.name),
        version=found.version,
        files=dict(_installed_files(found)),
        requires=tuple(found.requires or ()),
    )


def required(package: Package, target: Target) -> Iterator[Requirement]:
    """What a package asks for on the target."""
    environment = target.environment()
    for text in package.requires:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield requirement


def read_wheel(path: Path) -> Package:
    """A package as its wheel holds it. Scripts are left out: nothing in a bundle is called by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            files = dict(_wheel_files(archive))
    except (OSError, zipfile.BadZipFile) as wrong:
        raise StalledError(f"reading the wheel {path}: {wrong}: remove it, it is fetched again") from wrong
    metadata = next((data for name, data in files.items() if name.endswith(".dist-info/METADATA")), None)
    if metadata is None:
        raise StalledError(f"reading the wheel {path}: it has no metadata: remove it")
    about = Metadata.from_email(metadata, validate=False)
    return Package(
        name=canonicalize_name(about.name),
        version=str(about.version),
        files=files,
        requires=tuple(str(one) for one in about.requires_dist or ()),
    )


def _tags(found: Distribution) -> frozenset[Tag]:
    """What this installation's wheel was built for; nothing known: runs nowhere else."""
    lines = (found.read_text("WHEEL") or "").splitlines()
    told = [line.partition(":")[2].strip() for line in lines if line.startswith("Tag:")]
    return frozenset(tag for text in told for tag in parse_tag(text))


def _installed_files(found: Distribution) -> Iterator[tuple[str, bytes]]:
    for path in found.files or ():
        if _shipped(path):
            data = Path(str(found.locate_file(path))).read_bytes()
            yield str(path), data


def _wheel_files(archive: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    for entry in archive.infolist():
        path = PurePosixPath(entry.filename)
        if path.parts and path.parts[0].endswith(".data"):
            if len(path.parts) < 3 or path.parts[1] not in ("purelib", "platlib"):
                continue
            path = PurePosixPath(*path.parts[2:])
        linked = stat.S_ISLNK(entry.external_attr >> 16)
        if not entry.is_dir() and not linked and _shipped(path) and entry.file_size <= MAX_FILE:
            yield str(path), archive.read(entry)


def _shipped(path: PurePosixPath) -> bool:
    if path.is_absolute() or ".." in path.parts or "__pycache__" in path.parts or path.suffix == ".pyc":
        return False
    return not (path.parent.name.endswith(".dist-info") and path.name in NOT_SHIPPED)
