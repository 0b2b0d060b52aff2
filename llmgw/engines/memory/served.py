"""What vLLM takes of a GPU: it asks for a share of the whole, loads, tries the largest batch, and gives the rest to the cache.

Published sums that the tables come from stand in docs/engines.md; tests hold them. Where a replica was measured, its own words
replace the tables.
"""

import math
from collections.abc import Mapping

from llmgw.core.adapter import GpuKind, GpuNeed, Known, Placed
from llmgw.engines.lora import lora
from llmgw.engines.memory import capability
from llmgw.engines.memory.footprint import GIB, Footprint, Line, Split, cache_bytes
from llmgw.engines.memory.measured import HUNDREDTHS, amounts, dated, measure, said_of
from llmgw.engines.memory.needs import gpu_need
from llmgw.engines.memory.options import amount, count, flag, option
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import Measure
from llmgw.model.record import RankPlacement
from llmgw.model.struct import Struct
from llmgw.model.weights import Measured, Weights

LOADED = 1.02
"""What lies in memory for each byte of the files: padding, buffers, tensors that every rank keeps."""
BATCH_LARGE, BATCH_SMALL = 8192, 2048
EXPERTS = 0.9
"""Of a mixture's layers, what is experts at least: these are divided by the ranks of data parallel too, where that is asked for."""
LARGE_GPU = 70 * GIB
"""vLLM's own default of --max-num-batched-tokens: the large one on GPUs from this size on, A100 left out."""
ACTIVATIONS: tuple[tuple[tuple[str, ...], float], ...] = (
    (("Pixtral", "Mistral3"), 2.5),
    (("Llama",), 4.8),
    (("Qwen2", "Qwen3"), 5.6),
)
"""GiB at a batch of 8,192 tokens, measured on H100."""
ACTIVATIONS_EXPERTS, ACTIVATIONS_OTHER = 8.0, 5.5
OUTSIDE_ALONE, OUTSIDE_TOGETHER = 0.15, 0.6
"""GiB outside of PyTorch: CUDA's context; with NCCL's buffers where several GPUs work together."""
CPU_CACHE = 4
"""GiB that vLLM takes for the cache on a CPU when VLLM_CPU_KVCACHE_SPACE says nothing."""
CPU_OUTSIDE = 1.0
MANY = 100
"""Requests from which nobody counts tenths."""

TYPES: Mapping[str, float] = {
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
}
ON_THE_FLY: Mapping[str, float] = {"fp8": 0.5, "bitsandbytes": 0.28}
"""What quantizing while loading leaves of 16-bit weights; every other method needs files that are quantized already."""

MEASURE: Mapping[str, str] = {
    "weights": r"Model loading took ([0-9.]+) GiB",
    "kv": r"Available KV cache memory: ([0-9.]+) GiB",
    "tokens": r"GPU KV cache size: ([0-9,]+) tokens",
    "length": r"Maximum concurrency for ([0-9,]+) tokens per request",
    "at-once": r"Maximum concurrency for [0-9,]+ tokens per request: ([0-9.]+)x",
    "longest": r"estimated maximum model length is ([0-9]+)",
}
"""vLLM's own lines (gpu_model_runner.py, gpu_worker.py, kv_cache_utils.py)."""


