"""What llama.cpp takes: exact tensors, the cache of all slots, and the buffers it computes in.

Layers are spread evenly over the GPUs; the table of tokens stays in host memory, and where the model uses it for its output as
well, that is a second copy on the GPU. Nothing is taken that is not needed, so what must be free is the sum.
"""

import math
from collections.abc import Mapping

from llmgw.core.adapter import GpuKind, GpuNeed, Known, Placed
from llmgw.engines.memory.footprint import GIB, Footprint, Line, Split, cache_bytes
from llmgw.engines.memory.measured import CPU, dated, measure, said_of
from llmgw.engines.memory.needs import gpu_need
from llmgw.engines.memory.options import count, flag, option
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import Measure
from llmgw.model.record import RankPlacement
from llmgw.model.struct import Struct, replace
from llmgw.model.weights import Measured, Weights

MIB = 1024**2
BATCH = 512
"""llama.cpp's own -ub: tokens that are computed at once."""
PAGE = 256
"""Tokens that the cache is rounded up to."""
CONTEXT = 0.4
"""GiB of CUDA's own context and kernels on each GPU; llama.cpp's buffers do not count it."""
HOST = 0.1
"""GiB of the process itself: program, vocabulary, request buffers."""

CACHE_TYPES: Mapping[str, float] = {
    "f32": 4,
    "f16": 2,
    "bf16": 2,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}

MEASURE: Mapping[str, str] = {
    "gpu-model-mib": r"CUDA[0-9]+ model buffer size *= *([0-9.]+) MiB",
    "gpu-kv-mib": r"CUDA[0-9]+ KV buffer size *= *([0-9.]+) MiB",
    "gpu-state-mib": r"CUDA[0-9]+ RS buffer size *= *([0-9.]+) MiB",
    "gpu-compute-mib": r"CUDA[0-9]+ compute buffer size *= *([0-9.]+) MiB",
    "tokens": r"llama_context: n_ctx += ([0-9]+)",
}
"""llama.cpp's lines of its buffers, one for each device, and the tokens of all slots; it prints them with -lv 4 only."""
MEASURE_HOST: Mapping[str, str] = {
    **{
        f"host-{what}-mib": rf"CPU(?:_[A-Za-z]+)? {words} buffer size *= *([0-9.]+) MiB"
        for what, words in (("model", "model"), ("kv", "KV"), ("state", "RS"), ("compute", "compute"))
    },
    "tokens": MEASURE["tokens"],
}
"""The same where it computes on the CPU."""


