"""The table of a shard's states: what must hold whatever happens, and each turn that people rely on."""

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.life import (
    LIVE,
    TERMINAL,
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
from llmgw.core.lifecycle import describe_exit, newborn, step
from llmgw.model.launch import RestartPolicy, ShardTimeouts
from llmgw.model.report import Exit, ShardState
from llmgw.model.struct import replace

S = ShardState
NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
RULES = Rules(
    restart=RestartPolicy(backoff=10, max_backoff=60, give_up_after=4, reset_after=600),
    timeouts=ShardTimeouts(startup=100, adopt_ready=60, stop=30),
    rendezvous=300,
)
GANG = replace(RULES, local=False)
CRASH = Exited(exit=Exit(at=NOW, code=1, last_lines=("boom",)))

EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.sampled_from(
        (
            JobsWaiting(state=S.INSTALLING, reason="i"),
            JobsWaiting(state=S.FETCHING, reason="f"),
            JobsDone(),
            JobsFailed(error="no"),
            JobsFailed(error="later", retry=True),
            Launched(),
            LaunchRefused(error="no"),
            LaunchRefused(error="other", mismatch=True),
            LaunchRefused(error="half", processes=True),
            PortOpen(),
            Ready(),
            ProbeFailed(why="deaf"),
            Waiting(reason="w"),
            CRASH,
            DeadlinePassed(),
            DrainAsked(timeout=30),
            Drained(),
            StopAsked(),
            Gone(),
            SurvivedKill(who="pid 1"),
            Adopted(),
            Resumed(),
            Rebooted(),
        )
    )
)
HISTORIES = st.lists(st.tuples(EVENTS, st.floats(min_value=0, max_value=1000)), max_size=40)


def after(*events: Event, life: Life | None = None, now: datetime = NOW, rules: Rules = RULES) -> Life:
    life = life or step(newborn(now), Ordered(), now, rules)[0]
    for event in events:
        life, _ = step(life, event, now, rules)
    return life


LIFE_IN: dict[ShardState, Life] = {
    S.PENDING: after(),
    S.INSTALLING: after(JobsWaiting(state=S.INSTALLING, reason="i")),
    S.FETCHING: after(JobsWaiting(state=S.FETCHING, reason="f")),
    S.STARTING: after(JobsDone()),
    S.LOADING: after(JobsDone(), Launched(), PortOpen()),
    S.READY: after(JobsDone(), Launched(), PortOpen(), Ready()),
    S.DRAINING: after(JobsDone(), Launched(), PortOpen(), Ready(), DrainAsked(timeout=30)),
    S.STOPPING: after(JobsDone(), Launched(), CRASH),
    S.STOPPED: after(StopAsked(), Gone()),
    S.BACKOFF: after(JobsDone(), Launched(), CRASH, Gone()),
    S.FAILED: after(JobsFailed(error="no")),
}


def test_every_state_is_among_the_examples() -> None:
    assert {state: life.state for state, life in LIFE_IN.items()} == {state: state for state in S}


@given(HISTORIES, st.sampled_from((RULES, GANG)))
def test_whatever_happens_every_waiting_state_has_a_deadline_and_a_reason(
    history: list[tuple[Event, float]], rules: Rules
) -> None:
    life, now = after(rules=rules), NOW
    for event, seconds in history:
        now += timedelta(seconds=seconds)
        before = life
        life, actions = step(life, event, now, rules)
        if life.state in TERMINAL:
            assert life.deadline is None
            assert life.next_try is None
        elif life.state is not S.READY:
            assert life.deadline is not None
            assert life.reason
        assert (life.state is S.BACKOFF) == (life.next_try is not None)
        assert life.attempts <= rules.restart.give_up_after
        if life.state is not before.state:
            assert actions or isinstance(event, JobsWaiting)  # waiting for jobs goes on
            assert life.since == now
        # Nothing may follow a running engine before it has been cleared away; a reboot has done that.
        if before.state in LIVE - {S.STARTING} and not isinstance(event, Rebooted):
            assert life.state in LIVE | {S.DRAINING, S.STOPPING}