class Served(Struct, kw_only=False):
    """See :class:`llmgw.engines.memory.needs.Sums`."""

    def refuses(self, model: DesiredModel, weights: Weights) -> str:
        return indivisible(model, weights) or too_long(model, weights, unless="VLLM_ALLOW_LONG_MAX_MODEL_LEN")

    def unknown(self, model: DesiredModel, weights: Weights) -> str:
        if not model.profile.gpus.per_node:
            return ""  # on a CPU the cache is as large as it is told to be, whatever a token takes
        if weights.unknown:
            return f"what a token takes of it is not known: {weights.unknown}"
        return (
            ""
            if tokens_of(model, weights)
            else "its files do not say how many tokens it takes: write maxModelLen"
        )

    def cannot(self, model: DesiredModel, weights: Weights, kind: GpuKind) -> str:
        if why := capability.why_not(capability.method(model, weights), kind.capability):
            return why
        has = capability.number(kind.capability)
        if has is None:
            return ""
        kind_of_cache = option(model, "--kv-cache-dtype") or ""
        if kind_of_cache.startswith("fp8") and has < capability.FP8_CACHE:
            return f"a cache in fp8 needs compute capability 8.9, it has {kind.capability}"
        if model.profile.dtype == "bfloat16" and has < capability.BFLOAT16:
            return f"dtype bfloat16 needs compute capability 8.0, it has {kind.capability}: write float16"
        return ""

    def on(self, model: DesiredModel, known: Known, weights: Weights, kind: GpuKind) -> GpuNeed:
        measured = said_of(model, known, weights, kind)
        footprint = self._measured(model, weights, kind, amounts(measured)) if measured else None
        return self._need(model, weights, kind, measured, footprint or self.footprint(model, weights, kind))

    def learnt(self, model: DesiredModel, known: Known, weights: Weights, kind: GpuKind) -> GpuNeed | None:
        measured = said_of(model, known, weights, kind)
        if measured is None:
            return None
        footprint = self._measured(model, weights, kind, amounts(measured))
        return self._need(model, weights, kind, measured, footprint) if footprint is not None else None

    def host_learnt(self, model: DesiredModel, known: Known, weights: Weights) -> Footprint | None:
        del (
            model,
            known,
            weights,
        )  # nothing of it is measured: only the size of the weights can be what is not known
        return None

    def _need(
        self,
        model: DesiredModel,
        weights: Weights,
        kind: GpuKind,
        measured: Measured | None,
        footprint: Footprint,
    ) -> GpuNeed:
        footprint = dated(footprint, measured)
        cache = next((line.size for line in footprint.lines if line.name == "kv"), 0)
        room = self.takes(model, kind.memory)
        at_once = (room - footprint.total + cache) / cache if cache else 0
        return gpu_need(
            model,
            kind,
            footprint,
            takes=lambda total: self.takes(model, total),
            refused=self.cannot(model, weights, kind) or self._said_no(model, weights, kind, measured),
            spare=f"enough for {at_once:,.{1 if at_once < MANY else 0}f} such requests at once"
            if cache
            else "",
        )

    def host(self, model: DesiredModel, weights: Weights) -> Footprint:
        given = model.spec.env.get("VLLM_CPU_KVCACHE_SPACE", model.profile.env.get("VLLM_CPU_KVCACHE_SPACE"))
        cache = int(given) if isinstance(given, str) and given.isdigit() and int(given) else CPU_CACHE
        return Footprint(
            lines=(
                Line(name="weights", size=loaded(model, weights)),
                Line(name="kv", size=cache * GIB, note="VLLM_CPU_KVCACHE_SPACE"),
                Line(name="overhead", size=int(CPU_OUTSIDE * GIB)),
            )
        )

    def takes(self, model: DesiredModel, total: int) -> int:
        """So much must be free, or vLLM refuses to start."""
        return math.ceil(total * model.profile.gpu_memory_utilization)

    def footprint(self, model: DesiredModel, weights: Weights, kind: GpuKind) -> Footprint:
        """By the tables."""
        split = split_of(model)
        batch = batch_of(model, kind)
        together = split.tensor * split.pipeline > 1
        lines = [
            Line(name="weights", size=loaded(model, weights)),
            kv_line(model, weights, batch),
            Line(
                name="activations",
                size=int(_activations(weights) * batch / BATCH_LARGE * GIB),
                note=f"{batch:,} at once",
            ),
            Line(name="overhead", size=int((OUTSIDE_TOGETHER if together else OUTSIDE_ALONE) * GIB)),
        ]
        if adapters := adapter_bytes(model, weights):
            lines.append(Line(name="adapters", size=adapters))
        return Footprint(lines=tuple(lines))

    def _measured(
        self, model: DesiredModel, weights: Weights, kind: GpuKind, said: Mapping[str, int]
    ) -> Footprint | None:
        """By the engine's own words: all but the cache is what was left of its share when the cache had got the rest."""
        if not {"weights", "kv", "budget"} <= said.keys() or said["budget"] < said["weights"] + said["kv"]:
            return None
        rest = said["budget"] - said["weights"] - said["kv"]
        cache = _said_of_cache(model, weights, said) if weights.unknown else None
        if weights.unknown and cache is None:
            return None
        return Footprint(
            lines=(
                Line(name="weights", size=said["weights"], note="measured"),
                cache or kv_line(model, weights, batch_of(model, kind)),
                Line(name="activations and overhead", size=rest, note="measured"),
            )
        )

    def _said_no(
        self, model: DesiredModel, weights: Weights, kind: GpuKind, measured: Measured | None
    ) -> str:
        """What vLLM itself refused before, with as much to use, it will refuse again."""
        said = amounts(measured) if measured is not None else {}
        tokens, longest = tokens_of(model, weights) or 0, said.get("longest")
        if longest is None or tokens <= longest or said.get("budget", 0) < self.takes(model, kind.memory):
            return ""
        return f"vLLM has said there that at most {longest:,} tokens fit, not {tokens:,}: write maxModelLen: {longest}"


