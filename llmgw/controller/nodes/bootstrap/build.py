"""Which build of itself this llmgw brings to nodes: a name for the files and packages that its agents are made of.

Two builds of one version have different names and no order: nodes come to that of the controller that applies.
"""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

PARTS: Final = ("agent", "model", "runtime", "wire")
"""Folders that agents are made of, whole; what they import beside them is in :data:`FILES`."""
FILES: Final = (
    "__init__.py",
    "clock.py",
    "notify.py",
    "redaction.py",
    "core/__init__.py",
    "core/life.py",
    "core/lifecycle.py",
    "core/symptoms.py",
)
PACKAGES: Final = ("httpx", "msgspec", "nvidia-ml-py", "psutil", "ruamel.yaml", "sniffio")
LENGTH: Final = 12


@cache
def build_of(package: Path) -> str:
    """``package`` is the folder of llmgw. Twelve hex digits; a few milliseconds, unlike a bundle."""
    told = hashlib.sha256()
    for file in files_of(package):
        data = file.read_bytes()
        told.update(f"{file.relative_to(package)} {len(data)}\n".encode() + data)
    for name in PACKAGES:
        told.update(f"{name} {_version(name)}\n".encode())
    return told.hexdigest()[:LENGTH]


def files_of(package: Path) -> Iterator[Path]:
    """At least those that a bundle holds."""
    for part in PARTS:
        yield from sorted((package / part).rglob("*.py"))
    yield from (package / name for name in FILES)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
