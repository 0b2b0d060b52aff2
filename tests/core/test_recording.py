"""What the record says before a pass, after it, and when something only happened."""

from datetime import timedelta

from llmgw.core.record import recording
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.manifest import GIB
from llmgw.model.plan import Step, StepKind, StepOutcome, StepResult
from llmgw.model.record import NodeRecord, Outcome, Record, ReplicaPhase
from llmgw.model.report import Exit, JournalEntry, Observed, Reach
from llmgw.model.struct import replace
from llmgw.model.weights import Measured, Weights
from tests.core.builders import FLEET, KEY, NOW, NodeState, a_pass, desired, facts, gpu, model, node
from tests.core.fleets import Fleet, fleet


def box(name: str = "gpu01", *, gpus: int = 2) -> NodeState:
    return NodeState(name, facts(name, gpus=gpus))


def lab(*models: DesiredModel) -> Desired:
    return desired([node("gpu01")], models)


def settled(wanted: Desired, *states: NodeState) -> Fleet:
    world = fleet(wanted, states)
    world.settle()
    return world


def begun(world: Fleet) -> tuple[Fleet, list[Step]]:
    made, seen = world.plan(), world.observe()
    intent = recording.begin(world.record, world.desired, made, seen, pass_record=a_pass(1, world.now))
    world.record = intent
    return world, list(made.steps)


def test_the_intent_names_every_replica_before_it_is_started() -> None:
    world = fleet(lab(model("chat", replicas=2)), [box()])
    begun(world)
    record = world.record
    assert record.serial == 1
    assert record.key_id == KEY
    assert record.commit == world.desired.commit
    assert [replica.phase for replica in record.replicas.values()] == [ReplicaPhase.STARTING] * 2
    assert record.models["chat"].placements == {"0": 1, "1": 1}
    assert record.nodes["gpu01"].facts is not None
    assert not record.endpoints
    assert {replica.origin.serial for replica in record.replicas.values()} == {1}


def test_what_only_a_later_pass_can_do_is_not_recorded_yet() -> None:
    world = settled(lab(model("chat")), box(gpus=1))
    world.desired = lab(model("chat", args=("--new",)))
    begun(world)
    assert [replica.phase for replica in world.record.replicas.values()] == [ReplicaPhase.DRAINING]
    assert [endpoint.state for endpoint in world.record.endpoints] == ["draining"]
    assert world.record.replicas[next(iter(world.record.replicas))].draining_since == world.now


def test_a_start_that_was_refused_is_not_left_as_running() -> None:
    world = fleet(lab(model("chat")), [box()])
    world.refuses = lambda step: step.kind is StepKind.START
    world.one_pass()
    record = world.record
    assert not record.replicas
    assert record.models["chat"].placements == {"0": 1}, "its number is used up"
    assert record.last_pass is not None
    assert record.last_pass.outcome is Outcome.PARTIAL
    assert "refused by the test" in record.last_pass.errors[0]
    world.refuses = lambda _: False
    world.settle()
    assert [replica.n for replica in world.record.replicas.values()] == [2]


def test_a_start_whose_answer_never_came_stays_recorded() -> None:
    world = fleet(lab(model("chat")), [box()])
    made, seen = world.plan(), world.observe()
    intent = recording.begin(world.record, world.desired, made, seen, pass_record=a_pass())
    results = {step.id: StepResult(outcome=StepOutcome.UNKNOWN) for step in made.steps}
    after = recording.end(intent, made, results, seen, now=world.now)
    assert len(after.replicas) == 1
    assert after.last_pass is not None
    assert after.last_pass.outcome is Outcome.PARTIAL


def test_a_start_that_nobody_answers_for_was_never_there() -> None:
    world = fleet(lab(model("chat")), [box()])
    made, seen = world.plan(), world.observe()
    intent = recording.begin(world.record, world.desired, made, seen, pass_record=a_pass())
    assert not recording.end(intent, made, {}, seen, now=world.now).replicas


