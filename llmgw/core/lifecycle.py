"""The states of a shard: one pure table, ``step(life, event, now, rules) -> (life, actions)``, with one writer, the
agent's supervisor, which carries the actions out and brings what happens as events.

::

      Ordered               JobsWaiting
    ───────────▶ pending ───────────────▶ installing ◀─▶ fetching
        JobsDone, │  ▲  ▲                     │ │ JobsFailed, deadline
    Ordered(here) │  │  └──────────┐ JobsDone │ └──────────────────────▶ failed
                  ▼  │ next try    │          ▼
               backoff             └── starting (checks, sidecars, rendezvous, exec) ── LaunchRefused ─▶ backoff | failed
                  ▲                       │ PortOpen; without HTTP: Launched
                  │ Gone                  ▼              Ready
                  │                    loading ◀───────────────────────────▶ ready
                  │                       │            ProbeFailed             │
                  │   Exited, deadline    │ StopAsked                DrainAsked │
               stopping ◀─────────────────┴──────────── draining ◀─────────────┘
                  │ Gone                     Drained, deadline, Exited
                  └──▶ stopped | failed | backoff | pending, as ``Life.then`` says

``stopping`` is on the way of every end, a crash's too: no successor starts while a process is left. StopAsked leads
there from every state but stopped, also before any process exists; it turns ``then`` into stopped. ``stopped`` and
``failed`` are terminal, and hold nothing of the node.

Every state that is neither terminal nor ready has a deadline and a reason. The deadline of ready is the moment when the
count of attempts starts anew. docs/lifecycle.md tells people what this means.
"""

from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeAlias

from llmgw.core.life import (
    LIVE,
    TERMINAL,
    WAITING,
    Action,
    Adopted,
    DeadlinePassed,
    DrainAsked,
    Drained,
    Event,
    Exited,
    Gone,
    JobsDone,
    JobsFailed,
    JobsWaiting,
    Launched,
    LaunchRefused,
    Life,
    Ordered,
    PortOpen,
    ProbeFailed,
    Ready,
    Rebooted,
    Resumed,
    Rules,
    StopAsked,
    SurvivedKill,
    Waiting,
)
from llmgw.model.launch import ENGINE, LaunchSpec
from llmgw.model.report import Exit, ShardState
from llmgw.model.struct import replace

S = ShardState

DRAIN_SETTLE = 5.0
"""Seconds between publishing a shard as draining and believing its in-flight count: gateways need to hear of it."""
GPU_RETURN = 30.0
"""Seconds that a driver may take to give a dead process's memory back."""
CLEAR_AGAIN = 30.0
"""Seconds until survivors of SIGKILL (stuck in the kernel) are tried again."""
PENDING_WITHIN = 60.0
"""Seconds that looking at the jobs may take; it is asked again then."""

NO_ANSWER = "no longer answers: "
SLOW = "slow after adoption: "
"""What a reason begins with as long as that is so, whatever the next question tells."""

Step: TypeAlias = tuple[Life, tuple[Action, ...]]


def rules_of(spec: LaunchSpec) -> Rules:
    return Rules(
        restart=spec.restart,
        timeouts=spec.timeouts,
        local=spec.restart.local and spec.ranks == 1,
        http=spec.probes.port is not None,
        rendezvous=sum(process.wait_for.timeout for process in spec.processes if process.wait_for),
    )


def newborn(now: datetime) -> Life:
    """Before the order is on disk."""
    return Life(
        state=S.PENDING, reason="ordered", since=now, deadline=now + timedelta(seconds=PENDING_WITHIN)
    )


def describe_exit(exit_: Exit, *, told: bool = False) -> str:
    """One line for people. ``told``: it had been told to stop."""
    if exit_.signal is not None:
        how = f"was ended by signal {exit_.signal}"
    elif exit_.code is not None:
        how = f"exited {'when told to stop,' if told else 'by itself'} with code {exit_.code}"
    else:
        how = f"has ended, unseen ({exit_.detail})" if exit_.detail else "has ended, unseen"
    seen = exit_.signal is not None or exit_.code is not None
    killed = ", out of memory" if exit_.out_of_memory else ""
    killed += f" ({exit_.detail})" if seen and exit_.detail else ""
    # The last line of a traceback is the error itself; without one, the last line of output says most.
    last = (exit_.traceback or "\n".join(exit_.last_lines)).rstrip().rpartition("\n")[2].strip()
    return f"{exit_.process} {how}{killed}" + (f": {last}" if last else "")