@given(HISTORIES)
def test_a_stop_is_never_forgotten(history: list[tuple[Event, float]]) -> None:
    life, now = after(StopAsked()), NOW
    for event, seconds in history:
        now += timedelta(seconds=seconds)
        life, _ = step(life, event, now, RULES)
        assert life.state in {S.STOPPING, S.STOPPED}


@pytest.mark.parametrize("state", list(S))
def test_stop_leads_from_every_state_to_stopped(state: ShardState) -> None:
    life, actions = step(LIFE_IN[state], StopAsked(reason="moved"), NOW, RULES)
    if state is S.STOPPED:
        assert (life.state, actions) == (S.STOPPED, ())
        return
    assert life.state is S.STOPPING
    assert actions == (() if state is S.STOPPING else (Action.CLEAR,))
    stopped, _ = step(life, Gone(), NOW, RULES)
    assert stopped.state is S.STOPPED
    assert "moved" in stopped.reason


def test_an_order_that_waits_for_no_job_is_launched_at_once_as_one_whose_jobs_are_done() -> None:
    at_once = step(newborn(NOW), Ordered(here=True), NOW, RULES)
    assert at_once == step(after(), JobsDone(), NOW, RULES)
    assert at_once[1] == (Action.LAUNCH,)


def test_a_healthy_life_begins_each_activity_once() -> None:
    life = newborn(NOW)
    begun: list[Action] = []
    for event in (
        Ordered(),
        JobsDone(),
        Launched(),
        PortOpen(),
        Ready(),
        DrainAsked(timeout=5),
        Drained(),
        Gone(),
    ):
        life, actions = step(life, event, NOW, RULES)
        begun += actions
    assert begun == [
        Action.AWAIT_JOBS,
        Action.LAUNCH,
        Action.AWAIT_PORT,
        Action.AWAIT_READY,
        Action.WATCH,
        Action.DRAIN,
        Action.CLEAR,
        Action.REST,
    ]
    assert life.state is S.STOPPED


def test_the_wait_doubles_up_to_its_maximum_and_then_it_is_given_up() -> None:
    life, waits = after(), []
    while life.state is not S.FAILED:
        life = after(JobsDone(), Launched(), CRASH, Gone(), life=life)
        if life.next_try is not None:
            waits.append((life.next_try - NOW).total_seconds())
            life = after(DeadlinePassed(), life=life)
    assert waits == [10, 20, 40]
    assert life.last_error == "given up after 4 attempts: engine exited by itself with code 1: boom"
    long = replace(LIFE_IN[S.LOADING], attempts=50)
    patient = replace(RULES, restart=RestartPolicy(backoff=10, max_backoff=60, give_up_after=1000))
    waiting = after(CRASH, Gone(), life=long, rules=patient)
    assert waiting.next_try == NOW + timedelta(seconds=60)


def test_startup_counts_from_the_launch_not_from_the_rendezvous() -> None:
    starting = LIFE_IN[S.STARTING]
    assert starting.deadline == NOW + timedelta(seconds=400)
    later = NOW + timedelta(seconds=250)
    launched, _ = step(starting, Launched(), later, RULES)
    assert launched.deadline == later + timedelta(seconds=100)
    assert launched.started == later


def test_being_ready_for_long_starts_the_count_anew() -> None:
    ready = after(Ready(), life=replace(LIFE_IN[S.LOADING], attempts=3))
    assert ready.deadline == NOW + timedelta(seconds=600)
    calm = after(DeadlinePassed(), life=ready)
    assert (calm.state, calm.attempts, calm.deadline) == (S.READY, 0, None)


def test_a_gang_is_not_restarted_here() -> None:
    life = after(JobsDone(), Launched(), CRASH, Gone(), rules=GANG)
    assert life.state is S.FAILED
    assert life.last_error == "engine exited by itself with code 1: boom"