class Gguf(Struct, kw_only=False):
    """See :class:`llmgw.engines.memory.needs.Sums`."""

    def refuses(self, model: DesiredModel, weights: Weights) -> str:
        del model  # it divides by whole layers only
        if weights.format != "gguf":
            return f"{weights.description} is no GGUF file, and llama.cpp reads nothing else"
        return ""

    def unknown(self, model: DesiredModel, weights: Weights) -> str:
        if weights.unknown:
            return f"what a token takes of it is not known: {weights.unknown}"
        return (
            ""
            if slots_of(model, weights)
            else "its header does not say how many tokens it takes: write maxModelLen"
        )

    def cannot(self, model: DesiredModel, weights: Weights, kind: GpuKind) -> str:
        del model, weights, kind  # its kernels unpack every type on every GPU that it runs on
        return ""

    def on(self, model: DesiredModel, known: Known, weights: Weights, kind: GpuKind) -> GpuNeed:
        measured = said_of(model, known, weights, kind)
        footprint = (self._measured(model, weights, measured) if measured else None) or self.footprint(
            model, weights
        )
        footprint = dated(footprint, measured)
        return gpu_need(model, kind, footprint, takes=lambda total: total, least=footprint.total)

    def learnt(self, model: DesiredModel, known: Known, weights: Weights, kind: GpuKind) -> GpuNeed | None:
        measured = said_of(model, known, weights, kind)
        devices = max(model.profile.gpus.per_node, 1)
        footprint = measured and _said(model, weights, measured, where="gpu", devices=devices)
        if not footprint:
            return None
        footprint = dated(footprint, measured)
        return gpu_need(model, kind, footprint, takes=lambda total: total, least=footprint.total)

    def host_learnt(self, model: DesiredModel, known: Known, weights: Weights) -> Footprint | None:
        measured = said_of(model, known, weights, CPU)
        footprint = _said(model, weights, measured, where="host", devices=1) if measured else None
        return dated(footprint, measured) if footprint is not None else None

    def footprint(self, model: DesiredModel, weights: Weights) -> Footprint:
        """On each of its GPUs; the one with the output layer takes the most."""
        gpus = max(model.profile.gpus.per_node, 1)
        on_gpu = self._layers_on_gpu(model, weights)
        largest = sorted(weights.layer_sizes, reverse=True)[: -(-on_gpu // gpus)]
        output = weights.size - sum(weights.layer_sizes) - weights.embedding_size
        tied = weights.embedding_size if output < weights.embedding_size // 4 else 0
        return Footprint(
            lines=(
                Line(
                    name="weights",
                    size=sum(largest) + output + tied,
                    note=f"{on_gpu} of {weights.layers} layers",
                ),
                self._cache(model, weights, share=-(-on_gpu // gpus) / max(weights.layers, 1)),
                Line(name="compute", size=self._compute(model, weights)),
                Line(name="overhead", size=int(CONTEXT * GIB)),
            )
        )

    def host(self, model: DesiredModel, weights: Weights) -> Footprint:
        return Footprint(
            lines=(
                Line(name="weights", size=weights.size),
                self._cache(model, weights, share=1),
                Line(name="compute", size=self._compute(model, weights)),
                Line(name="overhead", size=int(HOST * GIB)),
            )
        )

    def _layers_on_gpu(self, model: DesiredModel, weights: Weights) -> int:
        asked = count(model, "-ngl", "--gpu-layers", "--n-gpu-layers")
        return min(asked if asked is not None else weights.layers, weights.layers)

    def _cache(self, model: DesiredModel, weights: Weights, *, share: float) -> Line:
        slots, tokens = slots_of(model, weights) or (1, 0)
        whole = -(-slots * tokens // PAGE) * PAGE
        both = [
            CACHE_TYPES.get(option(model, *names) or "f16", 2)
            for names in (("-ctk", "--cache-type-k"), ("-ctv", "--cache-type-v"))
        ]
        groups = weights.cache
        if flag(model, "--swa-full"):
            groups = tuple(replace(group, window=None) for group in groups)
        size = cache_bytes(groups, Split(), element=sum(both) / 2, tokens=whole, batch=_batch(model) * slots)
        note = f"{tokens:,} tokens" + (f" x {slots} slots" if slots > 1 else "")
        return Line(name="kv", size=math.ceil(size * share), note=note)

    def _compute(self, model: DesiredModel, weights: Weights) -> int:
        """Numbers for one batch: the logits, the widest layer's steps, and which token may see which."""
        slots, tokens = slots_of(model, weights) or (1, 0)
        batch = min(_batch(model), max(slots * tokens, 1))
        width = weights.vocab + weights.hidden + 3 * max(weights.feed_forward, weights.hidden)
        return batch * (width * 4 + -(-slots * tokens // PAGE) * PAGE * 4)

    def _measured(self, model: DesiredModel, weights: Weights, measured: Measured) -> Footprint | None:
        """By llama.cpp's own buffers on the fullest GPU; the cache is reckoned, because it goes by the length of requests."""
        names = ("gpu-model-mib", "gpu-compute-mib")
        if not all(measured.values.get(name) for name in names):
            return None
        most = {name: int(max(map(_mib, measured.values[name])) * MIB) for name in names}
        gpus = max(model.profile.gpus.per_node, 1)
        share = -(-self._layers_on_gpu(model, weights) // gpus) / max(weights.layers, 1)
        return Footprint(
            lines=(
                Line(name="weights", size=most["gpu-model-mib"], note="measured"),
                self._cache(model, weights, share=share),
                Line(name="compute", size=most["gpu-compute-mib"], note="measured"),
                Line(name="overhead", size=int(CONTEXT * GIB)),
            )
        )


def measured_by(placed: Placed, rank: RankPlacement, weights: str) -> Measure | None:
    """What llama.cpp says of its memory."""
    on_gpus = placed.model.profile.gpus.per_node > 0
    return measure(placed, rank, weights, MEASURE if on_gpus else MEASURE_HOST, given={})


def _said(
    model: DesiredModel, weights: Weights, measured: Measured, *, where: str, devices: int
) -> Footprint | None:
    """All by llama.cpp's own buffers on the fullest device, where nobody can reckon what it keeps; None: it has not said. The cache
    goes by the tokens of all slots, a state by the slots, which a measurement is for."""
    size = {
        what: _fullest(measured.values.get(f"{where}-{what}-mib", ()), devices)
        for what in ("model", "kv", "state", "compute")
    }
    holds = max((int(text) for text in measured.values.get("tokens", ()) if text.isdigit()), default=0)
    found = slots_of(model, weights)
    tokens = found[0] * found[1] if found is not None else holds
    if not (size["model"] and size["compute"] and holds and (size["kv"] or size["state"])):
        return None
    cache = math.ceil(size["kv"] * (-(-tokens // PAGE) * PAGE) / holds)
    lines = (
        Line(name="weights", size=size["model"], note="measured"),
        Line(name="kv", size=cache, note=f"{tokens:,} tokens, measured"),
        Line(name="state", size=size["state"], note="measured"),
        Line(name="compute", size=size["compute"], note="measured"),
        Line(name="overhead", size=int((CONTEXT if where == "gpu" else HOST) * GIB)),
    )
    return Footprint(lines=tuple(line for line in lines if line.size))


def _fullest(texts: tuple[str, ...], devices: int) -> int:
    """Bytes on one device, at most: each has as many lines of one kind, such as one for layers with a window and one without."""
    if devices == 1:
        return math.ceil(sum(map(_mib, texts)) * MIB)
    return math.ceil(max(map(_mib, texts), default=0) * -(-len(texts) // devices) * MIB)


def _mib(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _batch(model: DesiredModel) -> int:
    return count(model, "-ub", "--ubatch-size") or BATCH


def slots_of(model: DesiredModel, weights: Weights) -> tuple[int, int] | None:
    """How many requests at once, and the tokens of each; None: not known."""
    slots = count(model, "-np", "--parallel") or 1
    if model.profile.max_model_len:
        return slots, model.profile.max_model_len
    if weights.context is None:
        return None
    return slots, -(-weights.context // slots)  # without a length the model's own is shared out