def measured_by(placed: Placed, rank: RankPlacement, weights: str) -> Measure | None:
    """What vLLM says of its memory, and the share it was given, which it does not say; None on a CPU, where it is told all."""
    if not placed.model.profile.gpus.per_node:
        return None
    facts = placed.nodes[rank.node].facts
    claimed = {claim.uuid for claim in rank.gpus}
    gpus = facts.gpus if facts is not None else ()
    total = next((gpu.memory_total for gpu in gpus if gpu.uuid in claimed), 0)
    share = placed.model.profile.gpus.share
    budget = share if share is not None else math.ceil(total * placed.model.profile.gpu_memory_utilization)
    return measure(placed, rank, weights, MEASURE, given={"budget": str(budget)})


# ---- addends -------------------------------------------------------------------------------------------


def split_of(model: DesiredModel) -> Split:
    return Split(tensor=model.profile.parallel.tensor, pipeline=model.profile.parallel.pipeline)


def tokens_of(model: DesiredModel, weights: Weights) -> int | None:
    """Tokens of the longest request."""
    return model.profile.max_model_len or weights.context


def batch_of(model: DesiredModel, kind: GpuKind) -> int:
    """Tokens that are computed at once, at most."""
    large = kind.memory >= LARGE_GPU and "a100" not in kind.gpu_class.lower()
    return count(model, "--max-num-batched-tokens") or (BATCH_LARGE if large else BATCH_SMALL)


def kv_line(model: DesiredModel, weights: Weights, batch: int) -> Line:
    tokens = tokens_of(model, weights) or 0
    size = cache_bytes(
        weights.cache, split_of(model), element=cache_element(model), tokens=tokens, batch=batch
    )
    return Line(name="kv", size=size, note=f"{tokens:,} tokens")


def _said_of_cache(model: DesiredModel, weights: Weights, said: Mapping[str, int]) -> Line | None:
    """What one request takes where nobody can reckon it, by how many of them vLLM says its cache holds; None: it has not said. A
    refused start has told the length of which it holds one. A longer request is taken to need more in proportion and a shorter
    one no less, which is never too little: what does not go by the token is there once."""
    length, at_once = said.get("length"), said.get("at-once")
    if not length or not at_once:
        length, at_once = said.get("longest"), HUNDREDTHS
    if not length:
        return None
    tokens = tokens_of(model, weights) or length
    size = math.ceil(said["kv"] * HUNDREDTHS / at_once * max(tokens / length, 1))
    at = "" if tokens == length else f" at {length:,}"
    return Line(name="kv", size=size, note=f"{tokens:,} tokens, measured{at}")


def cache_element(model: DesiredModel) -> float:
    """Bytes of one number in the cache."""
    asked = option(model, "--kv-cache-dtype") or "auto"
    if asked.startswith(("fp8", "int8")):
        return 1
    return TYPES.get(asked, computing_bytes(model))


def computing_bytes(model: DesiredModel) -> float:
    """Bytes of a number that is computed with: auto makes 16 bits of 32."""
    if model.profile.dtype != "auto":
        return TYPES.get(model.profile.dtype, 2)
    return 2


