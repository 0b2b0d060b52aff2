"""The nearest shape that fits: what to change in a profile so that a model which is too large for the fleet's GPUs is not.

Each way is tried by itself, by asking the engine again: shorter requests, another quantization or none, another kind of GPU, more
GPUs, two nodes. Nothing is promised about what is free; only what the GPUs could hold.
"""

from collections.abc import Iterator

from llmgw.core.adapter import Need
from llmgw.core.moves.round import Round
from llmgw.core.moves.sizes import need_of
from llmgw.core.place.candidates import breaks_rules
from llmgw.core.place.claims import NodeLedger
from llmgw.model.desired import DesiredModel
from llmgw.model.manifest import GIB, ProfileSpec, Size
from llmgw.model.struct import replace

STEP = 256
"""Tokens that a suggested length is a multiple of."""
LEAST = 1024
"""Tokens below which no length is suggested: nobody serves that."""
QUANTIZATIONS = ("fp8",)
"""What vLLM and SGLang can make of any weights while they load them."""
MOST_GPUS = 64


def nearest(round_: Round, model: DesiredModel, need: Need | None = None) -> str:
    """``; it would fit with maxModelLen: 20480, or with quantization: fp8``; empty where size is not what is in the way (``need``
    fits some kind of GPU that the model may have), or nothing helps."""
    if not model.profile.gpus.per_node or not (need is None or need.reckoned):
        return ""
    key = f"{model.name} {model.spec_digest}"
    if key not in round_.nearest:
        round_.nearest[key] = _nearest(round_, model, need)
    return round_.nearest[key]


def _nearest(round_: Round, model: DesiredModel, need: Need | None) -> str:
    ledgers = _allowed(round_, model)
    if need is not None and _fits(need, ledgers, model.profile):
        return ""
    found = [
        text for text, other in _others(round_, model, ledgers) if _would_fit(round_, model, other, ledgers)
    ]
    more = (
        text
        for text, other in _more_gpus(model.profile, ledgers)
        if _would_fit(round_, model, other, ledgers)
    )
    found += [text for text in [next(more, None)] if text is not None]
    return f"; it would fit with {', or with '.join(found)}" if found else ""


def _allowed(round_: Round, model: DesiredModel) -> list[NodeLedger]:
    ledgers = round_.placer.ledgers.values()
    return [ledger for ledger in ledgers if ledger.gpus and not breaks_rules(ledger, model.spec.placement)]


def _others(
    round_: Round, model: DesiredModel, ledgers: list[NodeLedger]
) -> Iterator[tuple[str, ProfileSpec]]:
    profile = model.profile
    if (length := _length(round_, model, ledgers)) is not None:
        yield f"maxModelLen: {length}", replace(profile, max_model_len=length)
    for quantization in QUANTIZATIONS:
        if profile.quantization is None:
            yield f"quantization: {quantization}", replace(profile, quantization=quantization)
    if (share := _share(round_, model, ledgers)) is not None:
        yield f"gpus.share: {share}GiB", _shared(profile, share)
    if profile.quantization is not None:
        yield "no quantization", replace(profile, quantization=None)
    if profile.gpus.gpu_class is not None:
        classes = {entry.gpu.gpu_class for ledger in ledgers for entry in ledger.gpus}
        for gpu_class in sorted(classes - {profile.gpus.gpu_class}):
            yield (
                f"gpus.class: {gpu_class}",
                replace(profile, gpus=replace(profile.gpus, gpu_class=gpu_class)),
            )


def _more_gpus(profile: ProfileSpec, ledgers: list[NodeLedger]) -> Iterator[tuple[str, ProfileSpec]]:
    """Twice as many, and so on, as many as one node has; then those of a second node."""
    most = max((len(ledger.gpus) for ledger in ledgers), default=0)
    count = profile.gpus.per_node * 2
    while count <= min(most, MOST_GPUS) and profile.nodes == 1 and profile.gpus.share is None:
        tensor = profile.parallel.tensor * (count // profile.gpus.per_node)
        more = replace(profile.gpus, per_node=count)
        if profile.parallel.tensor == 1:
            yield f"gpus.perNode: {count}", replace(profile, gpus=more)
        yield (
            f"gpus.perNode: {count} and parallel.tensor: {tensor}",
            replace(profile, gpus=more, parallel=replace(profile.parallel, tensor=tensor)),
        )
        count *= 2
    if profile.nodes == 1 and profile.gpus.share is None and profile.gpus.per_node == most:
        stages = profile.parallel.pipeline * 2
        yield (
            f"nodes: 2 and parallel.pipeline: {stages}",
            replace(profile, nodes=2, parallel=replace(profile.parallel, pipeline=stages)),
        )


def _would_fit(round_: Round, model: DesiredModel, profile: ProfileSpec, ledgers: list[NodeLedger]) -> bool:
    other = replace(model, profile=profile)
    if round_.adapters[profile.engine.name].validate(other):
        return False
    return _fits(need_of(round_, other), ledgers, profile)


def _fits(need: Need, ledgers: list[NodeLedger], profile: ProfileSpec) -> bool:
    """Whether so many nodes have GPUs enough that could hold it, if they were free."""
    if need.refused or need.unknown:
        return False
    return sum(_holds(need, ledger, profile) for ledger in ledgers) >= profile.nodes


def _holds(need: Need, ledger: NodeLedger, profile: ProfileSpec) -> bool:
    wanted = profile.gpus
    able = [
        entry
        for entry in ledger.gpus
        if wanted.gpu_class in (None, entry.gpu.gpu_class)
        and ((each := need.of(entry.gpu)) is None or each.fits)
        and entry.gpu.memory_total >= wanted.min_memory
    ]
    return len(able) >= (1 if wanted.share is not None else wanted.per_node)


def _length(round_: Round, model: DesiredModel, ledgers: list[NodeLedger]) -> int | None:
    """The longest request that fits; None: none does, or it is not the length that is too much."""
    low, high = 0, _asked(round_, model) // STEP
    while low < high:
        middle = (low + high + 1) // 2
        if _would_fit(round_, model, replace(model.profile, max_model_len=middle * STEP), ledgers):
            low = middle
        else:
            high = middle - 1
    return low * STEP if low * STEP >= LEAST else None


def _shared(profile: ProfileSpec, gib: int) -> ProfileSpec:
    return replace(profile, gpus=replace(profile.gpus, share=Size(gib * GIB)))


def _share(round_: Round, model: DesiredModel, ledgers: list[NodeLedger]) -> int | None:
    """The smallest share of a GPU that it fits into, in GiB; None: no share is asked for, or none is enough."""
    if model.profile.gpus.share is None:
        return None
    low = model.profile.gpus.share // GIB + 1
    most = max((entry.gpu.memory_total // GIB for ledger in ledgers for entry in ledger.gpus), default=0)
    high = most + 1
    while low < high:
        middle = (low + high) // 2
        if _would_fit(round_, model, _shared(model.profile, middle), ledgers):
            high = middle
        else:
            low = middle + 1
    return low if low <= most else None


def _asked(round_: Round, model: DesiredModel) -> int:
    digest = round_.adapters[model.profile.engine.name].weights(model)
    known = round_.weights.get(digest) if digest is not None else None
    return model.profile.max_model_len or (known.context if known is not None else None) or 0