def step(life: Life, event: Event, now: datetime, rules: Rules) -> Step:  # noqa: C901, PLR0911, PLR0912 - the table
    """What becomes of a shard when something happens. An event that means nothing in a state changes nothing."""
    match event:
        case Ordered():
            pending, actions = _pending(life, "ordered", now)
            return _jobs_done(pending, now, rules) if event.here else (pending, actions)
        case JobsWaiting():
            return _jobs_waiting(life, event, now, rules)
        case JobsDone():
            return _jobs_done(life, now, rules)
        case JobsFailed():
            return _jobs_failed(life, event, now, rules)
        case Launched():
            return _launched(life, now, rules)
        case LaunchRefused():
            return _refused(life, event, now, rules)
        case PortOpen():
            if life.state is not S.STARTING:
                return life, ()
            return _to(life, S.LOADING, "port open", now), (Action.AWAIT_READY,)
        case Ready():
            return _ready(life, now, rules)
        case ProbeFailed():
            return _probe_failed(life, event, now, rules)
        case Waiting():
            return _waiting(life, event), ()
        case Exited():
            return _exited(life, event.exit, now, rules)
        case DeadlinePassed():
            return _deadline_passed(life, now, rules)
        case DrainAsked():
            return _drain_asked(life, event, now)
        case Drained():
            if life.state is not S.DRAINING:
                return life, ()
            return _clear(life, f"drained, {event.note}", now, rules, then=S.STOPPED)
        case StopAsked():
            return _stop_asked(life, event, now, rules)
        case Gone():
            return _gone(life, event, now, rules)
        case SurvivedKill():
            return _survived(life, event, now)
        case Adopted():
            return _adopted(life, now, rules)
        case Resumed():
            return _resumed(life, now, rules)
        case Rebooted():
            return _rebooted(life, now, rules)
    raise _unknown(event)


def _unknown(value: NoReturn) -> AssertionError:
    """typing.assert_never by hand, which Python 3.10 lacks: the type checker refuses it while a case is missing."""
    return AssertionError(f"unknown {value!r}")


def _to(life: Life, state: ShardState, reason: str, now: datetime, **changes: Any) -> Life:
    """Keeps the deadline unless ``changes`` brings another."""
    since = life.since if state is life.state else now
    return replace(life, state=state, reason=reason, since=since, **changes)


def _after(now: datetime, seconds: float) -> datetime:
    return now + timedelta(seconds=seconds)


def _waiting(life: Life, event: Waiting) -> Life:
    if life.state in TERMINAL or life.state is S.STOPPING:
        return life
    told = next((mark for mark in (NO_ANSWER, SLOW) if life.reason.startswith(mark)), "")
    return replace(life, reason=f"{told}{event.reason}")


def _pending(life: Life, reason: str, now: datetime) -> Step:
    deadline = _after(now, PENDING_WITHIN)
    waiting = _to(life, S.PENDING, reason, now, deadline=deadline, next_try=None, failed_at=None)
    return waiting, (Action.AWAIT_JOBS,)


def _jobs_waiting(life: Life, event: JobsWaiting, now: datetime, rules: Rules) -> Step:
    if life.state not in WAITING or event.state not in (S.INSTALLING, S.FETCHING):
        return life, ()
    if event.state is life.state:
        return replace(life, reason=event.reason), ()
    limit = rules.timeouts.install if event.state is S.INSTALLING else rules.timeouts.fetch
    return _to(life, event.state, event.reason, now, deadline=_after(now, limit)), ()


