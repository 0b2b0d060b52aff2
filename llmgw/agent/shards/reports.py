"""What is told of a shard: its report, and journal entries for what becomes of it. Pure."""

from llmgw.agent.seams import JournalEvent, Running
from llmgw.core.life import Life
from llmgw.core.lifecycle import describe_exit
from llmgw.model.ids import ShardId
from llmgw.model.launch import LaunchSpec
from llmgw.model.report import TOLD, ByHand, ComputesOn, Exit, LoraReport, ShardReport, ShardState
from llmgw.model.struct import Struct
from llmgw.model.weights import Measured

FIELD = 1_000
"""Characters that a journal keeps of one field."""


class Seen(Struct):
    """What only the running agent knows of a shard."""

    engine: Running | None = None
    last_line: str = ""
    by_hand: ByHand | None = None
    lost: str = ""
    problem: str = ""
    measured: Measured | None = None
    computes_on: ComputesOn | None = None
    adapters: tuple[LoraReport, ...] = ()


def report(spec: LaunchSpec, life: Life, seen: Seen) -> ShardReport:
    engine = seen.engine.engine if seen.engine else None
    return ShardReport(
        shard=spec.shard,
        replica=spec.replica,
        rank=spec.rank,
        ranks=spec.ranks,
        model=spec.model,
        profile=spec.profile,
        spec_digest=spec.spec_digest,
        state=life.state.value,
        reason=_reason(life.reason, seen.problem),
        since=life.since,
        attempts=life.attempts,
        pid=engine.pid if engine else None,
        started=life.started,
        ready_at=life.ready_at,
        next_try=life.next_try,
        loading_seconds=life.loading_seconds,
        last_error=life.last_error,
        failed_at=life.failed_at,
        last_exit=life.last_exit,
        last_line=seen.last_line,
        claims=spec.claims,
        port=spec.probes.port,
        leader_address=spec.leader_address,
        computes_on=seen.computes_on,
        by_hand=seen.by_hand,
        lost=seen.lost,
        measured=seen.measured,
        adapters=seen.adapters,
    )


def _reason(reason: str, problem: str) -> str:
    """A shard may wait for the very thing that its agent can't do."""
    return reason if problem in reason else "; ".join(text for text in (reason, problem) if text)


def moved(spec: LaunchSpec, before: ShardState, life: Life) -> JournalEvent:
    text = f"{before.value} → {life.state.value}" + (f": {life.reason}" if life.reason else "")
    fields = {"from": before.value, "to": life.state.value, "replica": spec.replica, "model": spec.model}
    return JournalEvent(kind="shard-state", subject=spec.shard, text=text, fields=fields)


def ended(shard: ShardId, exit_: Exit, *, told: bool) -> JournalEvent:
    """``told``: it had been told to stop, so that its end is no news."""
    fields = {
        "process": exit_.process,
        "code": exit_.code,
        "signal": exit_.signal,
        TOLD: "stop" if told else None,
        "outOfMemory": "true" if exit_.out_of_memory else None,
        # Of both the end says most, and the journal keeps only so much.
        "traceback": exit_.traceback[-FIELD:] or None,
        "lastLines": "\n".join(exit_.last_lines)[-FIELD:] or None,
    }
    kept = {name: str(value) for name, value in fields.items() if value is not None}
    return JournalEvent(kind="shard-exit", subject=shard, text=describe_exit(exit_, told=told), fields=kept)


def manual(spec: LaunchSpec, text: str) -> JournalEvent:
    fields = {"replica": spec.replica, "model": spec.model}
    return JournalEvent(kind="manual", subject=spec.shard, text=text, fields=fields)


def adapter(spec: LaunchSpec, text: str) -> JournalEvent:
    fields = {"replica": spec.replica, "model": spec.model}
    return JournalEvent(kind="adapter", subject=spec.shard, text=text, fields=fields)


def problem(shard: str, text: str) -> JournalEvent:
    return JournalEvent(kind="problem", subject=shard, text=text)
