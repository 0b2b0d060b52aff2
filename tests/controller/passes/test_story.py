"""What the state branch tells: sentences for people, bounded, with trailers that machines can read."""

from datetime import timedelta

from llmgw.controller.passes.difference import sentences, weighty
from llmgw.controller.passes.story import (
    SUBJECT_LENGTH,
    happened,
    intent_message,
    news_message,
    outcome_message,
    sentence,
)
from llmgw.controller.repo.records import entry_of
from llmgw.model.ids import Commit
from llmgw.model.plan import Plan, Step, StepKind, StepOutcome, StepResult
from llmgw.model.record import NodeRecord, Outcome, PassRecord, Record
from llmgw.model.report import JournalEntry, NodeObservation, Observed, Reach
from llmgw.model.struct import replace
from tests.controller.passes.doubles import FLEET, NOW, install, plan_of, report, start, step

PASS = PassRecord(
    serial=7,
    holder="ann@desk",
    trigger="manual",
    actor="ann@desk",
    commit=Commit("a" * 40),
    plan_digest="d" * 64,
    started=NOW,
    lease_until=NOW + timedelta(seconds=120),
)


def replica(name: str, on: str) -> Step:
    made = start(f"start {name}", on)
    return Step(
        id=made.id,
        kind=made.kind,
        reason=made.reason,
        node=on,
        model="chat",
        replica=name,
        shard=f"{name}-r0",
        launch=made.launch,
    )


def ended(outcome: Outcome, *errors: str) -> PassRecord:
    return PassRecord(
        serial=7,
        holder="ann@desk",
        trigger="manual",
        actor="ann@desk",
        commit=Commit("a" * 40),
        plan_digest="d" * 64,
        started=NOW,
        lease_until=NOW,
        outcome=outcome,
        ended=NOW,
        errors=errors,
    )


def results(plan: Plan, *failed: str) -> dict[str, StepResult]:
    return {
        it.id: StepResult(
            outcome=StepOutcome.FAILED if it.id in failed else StepOutcome.DONE, error="no space"
        )
        for it in plan.steps
    }


def test_replicas_are_counted_and_nodes_named() -> None:
    steps = [replica("chat-1f0c9a2b-0.1", "gpu01"), replica("chat-1f0c9a2b-1.1", "gpu02")]
    assert sentence(steps) == "Start 2 replicas of chat on gpu01 and gpu02"
    assert sentence(steps[:1], past=True) == "Started 1 replica of chat on gpu01"


def test_many_nodes_are_counted_after_the_first() -> None:
    steps = [replica(f"chat-1f0c9a2b-{n}.1", f"gpu{n:02}") for n in range(9)]
    assert sentence(steps) == "Start 9 replicas of chat on gpu00, gpu01 and 7 more"


def test_installs_are_told_only_where_nothing_greater_happens() -> None:
    assert (
        sentence([install("i"), replica("chat-1f0c9a2b-0.1", "gpu01")]) == "Start 1 replica of chat on gpu01"
    )
    assert sentence([install("i")]) == "Install engines on gpu01"


def test_an_intent_tells_only_what_this_pass_sends() -> None:
    plan = plan_of(
        replica("chat-1f0c9a2b-0.1", "gpu01"),
        step("w", StepKind.AWAIT_READY, after=("start chat-1f0c9a2b-0.1",)),
        step("x", StepKind.STOP, after=("w",)),
    )
    entry = entry_of(Commit("c" * 40), intent_message(plan, PASS))
    assert entry.subject == "Start 1 replica of chat on gpu01"
    assert dict(entry.trailers) == {
        "Llmgw-Serial": "7",
        "Llmgw-Manifests": "a" * 40,
        "Llmgw-Plan": "d" * 12,
        "Llmgw-Trigger": "manual",
        "Llmgw-Actor": "ann@desk",
    }


def test_an_outcome_tells_what_was_done_and_what_was_not() -> None:
    plan = plan_of(replica("chat-1f0c9a2b-0.1", "gpu01"), replica("chat-1f0c9a2b-1.1", "gpu02"))
    told = outcome_message(
        plan, ended(Outcome.PARTIAL, "start: no space"), results(plan, "start chat-1f0c9a2b-1.1")
    )
    entry = entry_of(Commit("c" * 40), told)
    assert entry.subject == "Started 1 replica of chat on gpu01; not: start 1 replica of chat on gpu02"
    assert "- start: no space" in entry.body
    assert dict(entry.trailers)["Llmgw-Outcome"] == "partial"