def _jobs_done(life: Life, now: datetime, rules: Rules) -> Step:
    if life.state not in WAITING:
        return life, ()
    deadline = _after(now, rules.rendezvous + rules.timeouts.startup)
    started = _to(
        life,
        S.STARTING,
        "checking the node",
        now,
        deadline=deadline,
        started=None,
        ready_at=None,
        adopted=False,
    )
    return started, (Action.LAUNCH,)


def _jobs_failed(life: Life, event: JobsFailed, now: datetime, rules: Rules) -> Step:
    if life.state not in WAITING:
        return life, ()
    if event.retry and rules.local:
        return _back_off(replace(life, last_error=event.error), event.error, now, rules)
    return _fail(life, event.error, now)


def _launched(life: Life, now: datetime, rules: Rules) -> Step:
    if life.state is not S.STARTING:
        return life, ()
    # The clock of startup starts here: neither a rendezvous nor a job is the engine's fault.
    deadline = _after(now, rules.timeouts.startup)
    running = replace(life, launched=True, started=now, deadline=deadline, ready_at=None)
    if rules.http:
        return _to(running, S.STARTING, "waiting for its port", now), (Action.AWAIT_PORT,)
    return _to(running, S.LOADING, "up, without HTTP", now), (Action.AWAIT_READY,)


def _refused(life: Life, event: LaunchRefused, now: datetime, rules: Rules) -> Step:
    if life.state is not S.STARTING:
        return life, ()
    attempts = life.attempts + (0 if event.mismatch else 1)
    # A plan that was wrong about a node it never ran on is made anew; a node that has run it is waited for.
    then = S.FAILED if event.mismatch and not life.launched else _after_failure(attempts, rules)
    error = (
        _given_up(event.error, attempts, rules) if then is S.FAILED and not event.mismatch else event.error
    )
    refused = replace(life, attempts=attempts, last_error=error, failed_at=now)
    if event.processes:
        return _clear(refused, error, now, rules, then=then)
    return _end_of_clearing(replace(refused, then=then), error, now, rules)


def _ready(life: Life, now: datetime, rules: Rules) -> Step:
    if life.state is not S.LOADING:
        return life, ()
    ready_at, took = life.ready_at, life.loading_seconds
    if ready_at is None:
        ready_at = now
        # An adopted one may have been ready long before anybody looked again.
        if life.started is not None and not life.adopted:
            took = (now - life.started).total_seconds()
    deadline = _after(now, rules.restart.reset_after) if life.attempts else None
    made = _to(
        life, S.READY, "", now, deadline=deadline, ready_at=ready_at, loading_seconds=took, adopted=False
    )
    return made, (Action.WATCH,)


def _probe_failed(life: Life, event: ProbeFailed, now: datetime, rules: Rules) -> Step:
    if life.state is not S.READY and not is_adopted(life):
        return life, ()
    deadline = _after(now, rules.timeouts.adopt_ready)
    reason = f"{NO_ANSWER}{event.why}"
    # It has recovered by then, or is not only slow: whether the agent has been replaced meanwhile counts no more.
    return _to(life, S.LOADING, reason, now, deadline=deadline, adopted=False), (Action.AWAIT_READY,)


def is_adopted(life: Life) -> bool:
    """Found running by an agent that has not seen it ready, though another has: it may be slow, as long as it works."""
    return life.state in (S.STARTING, S.LOADING) and life.adopted and life.ready_at is not None


def _exited(life: Life, exit_: Exit, now: datetime, rules: Rules) -> Step:
    if life.state in LIVE:
        return _failure(replace(life, last_exit=exit_), describe_exit(exit_), now, rules, at=exit_.at)
    if life.state is S.DRAINING:
        gone = replace(life, last_exit=exit_, last_error=describe_exit(exit_))
        return _clear(gone, f"while draining, {describe_exit(exit_)}", now, rules, then=S.STOPPED)
    stopping = life.state is S.STOPPING and exit_.process == ENGINE
    if stopping and (life.then is S.STOPPED or not _has_ended(life)):
        return replace(life, last_exit=exit_), ()
    return life, ()  # of a failure, the first end is the cause; what falls after it says nothing


def _has_ended(life: Life) -> bool:
    """Whether this run's end is known. One that was given up at a deadline has none yet: its output, told with the exit,
    is what says why it never got ready."""
    return life.last_exit is not None and (life.started is None or life.last_exit.at >= life.started)