def test_a_drain_that_failed_is_taken_back() -> None:
    world = settled(lab(model("chat"), model("old")), box())
    world.desired = lab(model("chat"))
    world.refuses = lambda step: step.kind is StepKind.DRAIN
    world.one_pass()
    assert {replica.phase for replica in world.record.replicas.values()} == {ReplicaPhase.SERVING}
    assert len(world.record.endpoints) == 2


def test_a_node_whose_first_agent_could_not_be_installed_is_no_node_yet() -> None:
    world = fleet(lab(model("chat")), [NodeState("gpu01", facts("gpu01"), reach=Reach.NO_AGENT)])
    world.refuses = lambda step: step.kind is StepKind.BOOTSTRAP
    world.one_pass()
    assert not world.record.nodes
    world.refuses = lambda _: False
    world.settle()
    assert world.record.nodes["gpu01"].agent_version == "0.1.0"


def test_ready_is_news_and_folding_it_twice_changes_nothing() -> None:
    world = fleet(lab(model("chat")), [box()])
    world.one_pass()
    world.advance()
    world.advance()
    seen = world.observe()
    once = recording.observe(world.record, seen, world.now, grace=300)
    assert [replica.phase for replica in once.replicas.values()] == [ReplicaPhase.SERVING]
    assert once.models["chat"].last_good == world.desired.models["chat"].spec_digest
    assert [endpoint.state for endpoint in once.endpoints] == ["ready"]
    assert recording.observe(once, seen, world.now + timedelta(hours=1), grace=300) is once


def test_what_changes_by_itself_every_minute_is_no_news() -> None:
    world = settled(lab(model("chat")), box())
    state = world.nodes["gpu01"]
    busy = replace(gpu("gpu01", 0), memory_used=70 * GIB, memory_free=10 * GIB)
    state.facts = replace(
        state.facts, gpus=(busy, *state.facts.gpus[1:]), memory_available=5, listening=(18000,)
    )
    assert recording.observe(world.record, world.observe(), world.now, grace=300) is world.record


def test_an_engine_that_died_is_no_longer_an_endpoint_and_its_exit_is_kept() -> None:
    world = settled(lab(model("chat")), box())
    state = world.nodes["gpu01"]
    (key,) = state.shards
    end = Exit(at=world.now, signal=9, out_of_memory=True)
    state.shards[key] = replace(state.shards[key], state="backoff", last_exit=end)
    seen = recording.observe(world.record, world.observe(), world.now, grace=300)
    assert not seen.endpoints
    (replica,) = seen.replicas.values()
    assert replica.last_exit == end
    assert replica.phase is ReplicaPhase.SERVING


def test_since_when_a_node_is_unreachable_is_kept_until_it_answers() -> None:
    world = settled(lab(model("chat")), box())
    world.nodes["gpu01"].reach = Reach.UNREACHABLE
    first = recording.observe(world.record, world.observe(), world.now, grace=300)
    later = recording.observe(first, world.observe(), world.now + timedelta(hours=1), grace=300)
    assert later.nodes["gpu01"].unreachable_since == world.now
    world.nodes["gpu01"].reach = Reach.OK
    assert (
        recording.observe(later, world.observe(), world.now, grace=300).nodes["gpu01"].unreachable_since
        is None
    )


def test_a_removed_model_is_dropped_with_its_last_replica() -> None:
    world = settled(lab(model("chat"), model("old")), box())
    world.desired = lab(model("chat"))
    world.one_pass()
    assert world.record.models["old"].removed
    world.settle()
    assert set(world.record.models) == {"chat"}


def test_a_removed_model_without_replicas_is_dropped_at_once() -> None:
    world = settled(lab(model("chat"), model("idle", replicas=0)), box())
    world.desired = lab(model("chat"))
    world.settle()
    assert set(world.record.models) == {"chat"}


