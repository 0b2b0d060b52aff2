"""Measurements: for what one holds, and the numbers in what an engine said."""

from collections.abc import Mapping

from llmgw.core.adapter import GpuKind, Known, Placed
from llmgw.engines.lora import lora
from llmgw.engines.memory.footprint import Footprint
from llmgw.model import ids
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import Measure
from llmgw.model.manifest import ProfileSpec
from llmgw.model.record import RankPlacement
from llmgw.model.struct import replace
from llmgw.model.weights import Measured, Weights

GIB = 1024**3
HUNDREDTHS = 100
UNITS: Mapping[str, float] = {
    **dict.fromkeys(("weights", "kv", "k", "v", "latent", "conv", "state"), GIB),
    "at-once": HUNDREDTHS,
}
"""What the value counts, by its name: bytes of one GiB, hundredths of a request; those that are not here are plain numbers."""
LEAST_COUNTS = frozenset({"kv", "tokens", "longest", "at-once"})
"""Of several ranks in one output, the one that leaves the least for the cache counts."""
CPU = GpuKind(gpu_class="cpu", memory=0)
"""In a GPU's place where a rank computes on none."""


def measurement_key(model: DesiredModel, weights: str, kind: GpuKind, *, size: int = 0) -> str:
    """Names all that changes how much memory a rank takes besides the length of a request: weights, engine, GPU, flags. ``size``
    in bytes tells what lies at one place now from what lay there before; zero: not known."""
    profile, found = model.profile, lora(model)
    return ids.digest(
        {
            "weights": [weights, size] if size else weights,
            "engine": [profile.engine.name, profile.engine.version, profile.engine.path],
            "gpu": [kind.gpu_class, kind.memory],
            "parallel": [
                profile.parallel.tensor,
                profile.parallel.pipeline,
                profile.parallel.data,
                profile.gpus.per_node,
                profile.nodes,
            ],
            "types": [profile.dtype, profile.quantization],
            "args": [*profile.args, *model.spec.args],
            "adapters": [found.slots, found.set_aside] if found is not None else [],
            "loaded": model.spec.max_loaded_adapters,
        }
    )


def measure(
    placed: Placed,
    rank: RankPlacement,
    weights: str,
    patterns: Mapping[str, str],
    *,
    given: Mapping[str, str],
) -> Measure | None:
    """What the agent is to look for in the engine's output; None where the GPU is not known."""
    model = placed.model
    kind = CPU if model.profile.gpus.per_node == 0 else _kind(placed, rank)
    if kind is None:
        return None
    return Measure(
        key=measurement_key(model, weights, kind, size=placed.weights_size),
        about=f"{model.name} on {_engine(model.profile)}, {kind.gpu_class}",
        patterns=dict(patterns),
        given=dict(given),
    )


def _kind(placed: Placed, rank: RankPlacement) -> GpuKind | None:
    facts = placed.nodes[rank.node].facts
    claimed = {claim.uuid for claim in rank.gpus}
    gpus = facts.gpus if facts is not None else ()
    return next((GpuKind.of(gpu) for gpu in gpus if gpu.uuid in claimed), None)


def _engine(profile: ProfileSpec) -> str:
    return f"{profile.engine.name} {profile.engine.version or profile.engine.path or ''}".strip()


def said_of(model: DesiredModel, known: Known, weights: Weights, kind: GpuKind) -> Measured | None:
    """What an engine has said of just this, or of what it was started with before anybody knew its size; None: none has."""
    keys = (measurement_key(model, weights.digest, kind, size=size) for size in (weights.size, 0))
    return next((known.measured[key] for key in keys if key in known.measured), None)


def dated(footprint: Footprint, measured: Measured | None) -> Footprint:
    """With the record that the measured addends come from."""
    if measured is None or not measured.serial:
        return footprint
    told = f"measured at serial {measured.serial}"
    return replace(
        footprint,
        lines=tuple(replace(line, note=line.note.replace("measured", told)) for line in footprint.lines),
    )


def amounts(measured: Measured) -> dict[str, int]:
    """By name, in bytes where it is memory."""
    found: dict[str, int] = {}
    for name, texts in {
        **measured.values,
        **{name: (text,) for name, text in measured.given.items()},
    }.items():
        numbers = [number for text in texts if (number := _number(text)) is not None]
        if numbers:
            pick = min(numbers) if name in LEAST_COUNTS else max(numbers)
            found[name] = round(pick * UNITS.get(name, 1))
    return found


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