def _deadline_passed(life: Life, now: datetime, rules: Rules) -> Step:  # noqa: PLR0911 - a row for each state
    match life.state:
        case S.PENDING:
            return _pending(life, "asking for its jobs again", now)
        case S.INSTALLING | S.FETCHING:
            seconds = (now - life.since).total_seconds()
            return _fail(life, f"{life.state.value} was not done after {seconds:.0f} s: {life.reason}", now)
        case S.STARTING | S.LOADING if is_adopted(life):
            reason = f"{SLOW}{life.reason.removeprefix(SLOW)}"
            return replace(life, reason=reason, deadline=_after(now, rules.timeouts.adopt_ready)), ()
        case S.STARTING | S.LOADING:
            return _failure(life, _not_ready(life, now), now, rules)
        case S.READY:
            return replace(life, attempts=0, deadline=None), ()
        case S.DRAINING:
            return _clear(
                life, f"drain timeout is over with {life.reason or 'requests'}", now, rules, then=S.STOPPED
            )
        case S.STOPPING:
            return replace(life, deadline=_after(now, _clearing(rules))), (Action.CLEAR,)
        case S.BACKOFF:
            return _pending(life, f"trying again after: {life.last_error}", now)
        case S.STOPPED | S.FAILED:
            return life, ()
    raise _unknown(life.state)


def _not_ready(life: Life, now: datetime) -> str:
    if life.ready_at is not None:
        return f"did not recover in {(now - life.since).total_seconds():.0f} s: {life.reason}"
    since = life.started or life.since
    return f"not ready {(now - since).total_seconds():.0f} s after its start: {life.reason}"


def _drain_asked(life: Life, event: DrainAsked, now: datetime) -> Step:
    if life.state not in (S.LOADING, S.READY):
        return life, ()
    deadline = _after(now, DRAIN_SETTLE + event.timeout)
    return _to(life, S.DRAINING, "published as draining", now, deadline=deadline), (Action.DRAIN,)


def _stop_asked(life: Life, event: StopAsked, now: datetime, rules: Rules) -> Step:
    reason = f"stop asked: {event.reason}" if event.reason else "stop asked"
    match life.state:
        case S.STOPPED:
            return life, ()
        case S.STOPPING:
            return replace(life, then=S.STOPPED, reason=reason), ()
        case _:
            return _clear(life, reason, now, rules, then=S.STOPPED)


def _gone(life: Life, event: Gone, now: datetime, rules: Rules) -> Step:
    if life.state is not S.STOPPING:
        return life, ()
    return _end_of_clearing(life, event.note or life.reason, now, rules)


def _end_of_clearing(life: Life, reason: str, now: datetime, rules: Rules) -> Step:
    match life.then:
        case S.BACKOFF:
            return _back_off(life, life.last_error or reason, now, rules)
        case S.FAILED:
            return _fail(life, life.last_error or reason, now)
        case S.PENDING:
            return _pending(life, reason, now)
        case _:
            stopped = _to(life, S.STOPPED, reason, now, deadline=None, next_try=None, adopted=False)
            return stopped, (Action.REST,)


def _survived(life: Life, event: SurvivedKill, now: datetime) -> Step:
    if life.state is not S.STOPPING:
        return life, ()
    error = (
        f"{event.who} survived SIGKILL: the kernel holds it; see its stack in /proc, a reboot may be needed"
    )
    return replace(life, reason=error, last_error=error, deadline=_after(now, CLEAR_AGAIN)), ()


