"""How a command ends, for scripts. What each means stands in docs/operations.md."""

from collections.abc import Iterable

from llmgw.model.problems import HeldError, StaleError

DONE, ERROR, CHANGES, STALE, HELD, PART, BLOCKED, USAGE = 0, 1, 2, 3, 4, 5, 6, 64
PRECEDENCE = (USAGE, ERROR, HELD, STALE, BLOCKED, PART, CHANGES, DONE)


def worst(codes: Iterable[int]) -> int:
    """The one that counts where several hold; DONE for none."""
    there = set(codes)
    return next((code for code in PRECEDENCE if code in there), DONE)


def of(error: BaseException) -> int:
    """How a command ends that this error ended."""
    match error:
        case HeldError():
            return HELD
        case StaleError():
            return STALE
        case _:
            return ERROR
