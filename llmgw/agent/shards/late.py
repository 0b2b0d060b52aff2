"""Late values: what a launch spec leaves to the node, filled in at the moment of launch. The list is closed; see
model/launch.py."""

from collections.abc import Iterable, Mapping

from llmgw.model.facts import Gpu
from llmgw.model.launch import ADAPTER, LATE_PATTERN, LATE_VALUES, LaunchSpec, Process
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct

CUDA_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Always: else CUDA numbers GPUs by its own idea of speed, and indices mean other cards."""
SECRET = "secret:"  # noqa: S105 - the word, not one


class Filled(Struct):
    """A process with nothing left to fill in. Holds secrets: never logged, never kept."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]


def names_in(spec: LaunchSpec) -> frozenset[str]:
    """Every late value that a spec uses, known or not."""
    return frozenset(name for process in spec.processes for text in _texts(process) for name in _names(text))


def unknown(spec: LaunchSpec) -> tuple[str, ...]:
    """Names outside the closed list."""
    adapters = {f"{ADAPTER}{each.name}" for each in (spec.lora.adapters if spec.lora is not None else ())}
    known = adapters | set(LATE_VALUES)
    return tuple(sorted(name for name in names_in(spec) if name not in known and not name.startswith(SECRET)))


def secrets_used(spec: LaunchSpec) -> frozenset[str]:
    """Names under which a start must bring values."""
    used = {name.removeprefix(SECRET) for name in names_in(spec) if name.startswith(SECRET)}
    return frozenset(used | ({"key"} & names_in(spec)))


def values(
    spec: LaunchSpec,
    *,
    gpus: tuple[Gpu, ...],
    engine: str | None,
    weights: str | None,
    home: str,
    secrets: Mapping[str, str],
    adapters: Mapping[str, str] | None = None,
) -> Mapping[str, str]:
    """What each name stands for on this node, now. A GPU that isn't there has no index. ``adapters``: paths by name."""
    index = {gpu.uuid: _visible_as(gpu) for gpu in gpus}
    claimed = [claim.uuid for claim in spec.claims.gpus]
    known = {
        "gpu.uuids": ",".join(claimed),
        "home": home,
        **{f"{SECRET}{name}": value for name, value in secrets.items() if name != "key"},
        **{f"{ADAPTER}{name}": path for name, path in (adapters or {}).items()},
    }
    if all(uuid in index for uuid in claimed):
        known["gpu.indices"] = ",".join(index[uuid] for uuid in claimed)
    given = {"engine": engine, "weights": weights, "key": secrets.get("key")}
    return {**known, **{name: value for name, value in given.items() if value is not None}}


def _visible_as(gpu: Gpu) -> str:
    """As CUDA takes it. A MIG instance has no number of its own: its GPU's would mean the first instance of it."""
    return str(gpu.index) if gpu.parent is None else gpu.uuid


def fill(process: Process, known: Mapping[str, str]) -> Filled:
    """Raises StalledError naming the value that is missing, never a value."""
    return Filled(
        argv=tuple(expand(text, known) for text in process.argv),
        env={**CUDA_ORDER, **{name: expand(text, known) for name, text in process.env.items()}, **CUDA_ORDER},
        files={file.path: expand(file.content, known) for file in process.files},
    )


def expand(text: str, known: Mapping[str, str]) -> str:
    missing = [name for name in _names(text) if name not in known]
    if missing:
        raise StalledError(f"${{{missing[0]}}} has no value on this node: plan the model anew")
    # One pass: what a value holds is never looked at again.
    return LATE_PATTERN.sub(lambda found: "$" if found[1] is None else known[found[1]], text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(found[1] for found in LATE_PATTERN.finditer(text) if found[1] is not None)


def _texts(process: Process) -> Iterable[str]:
    yield from process.argv
    yield from process.env.values()
    yield from (file.content for file in process.files)
