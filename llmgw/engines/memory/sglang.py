"""What SGLang takes of a GPU: weights and cache are a static part, the rest is left for what it computes in.

Without a fraction it derives the static part from the GPU's size, by a table of its own (server_args.py), which is repeated here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from llmgw.core.adapter import GpuKind, GpuNeed, Known
from llmgw.engines.memory import capability
from llmgw.engines.memory.footprint import GIB, Footprint, Line
from llmgw.engines.memory.measured import amounts, measurement_key
from llmgw.engines.memory.needs import gpu_need
from llmgw.engines.memory.options import count
from llmgw.engines.memory.served import adapter_bytes, indivisible, kv_line, loaded, tokens_of
from llmgw.model.desired import DesiredModel
from llmgw.model.manifest import ProfileSpec
from llmgw.model.weights import Weights

MIB = 1024**2
BATCHES: tuple[tuple[int, int, int, int], ...] = (
    # below so many GiB: tokens of a chunk, requests in a CUDA graph up to 3 ranks, from 4 ranks on
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (90, 8192, 256, 512),
    (160, 8192, 256, 512),
)
LARGEST = (16384, 512, 512)
LEAST_LARGE = 10 * 1024
"""MiB that are left free at least on GPUs over 60 GiB."""
DEFAULT = ProfileSpec.__dataclass_fields__["gpu_memory_utilization"].default

MEASURE: Mapping[str, str] = {
    "weights": r"Load weight end\..*mem usage=([0-9.]+) GB",
    "tokens": r"KV Cache is allocated\..*#tokens: ([0-9]+)",
}
"""SGLang's own lines (model_runner.py, memory_pool.py); its GB are GiB."""


@dataclass(frozen=True, slots=True)
class StaticPart:
    """See :class:`llmgw.engines.memory.needs.Sums`."""

    def refuses(self, model: DesiredModel, weights: Weights) -> str:
        return indivisible(model, weights)

    def unknown(self, model: DesiredModel, weights: Weights) -> str:
        if weights.unknown:
            return f"what a token takes of it is not known: {weights.unknown}"
        return (
            ""
            if tokens_of(model, weights)
            else "its files do not say how many tokens it takes: write maxModelLen"
        )

    def on(self, model: DesiredModel, known: Known, weights: Weights, kind: GpuKind) -> GpuNeed:
        measured = known.measured.get(measurement_key(model, weights.digest, kind))
        said = amounts(measured) if measured is not None else {}
        footprint = self.footprint(model, weights, kind, seen=said.get("weights"))
        fraction = model.profile.gpu_memory_utilization
        given = fraction != DEFAULT
        return gpu_need(
            model,
            kind,
            footprint,
            takes=lambda total: math.ceil(total * fraction) if given else total,
            least=None if given else footprint.total,
            refused=capability.why_not(capability.method(model, weights), kind.capability),
        )

    def host(self, model: DesiredModel, weights: Weights) -> Footprint:
        return Footprint(
            lines=(Line(name="weights", size=loaded(model, weights)), kv_line(model, weights, BATCHES[0][1]))
        )

    def footprint(
        self, model: DesiredModel, weights: Weights, kind: GpuKind, *, seen: int | None = None
    ) -> Footprint:
        """With a fraction of the profile's own only what that holds; else all."""
        size, note = (seen, "measured") if seen is not None else (loaded(model, weights), "")
        chunk, _, _ = _batches(kind, model)
        lines = [Line(name="weights", size=size, note=note), kv_line(model, weights, chunk)]
        if adapters := adapter_bytes(model, weights):
            lines.append(Line(name="adapters", size=adapters))
        if model.profile.gpu_memory_utilization == DEFAULT:
            lines.append(Line(name="activations and overhead", size=reserved(model, kind), note="left free"))
        return Footprint(lines=tuple(lines))


def _batches(kind: GpuKind, model: DesiredModel) -> tuple[int, int, int]:
    """Tokens of a chunk and requests in a CUDA graph, for few and many ranks."""
    found = next(
        ((chunk, few, many) for below, chunk, few, many in BATCHES if kind.memory < below * GIB), LARGEST
    )
    return count(model, "--chunked-prefill-size") or found[0], found[1], found[2]


def reserved(model: DesiredModel, kind: GpuKind) -> int:
    """What SGLang leaves free by its own reckoning."""
    parallel = model.profile.parallel
    chunk, few, many = _batches(kind, model)
    graph = count(model, "--cuda-graph-max-bs") or (few if parallel.tensor < 4 else many)
    mib = 512 + max(chunk, 2048) * 1.5 + graph * 2 + parallel.tensor * parallel.pipeline / 8 * 1024
    if kind.memory > 60 * GIB:
        mib = max(mib, LEAST_LARGE)
    return int(mib * MIB)