def test_a_renamed_model_keeps_its_replicas_their_ids_and_its_counts() -> None:
    world = settled(lab(model("chat", served_name="chat")), box())
    before = set(world.record.replicas)
    old = world.desired.models["chat"]
    world.desired = lab(replace(old, name="talk", renamed_from="chat"))
    world.settle()
    assert set(world.record.models) == {"talk"}
    assert world.record.models["talk"].id_prefix == "chat"
    assert set(world.record.replicas) == before
    assert {endpoint.model for endpoint in world.record.endpoints} == {"talk"}


def test_a_name_that_is_taken_is_no_rename() -> None:
    world = settled(lab(model("chat", served_name="a"), model("talk", served_name="b")), box())
    old = world.desired.models["talk"]
    world.desired = lab(replace(old, renamed_from="chat"))
    made = world.plan()
    assert [(change.model, change.keyword) for change in made.changes] == [("chat", "removed")]


def test_a_journal_too_long_for_one_report_is_read_to_its_end_by_the_next() -> None:
    """The cursor went to the journal's last number, and what one report could not hold was never read."""
    observed = Observed(nodes={"gpu01": box().observation()})
    report = observed.nodes["gpu01"].report
    assert report is not None
    entry = JournalEntry(number=1000, at=NOW, kind="problem", subject="gpu01", text="the thousandth")
    part = replace(report, journal=(entry,), journal_last=2500)
    seen = Observed(nodes={"gpu01": replace(observed.nodes["gpu01"], report=part)})
    record = Record(fleet=FLEET, nodes={"gpu01": NodeRecord(name="gpu01", address="", journal_cursor=0)})
    assert recording.observe(record, seen, NOW, grace=300).nodes["gpu01"].journal_cursor == 1000
    rest = replace(part, journal=(), journal_last=2500)
    seen = Observed(nodes={"gpu01": replace(observed.nodes["gpu01"], report=rest)})
    assert recording.observe(record, seen, NOW, grace=300).nodes["gpu01"].journal_cursor == 2500


# ---- sizes -------------------------------------------------------------------------------------------------


def said(key: str = "k", *, kv: str = "21.5", replica: str = "chat-1") -> Measured:
    return Measured(key=key, about="chat on h100-80g", values={"kv": (kv,)}, replica=replica)


def after(world: Fleet, *shards: Measured, weights: dict[str, Weights] | None = None) -> Record:
    """The record once the nodes' shards have said something, one each."""
    seen = world.observe()
    node_ = seen.nodes["gpu01"]
    assert node_.report is not None
    told = zip(node_.report.shards, shards, strict=False)
    report = replace(node_.report, shards=tuple(replace(shard, measured=it) for shard, it in told))
    observed = Observed(nodes={"gpu01": replace(node_, report=report)}, weights=weights)
    return recording.observe(world.record, observed, world.now, grace=300)


def test_what_engines_say_of_their_memory_is_kept_and_the_newest_counts() -> None:
    world = settled(lab(model("chat", replicas=2)), box())
    world.record = after(world, said(), said("other"))
    assert set(world.record.measured) == {"k", "other"}
    assert after(world, said(replica="chat-2"), said("other")).measured == world.record.measured
    assert after(world, said(kv="20.0"), said("other")).measured["k"].values == {"kv": ("20.0",)}


def test_a_start_that_failed_takes_nothing_away_from_what_is_known() -> None:
    world = settled(lab(model("chat")), box())
    whole = Measured(key="k", about="chat", values={"kv": ("21.5",), "weights": ("15",)})
    world.record = after(world, whole)
    part = Measured(key="k", about="chat", values={"weights": ("15",)})
    assert after(world, part).measured["k"] == replace(whole, serial=world.record.serial)


def test_weights_that_are_asked_for_are_kept_and_others_dropped() -> None:
    world = settled(lab(model("chat")), box())
    known = Weights(digest="d", description="chat's", size=7)
    broken = Weights(digest="e", description="other's", problem="no config.json")
    world.record = after(world, weights={"d": known, "e": broken})
    assert world.record.weights == {"d": known}
    assert after(world).weights == {"d": known}, "nobody looked"
    assert after(world, weights={}).weights == {}, "no model asks for them any more"
