"""What jobs have brought to the node and completed: engines and weights, each proved by its marker."""

from dataclasses import dataclass
from pathlib import Path

from llmgw.agent.jobs.files import read_marker
from llmgw.model.facts import EngineFact, WeightsFact

ENGINE_MARKER = "llmgw-engine.json"
WEIGHTS_MARKER = "llmgw-weights.json"
MAX_TARGETS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskTargets:
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


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(
            entry for entry in parent.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        )[:MAX_TARGETS]
    except OSError:
        return []