def _adopted(life: Life, now: datetime, rules: Rules) -> Step:
    match life.state:
        case S.STOPPING:
            return replace(life, deadline=_after(now, _clearing(rules))), (Action.CLEAR,)
        case S.DRAINING:
            deadline = max(life.deadline or now, _after(now, 1))
            return replace(life, deadline=deadline), (Action.DRAIN,)
        case S.STOPPED | S.FAILED:
            # Its end was on record and yet it runs: finish what was recorded.
            return _clear(life, "found running after its end", now, rules, then=life.state)
        case _:
            fresh = _after(now, rules.timeouts.adopt_ready)
            was_ready = life.ready_at is not None
            deadline = fresh if was_ready or life.deadline is None else max(life.deadline, fresh)
            adopted = _to(
                life,
                S.LOADING,
                "adopted, asking whether it is ready",
                now,
                deadline=deadline,
                started=life.started or now,
                launched=True,
                adopted=True,
                next_try=None,
            )
            return adopted, (Action.AWAIT_READY,)


def _resumed(life: Life, now: datetime, rules: Rules) -> Step:
    match life.state:
        case S.STOPPED | S.FAILED:
            return life, ()
        case S.STOPPING | S.DRAINING:
            return _clear(
                life, life.reason, now, rules, then=life.then if life.state is S.STOPPING else S.STOPPED
            )
        case S.BACKOFF:
            return replace(life, deadline=life.next_try or now), (Action.REST,)
        case S.STARTING | S.LOADING | S.READY:
            # The agent died between its order and the engine; sidecars may be there.
            return _clear(life, "starting again after the agent's restart", now, rules, then=S.PENDING)
        case _:
            return _pending(life, "going on after the agent's restart", now)


def _rebooted(life: Life, now: datetime, rules: Rules) -> Step:
    match life.state:
        case S.STOPPED | S.FAILED:
            return life, ()
        case S.STOPPING | S.DRAINING if life.then is S.STOPPED or life.state is S.DRAINING:
            ended = _to(life, S.STOPPED, "the machine was rebooted", now, deadline=None, adopted=False)
            return ended, (Action.REST,)
        case _ if not rules.local:
            return _fail(life, "the machine was rebooted; its replica is restarted as a whole", now)
        case _:
            fresh = replace(life, attempts=0, started=None, ready_at=None, adopted=False)
            return _pending(fresh, "starting again after a reboot", now)


# ---- Ends --------------------------------------------------------------------------------------------


def _clearing(rules: Rules) -> float:
    """Seconds until clearing that has told nothing is begun again."""
    return rules.timeouts.stop + rules.timeouts.kill + GPU_RETURN + CLEAR_AGAIN


def _clear(life: Life, reason: str, now: datetime, rules: Rules, *, then: ShardState) -> Step:
    deadline = _after(now, _clearing(rules))
    cleared = _to(life, S.STOPPING, reason, now, deadline=deadline, next_try=None, then=then, adopted=False)
    return cleared, (Action.CLEAR,)


def _failure(life: Life, error: str, now: datetime, rules: Rules, *, at: datetime | None = None) -> Step:
    """The engine has failed, now or ``at``; what is left of it is cleared away before anything else."""
    attempts = life.attempts + 1
    then = _after_failure(attempts, rules)
    told = _given_up(error, attempts, rules) if then is S.FAILED else error
    failed = replace(life, attempts=attempts, last_error=told, failed_at=at or now)
    return _clear(failed, told, now, rules, then=then)


def _after_failure(attempts: int, rules: Rules) -> ShardState:
    if not rules.local or attempts >= rules.restart.give_up_after:
        return S.FAILED
    return S.BACKOFF


def _given_up(error: str, attempts: int, rules: Rules) -> str:
    if not rules.local:
        return error
    return f"given up after {attempts} {'attempt' if attempts == 1 else 'attempts'}: {error}"


def _back_off(life: Life, error: str, now: datetime, rules: Rules) -> Step:
    # 2**30 is beyond any maximum; the bound keeps the power small.
    doubled = rules.restart.backoff * 2 ** min(max(life.attempts - 1, 0), 30)
    at = _after(now, min(doubled, rules.restart.max_backoff))
    return _to(life, S.BACKOFF, error, now, deadline=at, next_try=at, adopted=False), (Action.REST,)


def _fail(life: Life, error: str, now: datetime) -> Step:
    life = replace(life, failed_at=life.failed_at or now)
    failed = _to(life, S.FAILED, error, now, deadline=None, next_try=None, last_error=error, adopted=False)
    return failed, (Action.REST,)
