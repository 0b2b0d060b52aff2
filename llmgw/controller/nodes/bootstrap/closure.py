"""Which of llmgw's own files an agent needs: those of its rooms, and whatever they import, and no more."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOMS: Final = ("agent", "runtime")
"""Folders that go whole: what runs on nodes. The programs in ``runtime`` are imported by nobody."""
PACKAGE: Final = "llmgw"


def agent_files(package: Path) -> tuple[Path, ...]:
    """``package`` is the folder of llmgw. Imports inside functions count as well."""
    todo = [file for room in ROOMS for file in sorted((package / room).rglob("*.py"))]
    found: set[Path] = set()
    while todo:
        file = todo.pop()
        if file not in found:
            found.add(file)
            todo += [one for name in _imported(file) for one in _files(package, name)]
    return tuple(sorted(found))


def _imported(file: Path) -> Iterator[str]:
    """Dotted names below llmgw; of ``from a import b`` both ``a`` and ``a.b``, since either may be the module."""
    for node in ast.walk(ast.parse(file.read_bytes(), filename=str(file))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == PACKAGE)


def _files(package: Path, name: str) -> Iterator[Path]:
    """The module's file, and those of the packages around it, which are run before it."""
    folder = package
    yield folder / "__init__.py"
    for part in name.split(".")[1:]:
        if (folder / part / "__init__.py").is_file():
            folder /= part
            yield folder / "__init__.py"
        elif (folder / f"{part}.py").is_file():
            yield folder / f"{part}.py"
            return
        else:
            return  # a name inside the module before it
