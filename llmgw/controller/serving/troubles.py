"""What is worth telling somebody: troubles that come, last and go. Pure; who is told and how is not known here.

A trouble has an id that stays while it stays, like an alert, and every alert is one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from llmgw.controller.serving.snapshot import HELD, CommitRefused, LastPass
from llmgw.model.alerts import Alert, Severity
from llmgw.model.exitcode import BLOCKED, CHANGES, DONE
from llmgw.model.record import Outcome
from llmgw.model.struct import Struct, Time

KEPT = 2000
"""Ids that are remembered as told. A fleet in which more is wrong at once has been told of enough."""
ERRORS_TOLD = 5
MADE_WAY = frozenset({HELD, Outcome.SUPERSEDED.value, Outcome.INTERRUPTED.value})
"""Ends of passes that are no failures: others are applying, a newer commit came, serve ends."""
RANK = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


class Trouble(Struct):
    """``kind`` is an alert's, or ``pass-failed``, ``pass-blocked``, ``commit-refused``."""

    id: str
    kind: str
    severity: Severity
    address: str
    text: str
    do: str = ""
    node: str | None = None
    since: Time | None = None
    commit: str | None = None


class Telling(Struct):
    """``raised``: it has come; ``again``: it still lasts; ``cleared``: it is over."""

    event: Literal["raised", "again", "cleared"]
    trouble: Trouble
    at: Time


def of_alert(alert: Alert) -> Trouble:
    return Trouble(
        id=alert.id,
        kind=alert.kind.value,
        severity=alert.severity,
        address=alert.address,
        text=alert.text,
        do=alert.do,
        node=alert.node,
        since=alert.since,
        commit=alert.commit,
    )


def of_refusal(refused: CommitRefused) -> Trouble:
    return Trouble(
        id="commit-refused",
        kind="commit-refused",
        severity=Severity.CRITICAL,
        address="fleet",
        text=f"commit {refused.commit[:10]} can't be applied as it is written: {_first(refused.problems)}",
        do="correct it by a new commit; until then everything stays as it is",
        commit=refused.commit,
    )


def of_pass(last: LastPass) -> Trouble | None:
    """None: it did all that it had to, or made way for somebody else or for what comes next."""
    if last.code in (DONE, CHANGES) or last.ended in MADE_WAY:
        return None
    blocked = last.code == BLOCKED
    return Trouble(
        id="pass-blocked" if blocked else "pass-failed",
        kind="pass-blocked" if blocked else "pass-failed",
        severity=Severity.WARNING if blocked else Severity.CRITICAL,
        address="fleet",
        text=_first(last.errors) or last.sentence,
        do="`llmgw plan` says what is in the way; it is tried again by itself",
        since=last.begun,
        commit=last.commit,
    )


def _first(texts: tuple[str, ...]) -> str:
    more = len(texts) - ERRORS_TOLD
    told = "\n".join(texts[:ERRORS_TOLD])
    return f"{told}\nand {more} more" if more > 0 else told


@dataclass(slots=True)
class Told:
    """What one address was told, and when last. ``troubles`` are those that it knows of and that last."""

    severity: Severity
    every: timedelta
    troubles: dict[str, tuple[datetime, Trouble]] = field(default_factory=dict)

    def news(self, lasting: Iterable[Trouble], now: datetime) -> Iterator[Telling]:
        """What to tell it now that these are all that last; they count as told. The worst first."""
        there = {it.id: it for it in lasting if RANK[it.severity] <= RANK[self.severity]}
        for trouble in sorted(there.values(), key=lambda it: (RANK[it.severity], it.id)):
            before = self.troubles.get(trouble.id)
            if before is None and len(self.troubles) >= KEPT:
                continue
            if before is None or now - before[0] >= self.every:
                self.troubles[trouble.id] = (now, trouble)
                yield Telling(event="raised" if before is None else "again", trouble=trouble, at=now)
        for gone in [it for it in self.troubles if it not in there]:
            _, trouble = self.troubles.pop(gone)
            yield Telling(event="cleared", trouble=trouble, at=now)


def lasting(alerts: Iterable[Alert], failed: Trouble | None, refused: Trouble | None) -> tuple[Trouble, ...]:
    """All that is wrong right now. A commit that is refused is why its pass failed: that is told once."""
    own = refused or failed
    return (*map(of_alert, alerts), *((own,) if own is not None else ()))