def test_a_mismatch_fails_a_first_start_and_only_delays_a_later_one() -> None:
    wrong = LaunchRefused(error="mismatch: port 1 is taken", mismatch=True)
    assert after(JobsDone(), wrong).state is S.FAILED
    again = after(DeadlinePassed(), JobsDone(), wrong, life=LIFE_IN[S.BACKOFF])
    assert again.state is S.BACKOFF
    assert again.attempts == LIFE_IN[S.BACKOFF].attempts


def test_a_crash_while_draining_or_stopping_is_no_reason_to_start_again() -> None:
    assert after(CRASH, Gone(), life=LIFE_IN[S.DRAINING]).state is S.STOPPED
    assert after(StopAsked(), CRASH, Gone(), life=LIFE_IN[S.READY]).state is S.STOPPED


def test_the_first_end_is_the_cause_and_what_falls_after_it_is_not() -> None:
    sidecar = Exited(exit=Exit(at=NOW, process="ray", code=3))
    life = after(sidecar, Exited(exit=Exit(at=NOW, signal=15)), life=LIFE_IN[S.READY])
    assert life.last_exit == sidecar.exit
    stopped = after(StopAsked(), Exited(exit=Exit(at=NOW, signal=9)), life=LIFE_IN[S.READY])
    assert stopped.last_exit is not None
    assert stopped.last_exit.signal == 9


def test_a_run_went_wrong_when_its_engine_ended_or_when_it_was_found_late_not_when_it_was_cleared_away() -> (
    None
):
    died = Exited(exit=Exit(at=NOW - timedelta(seconds=9), code=1))
    assert after(died, Gone(), life=LIFE_IN[S.READY], rules=GANG).failed_at == died.exit.at
    late, _ = step(LIFE_IN[S.LOADING], DeadlinePassed(), NOW, GANG)
    cleared, _ = step(late, Exited(exit=Exit(at=NOW + timedelta(seconds=7), signal=15)), NOW, GANG)
    ended, _ = step(cleared, Gone(), NOW + timedelta(seconds=8), GANG)
    assert (ended.state, ended.failed_at) == (S.FAILED, NOW)
    assert after(StopAsked(), life=LIFE_IN[S.READY]).failed_at is None
    assert after(DeadlinePassed(), life=after(died, Gone(), life=LIFE_IN[S.READY])).failed_at is None


def test_survivors_keep_it_stopping_and_are_tried_again() -> None:
    life = after(StopAsked(), SurvivedKill(who="pid 7"), life=LIFE_IN[S.READY])
    assert life.state is S.STOPPING
    assert "pid 7 survived SIGKILL" in life.reason
    again, actions = step(life, DeadlinePassed(), NOW, RULES)
    assert (again.state, actions) == (S.STOPPING, (Action.CLEAR,))


def test_an_adopted_one_that_was_ready_is_asked_again_and_never_killed_for_being_slow() -> None:
    life, actions = step(LIFE_IN[S.READY], Adopted(), NOW, RULES)
    assert (life.state, actions) == (S.LOADING, (Action.AWAIT_READY,))
    assert life.deadline is not None
    assert life.deadline >= NOW + timedelta(seconds=60)
    for _ in range(100):
        life, actions = step(life, DeadlinePassed(), NOW, RULES)
        assert (life.state, actions) == (S.LOADING, ())
    assert life.reason.startswith("slow after adoption: ")
    assert after(Ready(), life=life).state is S.READY