def test_what_nobody_knows_is_not_told_as_not_done() -> None:
    first, second = replica("chat-1f0c9a2b-0.1", "gpu01"), replica("chat-1f0c9a2b-1.1", "gpu02")
    for done, subject in (
        ((first,), "Started 1 replica of chat on gpu01; not known: start 1 replica of chat on gpu02"),
        ((), "Not known: start 1 replica of chat on gpu02"),
    ):
        came_of = {step.id: StepResult(outcome=StepOutcome.DONE) for step in done}
        came_of[second.id] = StepResult(outcome=StepOutcome.UNKNOWN, error="the line was lost")
        told = outcome_message(plan_of(*done, second), ended(Outcome.PARTIAL), came_of)
        assert entry_of(Commit("c" * 40), told).subject == subject


def test_an_interrupted_pass_says_so_first() -> None:
    plan = plan_of(replica("chat-1f0c9a2b-0.1", "gpu01"))
    told = outcome_message(plan, ended(Outcome.INTERRUPTED), results(plan))
    assert told.startswith("Interrupted: started 1 replica")


def test_who_signed_and_what_history_left_are_told() -> None:
    passed = replace(PASS, signer="ann@example.org with SHA256:abc", diverged_from=Commit("b" * 40))
    entry = entry_of(Commit("c" * 40), intent_message(plan_of(), passed))
    told = dict(entry.trailers)
    assert told["Llmgw-Signer"] == "ann@example.org with SHA256:abc"
    assert told["Llmgw-Diverged-From"] == "b" * 40
    assert f"Commit {'a' * 12} does not come after {'b' * 12}" in entry.body


def test_nothing_that_a_node_says_can_break_the_trailers() -> None:
    plan = plan_of(replica("chat-1f0c9a2b-0.1", "gpu01"))
    told = outcome_message(
        plan,
        ended(Outcome.FAILED, "boom\n\nLlmgw-Outcome: done"),
        results(plan, "start chat-1f0c9a2b-0.1"),
    )
    entry = entry_of(Commit("c" * 40), told)
    assert dict(entry.trailers)["Llmgw-Outcome"] == "failed"


def test_a_thousand_things_still_make_a_log_that_people_read() -> None:
    news = tuple(f"gpu{n:04} does not answer" for n in range(1000))
    told = news_message(news, PASS)
    assert len(told.splitlines()) < 80
    assert len(told.splitlines()[0]) < SUBJECT_LENGTH * 2
    assert "(and 999 more)" in told.splitlines()[0]


def test_only_what_nobody_commanded_is_news_oldest_first() -> None:
    journal = (
        JournalEntry(
            number=2, at=NOW + timedelta(seconds=1), kind="shard-exit", subject="chat-r0", text="died"
        ),
        JournalEntry(number=1, at=NOW, kind="agent-started", subject="gpu01", text="agent started"),
        JournalEntry(number=3, at=NOW, kind="fence", subject="gpu01", text="serial 7"),
        JournalEntry(
            number=4, at=NOW, kind="shard-exit", subject="old-r0", text="ended", fields={"told": "stop"}
        ),
    )
    observed = Observed(
        nodes={
            "gpu01": NodeObservation(node="gpu01", reach=Reach.OK, report=report("gpu01", journal=journal))
        }
    )
    assert happened(observed) == (
        "2030-01-01 12:00:00 gpu01: agent started",
        "2030-01-01 12:00:01 gpu01: chat-r0: died",
    )


def test_how_far_a_journal_was_read_is_no_news_but_a_reboot_is() -> None:
    before = Record(
        fleet=FLEET, nodes={"gpu01": NodeRecord(name="gpu01", address="", boot_id="a", journal_cursor=1)}
    )
    read_on = Record(
        fleet=FLEET, nodes={"gpu01": NodeRecord(name="gpu01", address="", boot_id="a", journal_cursor=9)}
    )
    rebooted = Record(fleet=FLEET, nodes={"gpu01": NodeRecord(name="gpu01", address="", boot_id="b")})
    assert sentences(before, read_on) == ()
    assert sentences(before, rebooted) == ("gpu01 was rebooted",)
    assert not weighty(before, rebooted)
