"""Where what jobs bring lies, whole or half made: each whole engine and each whole set of weights is proved by its marker,
which is written last.

====================================== ================================================================
below the engines' directory
``<engine>-<version>-<digest8>``        an engine; without its marker a half-made one
``.tmp-<job>``                          what a job needs while it works
``tools/<tool>-<version>-<digest8>``    programs that fetch weights
below the weights' directory
``<digest>``                            weights
``.part-<job>``                         half of them
====================================== ================================================================
"""

import re
from collections.abc import Iterator
from pathlib import Path

from llmgw.agent.jobs.files import read_marker, remove_tree, tree_size
from llmgw.model.facts import EngineFact, WeightsFact
from llmgw.model.launch import FetchSpec, InstallSpec
from llmgw.model.problems import StalledError
from llmgw.model.report import Stored
from llmgw.model.struct import Struct

ENGINE_MARKER = "llmgw-engine.json"
WEIGHTS_MARKER = "llmgw-weights.json"
TOOLS = "tools"
TEMPORARY = ".tmp-"
PART = ".part-"
MAX_TARGETS = 1_000
_PLAIN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")


class DiskTargets(Struct):
    """Reads the markers below the two directories: a few small files, so it is asked each time and never stale."""

    engines_folder: Path
    weights_folder: Path

    def engines(self) -> tuple[EngineFact, ...]:
        found = (read_marker(EngineFact, folder / ENGINE_MARKER) for folder in _folders(self.engines_folder))
        return tuple(engine for engine in found if engine is not None and Path(engine.path).is_dir())

    def weights(self) -> tuple[WeightsFact, ...]:
        found = (
            read_marker(WeightsFact, folder / WEIGHTS_MARKER) for folder in _folders(self.weights_folder)
        )
        return tuple(weights for weights in found if weights is not None and Path(weights.path).exists())

    def stored(self) -> tuple[Stored, ...]:
        return tuple(
            Stored(name=name, description=told, path=str(path), size=tree_size(path))
            for name, told, path in self._everything()
        )

    def remove(self, name: str) -> None:
        for found, _, path in self._everything():
            if found == name:
                for marker in (ENGINE_MARKER, WEIGHTS_MARKER):
                    remove_tree(path / marker)
                remove_tree(path)

    def _everything(self) -> Iterator[tuple[str, str, Path]]:
        """Names, descriptions and folders; the folder of weights that lie elsewhere holds their marker alone."""
        for engine in self.engines():
            path = self.engines_folder / Path(engine.path).name
            yield f"engine/{engine.digest}", f"{engine.name} {engine.version}", path
        for folder in _folders(self.weights_folder):
            found = read_marker(WeightsFact, folder / WEIGHTS_MARKER)
            if found is not None:
                yield f"weights/{found.digest}", found.description or found.path, folder
        for tool in self.tools():
            yield f"tool/{tool.name}", tool.name, tool
        for job, half in self.half_made():
            yield f"half/{job}/{half.name}", f"what {job} has left half made", half

    def half_made(self) -> tuple[tuple[str, Path], ...]:
        """What is not whole, by the job that made it."""
        found = [
            (folder.name.removeprefix(TEMPORARY), folder)
            for folder in _hidden(self.engines_folder, TEMPORARY)
        ]
        found += [(folder.name.removeprefix(PART), folder) for folder in _hidden(self.weights_folder, PART)]
        for folder in _folders(self.engines_folder):
            digest8 = folder.name.rpartition("-")[2]
            if folder.name.count("-") >= 2 and read_marker(EngineFact, folder / ENGINE_MARKER) is None:
                found.append((f"install-{digest8}", folder))
        return tuple(found)

    def tools(self) -> tuple[Path, ...]:
        return tuple(_folders(self.engines_folder / TOOLS))


def engine_folder(engines: Path, spec: InstallSpec) -> Path:
    if not _PLAIN.match(spec.engine) or not _PLAIN.match(spec.version):
        raise StalledError(
            f"installing engine {spec.engine!r:.60} {spec.version!r:.60}: only letters, digits and ._+- in either"
        )
    return engines / f"{spec.engine}-{spec.version}-{spec.digest[:8]}"


def engine_complete(engines: Path, spec: InstallSpec) -> bool:
    found = read_marker(EngineFact, engine_folder(engines, spec) / ENGINE_MARKER)
    return found is not None and found.digest == spec.digest


def weights_complete(weights: Path, spec: FetchSpec) -> bool:
    found = read_marker(WeightsFact, weights / spec.digest / WEIGHTS_MARKER)
    if found is None or found.digest != spec.digest:
        return False
    path = Path(found.path)
    return path.is_dir() or (path.is_file() and path.stat().st_size == found.size)


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(
            entry for entry in parent.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        )[:MAX_TARGETS]
    except OSError:
        return []


def _hidden(parent: Path, prefix: str) -> list[Path]:
    try:
        return sorted(entry for entry in parent.iterdir() if entry.name.startswith(prefix))[:MAX_TARGETS]
    except OSError:
        return []