def test_an_adopted_one_that_answers_nothing_and_does_nothing_is_given_up_as_one_that_is_ready() -> None:
    adopted = after(Adopted(), life=LIFE_IN[S.READY])
    life, actions = step(adopted, ProbeFailed(why="silent"), NOW, RULES)
    ready, _ = step(LIFE_IN[S.READY], ProbeFailed(why="silent"), NOW, RULES)
    assert (life.state, actions) == (S.LOADING, (Action.AWAIT_READY,))
    assert (life.reason, life.deadline) == (ready.reason, ready.deadline)
    assert after(Ready(), life=life).state is S.READY
    given_up = after(DeadlinePassed(), life=life)
    assert (given_up.state, given_up.then) == (S.STOPPING, S.BACKOFF)
    never = after(Adopted(), life=replace(LIFE_IN[S.LOADING], ready_at=None))
    assert step(never, ProbeFailed(why="silent"), NOW, RULES) == (never, ())


@pytest.mark.parametrize("state", [S.STARTING, S.LOADING])
def test_an_adopted_one_that_was_never_ready_has_the_rest_of_its_startup_and_no_more(
    state: ShardState,
) -> None:
    begun = replace(LIFE_IN[state], ready_at=None, deadline=NOW + timedelta(seconds=600))
    life, actions = step(begun, Adopted(), NOW, RULES)
    assert (life.state, actions) == (S.LOADING, (Action.AWAIT_READY,))
    assert life.deadline == begun.deadline
    late, _ = step(replace(begun, deadline=NOW - timedelta(hours=1)), Adopted(), NOW, RULES)
    assert late.deadline == NOW + timedelta(seconds=RULES.timeouts.adopt_ready)
    given_up = after(DeadlinePassed(), life=life)
    assert given_up.state is S.STOPPING
    assert given_up.then is S.BACKOFF
    assert given_up.attempts == begun.attempts + 1


def test_a_slow_one_that_was_adopted_fails_when_it_exits() -> None:
    assert after(Adopted(), CRASH, Gone(), life=LIFE_IN[S.READY]).state is S.BACKOFF


def test_after_a_reboot_single_shards_start_again_and_ended_ones_stay_ended() -> None:
    for state in (S.STARTING, S.LOADING, S.READY, S.BACKOFF):
        life = after(Rebooted(), life=replace(LIFE_IN[state], attempts=2))
        assert (life.state, life.attempts) == (S.PENDING, 0)
    assert after(Rebooted(), life=LIFE_IN[S.DRAINING]).state is S.STOPPED
    assert after(StopAsked(), Rebooted(), life=LIFE_IN[S.READY]).state is S.STOPPED
    assert after(Rebooted(), life=LIFE_IN[S.FAILED]).state is S.FAILED
    for state in (S.PENDING, S.FETCHING, S.STARTING, S.LOADING, S.READY):
        assert after(Rebooted(), life=LIFE_IN[state], rules=GANG).state is S.FAILED, (
            "the controller starts it"
        )


def test_a_late_event_of_another_state_changes_nothing() -> None:
    for state in (S.STOPPED, S.FAILED, S.BACKOFF, S.STOPPING):
        for event in (Launched(), PortOpen(), Ready(), ProbeFailed(why="x"), JobsDone(), Drained()):
            assert step(LIFE_IN[state], event, NOW, RULES) == (LIFE_IN[state], ())


@pytest.mark.parametrize(
    ("exit_", "text"),
    [
        (Exit(at=NOW, code=0), "engine exited by itself with code 0"),
        (Exit(at=NOW, signal=9), "engine was ended by signal 9"),
        (Exit(at=NOW, code=1, traceback="Traceback\n  x\nValueError: bad"), "… code 1: ValueError: bad"),
        (Exit(at=NOW, code=1, out_of_memory=True), "… code 1, out of memory"),
        (Exit(at=NOW, detail="its shim was killed"), "engine has ended, unseen (its shim was killed)"),
    ],
)
def test_an_exit_is_one_line_for_people(exit_: Exit, text: str) -> None:
    assert describe_exit(exit_).endswith(text.removeprefix("… "))


def test_an_engine_that_was_told_to_stop_did_not_exit_by_itself() -> None:
    assert describe_exit(Exit(at=NOW, code=0), told=True) == "engine exited when told to stop, with code 0"
