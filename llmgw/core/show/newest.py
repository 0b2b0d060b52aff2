"""The newest commit beside the one that was applied last: whether it asks for anything else, and how it is told."""

from llmgw.model.desired import Desired, DesiredModel, DesiredNode
from llmgw.model.ids import Commit
from llmgw.model.problems import Where
from llmgw.model.struct import Struct, replace

SUBJECT_SHOWN = 60
_NOWHERE = Where(file="")


class Newest(Struct):
    """The newest commit of the branch that is followed, while it is not applied."""

    commit: Commit
    branch: str = ""
    author: str = ""
    subject: str = ""
    partly: bool = False  # some of it was applied, by `apply --target`
    problems: tuple[str, ...] = ()  # why it can't be used, whole sentences; empty: it can be


def asks_alike(one: Desired, other: Desired) -> bool:
    """Whether two commits ask for the same, wherever it stands in their files: a change of a README is never recorded."""
    return _asked(one) == _asked(other)


def _asked(of: Desired) -> tuple[object, ...]:
    return of.fleet, *map(_alone, of.nodes.values()), *map(_alone, of.models.values())


def _alone(part: DesiredNode | DesiredModel) -> DesiredNode | DesiredModel:
    """A new name shows by itself, and an old one that is not written any more changes nothing."""
    return replace(part, where=_NOWHERE, renamed_from=None)


def newest_text(newest: Newest) -> str:
    subject = " ".join(newest.subject.split())
    shown = subject if len(subject) <= SUBJECT_SHOWN else f"{subject[: SUBJECT_SHOWN - 1]}…"
    told = ", ".join(part for part in (shown, f"by {newest.author}" if newest.author else "") if part)
    of = f" of {newest.branch}" if newest.branch else ""
    who = f"Newest commit {newest.commit[:10]}{of}" + (f" ({told})" if told else "")
    if newest.problems:
        first, *others = newest.problems
        more = f" (and {len(others)} more)" if others else ""
        return f"{who} is not applied and can't be: {first}{more}; `llmgw plan` says all of it"
    how = "is applied in part only" if newest.partly else "is not applied yet"
    return f"{who} {how}: `llmgw plan` says what it would change"
