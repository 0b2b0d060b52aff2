"""Why a GPU should not be used, as reasons; and what is odd about it without being one. Pure."""

from collections.abc import Iterator

from llmgw.agent.discovery.readings import Reading

ORDINARY = (
    "not supported",
    "n/a",
    "function not found",
    "deprecated",
    "argument version mismatch",
    "no data",
)
"""Answers of drivers and GPUs that are merely older or smaller than the question."""


def reasons(reading: Reading, *, instances: int = 0) -> tuple[str, ...]:
    """Empty: healthy. ``instances``: MIG instances that the GPU is split into."""
    return (*broken(reading), *_untold(reading), *_unsplit(reading, instances))


def broken(reading: Reading) -> tuple[str, ...]:
    """Those that a GPU's MIG instances share with it."""
    return (*reading.fatal, *_broken(reading))


def _broken(reading: Reading) -> Iterator[str]:
    if reading.ecc_volatile:
        yield f"{reading.ecc_volatile} uncorrectable memory errors since the driver was loaded"
    if reading.remap_failed:
        yield "remapping of broken memory rows failed"
    if reading.remap_pending:
        yield "broken memory rows wait for a reset of the GPU to be remapped"
    if reading.pages_pending:
        yield "broken memory pages wait for a reset of the GPU to be retired"
    if reading.repair_pending:
        yield "a repair of its hardware waits for a reset of the GPU"
    if reading.unrepairable:
        yield "its memory can't be repaired any more: have it replaced"
    if reading.action:
        yield f"the driver asks for this: {reading.action}"


def _untold(reading: Reading) -> Iterator[str]:
    why = reading.refused.get("memory", "")
    because = f" ({why})" if why else ""
    if not reading.total:
        yield f"the driver does not tell its memory{because}"
    elif reading.used is None:
        yield f"the driver does not tell how much of its memory is used{because}"


def _unsplit(reading: Reading, instances: int) -> Iterator[str]:
    if not reading.mig or reading.parent is not None or instances:
        return
    if reading.unnamed:
        yield f"MIG is on and the driver names none of its instances ({reading.unnamed}), so none can be used"
    else:
        yield "MIG is on and it has no instances, so nothing can be computed on it"


def notes(reading: Reading) -> tuple[str, ...]:
    """What the driver refused to tell for another reason than not knowing it."""
    odd = [
        f"the driver does not tell its {what}: {why}"
        for what, why in sorted(reading.refused.items())
        if what != "memory" and not any(word in why.lower() for word in ORDINARY)
    ]
    if reading.mig_pending:
        odd.append("MIG will be switched with the next reset of the GPU")
    if reading.sram_worn:
        odd.append(
            "its on-chip memory has had more uncorrectable errors than its maker allows: plan to replace it"
        )
    return tuple(odd)