def loaded(model: DesiredModel, weights: Weights) -> int:
    """Bytes of weights on one rank: the largest stage's layers and one of the two tables at the ends, divided by tensor; less what
    the profile leaves in host memory."""
    split = split_of(model)
    layers, table = _parts(model, weights)
    tables = 2 * table
    if split.pipeline > 1 and weights.layers:
        layers, tables = layers * split.layers(weights.layers) / weights.layers, table
    if weights.experts and flag(model, "--enable-expert-parallel"):
        layers -= layers * EXPERTS * (1 - 1 / model.profile.parallel.data)
    offloaded = (amount(model, "--cpu-offload-gb") or 0) * GIB
    return max(math.ceil((layers + tables) * LOADED / split.tensor - offloaded), 0)


def _parts(model: DesiredModel, weights: Weights) -> tuple[float, float]:
    """Bytes of all layers, and of one of the tables that turn tokens into numbers and back, as they are loaded."""
    size = float(weights.size)
    stored = TYPES.get(weights.dtype)
    if not weights.quantization and stored:
        size *= computing_bytes(model) / stored
    table = min(weights.vocab * weights.hidden * computing_bytes(model), size / 2)
    layers = size - 2 * table
    if not weights.quantization:
        layers *= ON_THE_FLY.get((model.profile.quantization or "").lower(), 1.0)
    return layers, table


def _activations(weights: Weights) -> float:
    if weights.experts:
        return ACTIVATIONS_EXPERTS
    return next(
        (amount for names, amount in ACTIVATIONS if weights.architecture.startswith(names)), ACTIVATIONS_OTHER
    )


def adapter_bytes(model: DesiredModel, weights: Weights) -> int:
    """What vLLM sets aside for as many adapters at once as are asked for: two thin matrices beside each of a layer's seven."""
    if (found := lora(model)) is None:
        return 0
    head = weights.hidden // weights.heads if weights.heads else 0
    keys = weights.kv_heads * head
    inner = weights.feed_forward or 4 * weights.hidden
    thin = 4 * weights.hidden + 2 * (weights.hidden + keys) + 3 * (weights.hidden + inner)
    return found.slots * found.set_aside * weights.layers * thin * 2


# ---- what does not divide ------------------------------------------------------------------------------


def indivisible(model: DesiredModel, weights: Weights) -> str:
    """Why tensor parallelism of this degree can't divide the model; empty when it can."""
    tensor, pipeline = model.profile.parallel.tensor, model.profile.parallel.pipeline
    whole = option(model, "--mm-encoder-tp-mode") == "data"  # each rank has the whole encoder
    counts = (
        ("attention heads", weights.heads),
        ("tokens of vocabulary", padded(weights.vocab)),
        ("attention heads of the picture encoder", 0 if whole else weights.picture_heads),
    )
    for what, number in counts:
        if number and number % tensor:
            return f"{number} {what} of {weights.architecture} can't be divided by parallel.tensor {tensor}: {_other(number, tensor)}"
    shared, latent = weights.kv_heads, any(group.latent for group in weights.cache)
    if shared and not latent and shared % tensor and tensor % shared:
        return (
            f"{shared} KV heads of {weights.architecture} can neither be divided by parallel.tensor {tensor} nor repeated:"
            f" {_other(shared, tensor)}"
        )
    if weights.layers and pipeline > weights.layers:
        return f"{weights.layers} layers of {weights.architecture} can't make {pipeline} stages (parallel.pipeline)"
    return ""


def too_long(model: DesiredModel, weights: Weights, *, unless: str) -> str:
    """Why no engine starts for requests of that length; empty when it does. ``unless``: the variable by which people insist."""
    asked, context = model.profile.max_model_len, weights.context
    insists = unless in model.profile.env or unless in model.spec.env
    changed = flag(model, "--hf-overrides", "--json-model-override-args", "--rope-scaling")
    if asked is None or context is None or asked <= context or insists or changed:
        return ""
    return (
        f"maxModelLen {asked} is more than the {context} tokens that {weights.architecture} takes: write at most {context},"
        f" or stretch its positions by args (--hf-overrides) or env ({unless})"
    )


def padded(vocab: int) -> int:
    """The vocabulary is padded to whole 64s before vLLM divides it."""
    return -(-vocab // 64) * 64


def _other(number: int, tensor: int) -> str:
    fits = [degree for degree in (1, 2, 4, 8, 16, 32, 64) if number % degree == 0]
    near = min(fits, key=lambda degree: abs(degree - tensor))
    return f"{near} would do"
