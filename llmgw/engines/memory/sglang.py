"""What SGLang takes of a GPU: weights and cache are a static part, the rest is left for what it computes in.

Without a fraction it derives the static part from the GPU's size, by a table of its own (server_args.py), which is repeated here.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType

from llmgw.core.adapter import GpuKind, GpuNeed, Known, Placed
from llmgw.engines.memory import capability
from llmgw.engines.memory.footprint import GIB, Footprint, Line
from llmgw.engines.memory.measured import amounts, dated, measure, said_of
from llmgw.engines.memory.needs import gpu_need
from llmgw.engines.memory.options import count
from llmgw.engines.memory.served import adapter_bytes, indivisible, kv_line, loaded, tokens_of, too_long
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import Measure
from llmgw.model.manifest import ProfileSpec
from llmgw.model.record import RankPlacement
from llmgw.model.struct import Struct, default_of, fields
from llmgw.model.weights import Weights

MIB = 1024**2
NOTHING_SAID: Mapping[str, int] = MappingProxyType({})
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
(DEFAULT,) = (default_of(one) for one in fields(ProfileSpec) if one.name == "gpu_memory_utilization")

MEASURE: Mapping[str, str] = {
    "weights": r"Load weight end\..*mem usage=([0-9.]+) GB",
    "tokens": r"KV Cache is allocated\..*#tokens: ([0-9]+)",
    "k": r"KV Cache is allocated\..*\bK size: ([0-9.]+) GB",
    "v": r"KV Cache is allocated\..*\bV size: ([0-9.]+) GB",
    "latent": r"KV Cache is allocated\..*\bKV size: ([0-9.]+) GB",
    "slots": r"Mamba Cache is allocated\..*max_mamba_cache_size: ([0-9]+)",
    "conv": r"Mamba Cache is allocated\..*conv_state size: ([0-9.]+) ?GB",
    "state": r"Mamba Cache is allocated\..*\bssm_state size: ([0-9.]+) ?GB",
}
"""SGLang's own lines (model_runner.py, memory_pool.py); its GB are GiB."""
STATES = 4
"""States that are counted for one request: SGLang keeps more than the one it computes with, for others that begin alike."""


class StaticPart(Struct, kw_only=False):
    """See :class:`llmgw.engines.memory.needs.Sums`."""

    def refuses(self, model: DesiredModel, weights: Weights) -> str:
        return indivisible(model, weights) or too_long(
            model, weights, unless="SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
        )

    def unknown(self, model: DesiredModel, weights: Weights) -> str:
        if weights.unknown:
            return f"what a token takes of it is not known: {weights.unknown}"
        return (
            ""
            if tokens_of(model, weights)
            else "its files do not say how many tokens it takes: write maxModelLen"
        )

    def cannot(self, model: DesiredModel, weights: Weights, kind: GpuKind) -> str:
        return capability.why_not(capability.method(model, weights), kind.capability)

    def on(self, model: DesiredModel, known: Known, weights: Weights, kind: GpuKind) -> GpuNeed:
        measured = said_of(model, known, weights, kind)
        said = amounts(measured) if measured is not None else {}
        return self._need(
            model, weights, kind, dated(self.footprint(model, weights, kind, said=said), measured)
        )

    def learnt(self, model: DesiredModel, known: Known, weights: Weights, kind: GpuKind) -> GpuNeed | None:
        measured = said_of(model, known, weights, kind)
        said = amounts(measured) if measured is not None else {}
        if "weights" not in said or _said_of_cache(model, weights, said) is None:
            return None
        return self._need(
            model, weights, kind, dated(self.footprint(model, weights, kind, said=said), measured)
        )

    def host_learnt(self, model: DesiredModel, known: Known, weights: Weights) -> Footprint | None:
        del model, known, weights  # on a CPU nothing of it is measured
        return None

    def _need(self, model: DesiredModel, weights: Weights, kind: GpuKind, footprint: Footprint) -> GpuNeed:
        fraction = model.profile.gpu_memory_utilization
        given = fraction != DEFAULT
        return gpu_need(
            model,
            kind,
            footprint,
            takes=lambda total: math.ceil(total * fraction) if given else total,
            least=None if given else footprint.total,
            refused=self.cannot(model, weights, kind),
        )

    def host(self, model: DesiredModel, weights: Weights) -> Footprint:
        return Footprint(
            lines=(Line(name="weights", size=loaded(model, weights)), kv_line(model, weights, BATCHES[0][1]))
        )

    def footprint(
        self, model: DesiredModel, weights: Weights, kind: GpuKind, *, said: Mapping[str, int] = NOTHING_SAID
    ) -> Footprint:
        """With a fraction of the profile's own only what that holds; else all. ``said``: by SGLang's own words, as far as it goes."""
        seen = said.get("weights")
        size, note = (seen, "measured") if seen is not None else (loaded(model, weights), "")
        chunk, _, _ = _batches(kind, model)
        cache = _said_of_cache(model, weights, said) if weights.unknown else None
        lines = [Line(name="weights", size=size, note=note), *(cache or (kv_line(model, weights, chunk),))]
        if adapters := adapter_bytes(model, weights):
            lines.append(Line(name="adapters", size=adapters))
        if model.profile.gpu_memory_utilization == DEFAULT:
            lines.append(Line(name="activations and overhead", size=reserved(model, kind), note="left free"))
        return Footprint(lines=tuple(lines))


def _said_of_cache(model: DesiredModel, weights: Weights, said: Mapping[str, int]) -> tuple[Line, ...] | None:
    """What one request takes where nobody can reckon it, by the pools that SGLang has set aside; None: it has not said."""
    pool = said.get("latent") or said.get("k", 0) + said.get("v", 0)
    state, slots = said.get("conv", 0) + said.get("state", 0), said.get("slots", 0)
    tokens, holds = tokens_of(model, weights), said.get("tokens", 0)
    if tokens is None or not ((pool and holds) or (state and slots)):
        return None
    lines = []
    if holds:
        size = math.ceil(pool * tokens / holds)
        lines.append(Line(name="kv", size=size, note=f"{tokens:,} tokens, measured"))
    if slots:
        size = math.ceil(state * min(STATES, slots) / slots)
        lines.append(Line(name="state", size=size, note="measured"))
    return tuple(lines)


def measured_by(placed: Placed, rank: RankPlacement, weights: str) -> Measure | None:
    """What SGLang says of its memory; None on a CPU."""
    if not placed.model.profile.gpus.per_node:
        return None
    return measure(placed, rank, weights, MEASURE, given={})


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
