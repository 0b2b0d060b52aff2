"""Who makes room for whom, who never does, who comes back, and that nobody goes to and fro."""

from datetime import timedelta

import pytest

from llmgw.core.show.render import plan_text
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.ids import digest
from llmgw.model.manifest import GIB, PlacementRules, Restart, Rollout, Size, Source
from llmgw.model.plan import Action, Change, Plan, Step, StepKind
from llmgw.model.record import Record
from llmgw.model.report import JobReport, Reach
from llmgw.model.struct import replace
from llmgw.wire import codec
from tests.core.builders import NOW, NodeState, desired, facts, model, node, profile
from tests.core.fleets import OPTIONS, Fleet, fleet


def box(name: str = "gpu01", *, gpus: int = 1) -> NodeState:
    return NodeState(name, facts(name, gpus=gpus))


def lab(*models: DesiredModel, nodes: tuple[str, ...] = ("gpu01",)) -> Desired:
    return desired([node(name) for name in nodes], models)


def low(name: str = "low", **spec: object) -> DesiredModel:
    spec.setdefault("priority", 10)
    return model(name, None, **spec)


def high(name: str = "high", gpus: int = 1, **spec: object) -> DesiredModel:
    spec.setdefault("priority", 200)
    return model(name, profile(gpus=gpus), **spec)


def settled(wanted: Desired, *states: NodeState) -> Fleet:
    world = fleet(wanted, states)
    world.settle()
    return world


def told(made: Plan) -> dict[str, str]:
    return {change.address: change.keyword for change in made.changes}


def change(made: Plan, address: str) -> Change:
    return next(each for each in made.changes if each.address == address and each.ordinal is not None)


def running(world: Fleet) -> set[str]:
    return {f"{it.model}/{it.ordinal}" for it in world.record.replicas.values()}


# ---- room is made --------------------------------------------------------------------------------------


def test_one_of_lower_priority_is_drained_and_the_new_one_starts_after_its_stop() -> None:
    world = settled(lab(low()), box())
    world.desired = lab(low(), high())
    made = world.plan()
    goes, comes = change(made, "model/low/0"), change(made, "model/high/0")
    assert (goes.action, goes.keyword, goes.evicted_for) == (Action.REMOVE, "evicted", "model/high/0")
    assert (comes.action, comes.evicts) == (Action.CREATE, (goes.previous,))
    assert "priority 200 over 10" in goes.reason
    assert "low does not answer" in goes.outage
    steps = {step.id: step for step in made.steps}
    start = next(step for step in made.steps if step.kind is StepKind.START)
    (stopped,) = (steps[name] for name in start.after if name.startswith("await-stopped"))
    (stop,) = (steps[name] for name in stopped.after)
    assert (stop.kind, stop.replica) == (StepKind.STOP, goes.previous)
    assert any(step.kind is StepKind.DRAIN and step.replica == goes.previous for step in made.steps)
    world.one_pass()
    assert world.ready("high") == 0
    last = world.settle()
    assert (world.ready("high"), world.ready("low")) == (1, 0)
    assert told(last) == {"model/low/0": "evicted"}


def test_text_and_json_say_who_goes_and_for_whom() -> None:
    world = settled(lab(low()), box())
    world.desired = lab(low(), high())
    made = world.plan()
    text = plan_text(made)
    assert "makes room for model/high/0 (priority 200 over 10); it comes back when there is room" in text
    assert f"evicts   {change(made, 'model/low/0').previous}" in text
    assert made.unchanged == 0
    assert codec.loads(Plan, codec.dumps(made), strict=True) == made


def test_who_was_evicted_waits_and_says_for_whom_and_since_which_commit() -> None:
    world = settled(lab(low()), box())
    world.desired = lab(low(), high())
    blocked = change(world.settle(), "model/low/0")
    assert blocked.action is Action.BLOCKED
    assert blocked.reason.startswith("waits for room: evicted for model/high/0 (commit cccccccccc, serial ")
    known = world.record.models["low"]
    assert not known.attempts
    assert known.held is None
    assert known.evicted["0"].made_room_for == "model/high/0"
    assert codec.loads(Record, codec.dumps(world.record), strict=True) == world.record


def test_it_comes_back_by_itself_once_the_other_is_gone() -> None:
    world = settled(lab(low()), box())
    world.desired = lab(low(), high())
    world.settle()
    world.desired = lab(low())
    seen = []
    for _ in range(20):
        seen += [each.keyword for each in world.one_pass().changes if each.address == "model/low/0"]
        world.advance()
    assert "room-again" in seen
    assert running(world) == {"low/0"}
    assert not world.record.models["low"].evicted
    assert not world.plan().changes


def test_it_comes_back_elsewhere_when_a_node_is_added() -> None:
    world = settled(lab(low()), box())
    world.desired = lab(low(), high())
    world.settle()
    world.nodes["gpu02"] = box("gpu02")
    world.desired = lab(low(), high(), nodes=("gpu01", "gpu02"))
    assert not world.settle().changes
    assert running(world) == {"low/0", "high/0"}


def test_the_place_of_one_that_was_evicted_goes_to_nobody_of_lower_priority_than_it() -> None:
    world = settled(lab(low(), low("lowest", priority=1)), box(gpus=2))
    world.desired = lab(low(), low("lowest", priority=1), high())
    world.settle()
    assert running(world) == {"low/0", "high/0"}
    world.desired = lab(low(), low("lowest", priority=1), high(), high("higher", priority=300))
    world.settle()
    assert running(world) == {"high/0", "higher/0"}
    world.desired = lab(low(), low("lowest", priority=1), high())
    world.settle()
    assert running(world) == {"low/0", "high/0"}


# ---- who goes ----------------------------------------------------------------------------------------


def test_the_lowest_priority_goes_first_and_no_more_than_is_needed() -> None:
    three = (low("a", priority=30), low("b", priority=20), low("c", priority=10))
    world = settled(lab(*three), box(gpus=3))
    world.desired = lab(*three, high())
    assert [it.model for it in world.plan().changes if it.keyword == "evicted"] == ["c"]
    world.desired = lab(*three, high(gpus=2))
    assert [it.model for it in world.plan().changes if it.keyword == "evicted"] == ["b", "c"]


def test_of_equally_low_ones_as_few_as_possible_go() -> None:
    small, large = low("small", replicas=2), model("large", profile(gpus=2), priority=10)
    world = settled(lab(small, large), box(gpus=4))
    world.desired = lab(small, large, high(gpus=2))
    assert [it.model for it in world.plan().changes if it.keyword == "evicted"] == ["large"]


def test_what_is_free_already_is_used_before_anybody_goes() -> None:
    names = ("gpu01", "gpu02")
    spread = PlacementRules(spread="node")
    world = settled(lab(low(replicas=3, placement=spread), nodes=names), box(gpus=2), box("gpu02", gpus=2))
    world.desired = lab(low(replicas=3, placement=spread), high(gpus=2), nodes=names)
    made = world.plan()
    assert [it.previous for it in made.changes if it.keyword == "evicted"] == list(
        change(made, "model/high/0").evicts
    )
    assert len(change(made, "model/high/0").evicts) == 1


def test_the_highest_ordinal_goes_first_and_one_that_serves_nobody_before_all() -> None:
    world = settled(lab(low(replicas=2)), box(gpus=2))
    world.desired = lab(low(replicas=2), high())
    assert [it.address for it in world.plan().changes if it.keyword == "evicted"] == ["model/low/1"]
    (first,) = (it.id for it in world.record.replicas.values() if it.ordinal == 0)
    shards = world.nodes["gpu01"].shards
    shards[f"{first}-r0"] = replace(shards[f"{first}-r0"], state="loading")
    assert [it.address for it in world.plan().changes if it.keyword == "evicted"] == ["model/low/0"]


def test_shares_make_room_for_a_share_and_for_a_whole_gpu() -> None:
    part = model("part", profile(share=40 * GIB), priority=10, replicas=2)
    world = settled(lab(part), box())
    world.desired = lab(part, model("high", profile(share=30 * GIB), priority=200))
    assert len(change(world.plan(), "model/high/0").evicts) == 1
    world.desired = lab(part, high())
    assert len(change(world.plan(), "model/high/0").evicts) == 2


def test_memory_makes_room_for_what_computes_on_the_cpu() -> None:
    def hungry(name: str, priority: int) -> DesiredModel:
        return model(name, profile(gpus=0, memory=Size(40 * GIB)), priority=priority)

    world = settled(lab(hungry("low", 10)), box())
    world.desired = lab(hungry("low", 10), hungry("high", 200))
    world.settle()
    assert running(world) == {"high/0"}


# ---- who never goes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [low(priority=200), low(priority=201), low(protect=True)])
def test_equals_higher_and_protected_ones_never_go(kept: DesiredModel) -> None:
    world = settled(lab(kept), box())
    world.desired = lab(kept, high())
    last = world.settle()
    assert running(world) == {"low/0"}
    assert told(last) == {"model/high/0": "no-room"}


def test_nobody_goes_in_vain() -> None:
    world = settled(lab(low(), low("kept", protect=True)), box(gpus=2))
    world.desired = lab(low(), low("kept", protect=True), high(gpus=2))
    assert told(world.settle()) == {"model/high/0": "no-room"}
    assert running(world) == {"low/0", "kept/0"}


def test_nobody_goes_before_what_the_new_one_needs_is_there() -> None:
    url = "https://example.org/x.gguf"
    world = settled(lab(low()), box())
    world.desired = lab(low(), high(source=Source(url=url)))
    first = world.one_pass()
    assert StepKind.AWAIT_JOBS in {step.kind for step in first.steps}
    assert world.ready("low") == 1
    assert not world.record.models["low"].evicted, "it has not gone yet"
    world.settle()
    assert running(world) == {"high/0"}


def test_nobody_goes_for_one_whose_download_fails() -> None:
    url = "https://example.org/x.gguf"
    world = settled(lab(low()), box())
    world.desired = lab(low(), high(source=Source(url=url)))
    job = f"fetch-{digest(url)[:8]}"
    world.nodes["gpu01"].jobs[job] = JobReport(
        job=job,  # type: ignore[arg-type] # plain text
        kind="fetch",
        target=digest(url),
        description=url,
        state="failed",
        ended=NOW,
        error="404 Not Found",
    )
    assert told(world.plan()) == {"model/high/0": "job-failed"}
    assert world.ready("low") == 1


def test_nobody_goes_from_a_node_that_can_not_be_asked() -> None:
    world = settled(lab(low()), box())
    world.nodes["gpu01"].reach = Reach.UNREACHABLE
    world.desired = lab(low(), high())
    made = world.plan()
    assert change(made, "model/high/0").keyword == "no-room"
    assert not made.steps


def test_while_the_brake_holds_nobody_goes_anywhere() -> None:
    four = (*NAMES, "gpu04")
    there = low(placement=PlacementRules(nodes=("gpu01",)))
    rest = [low(f"low{name}", placement=PlacementRules(nodes=(name,))) for name in four[1:]]
    world = settled(lab(there, *rest, nodes=four), *(box(name) for name in four))
    for name in ("gpu03", "gpu04"):
        world.nodes[name].reach = Reach.UNREACHABLE
    world.desired = lab(there, *rest, high(), nodes=four)
    for _ in range(5):
        world.one_pass()
        world.advance()
    assert world.ready("low") == 1
    assert change(world.plan(), "model/high/0").keyword == "no-room"
    world.nodes["gpu03"].reach = Reach.OK
    world.one_pass()
    assert "evicted" in told(world.plan()).values() or world.ready("low") == 0


def test_an_extra_copy_of_a_rollout_evicts_nobody() -> None:
    world = settled(lab(low(), high()), box(gpus=2))
    world.desired = lab(low(), high(args=("--new",)))
    made = world.plan()
    assert [each.action for each in made.changes] == [Action.DESTROY_BEFORE_CREATE]
    world.settle()
    assert running(world) == {"low/0", "high/0"}


def test_one_that_grows_takes_its_own_place_and_that_of_a_lower_one() -> None:
    world = settled(lab(low(), high()), box(gpus=2))
    world.desired = lab(low(), high(gpus=2))
    made = world.plan()
    comes = change(made, "model/high/0")
    assert comes.action is Action.DESTROY_BEFORE_CREATE
    assert len(comes.evicts) == 1
    assert comes.outage
    world.settle()
    assert running(world) == {"high/0"}
    world.desired = lab(low(), high(gpus=2, rollout=Rollout(max_unavailable=0)))
    assert not world.settle().commands


def test_with_no_outage_allowed_nobody_goes_for_one_that_may_not_go_itself() -> None:
    patient = Rollout(max_unavailable=0)
    world = settled(lab(low(), high(rollout=patient)), box(gpus=2))
    world.desired = lab(low(), high(gpus=2, rollout=patient))
    assert told(world.settle()) == {"model/high/0": "no-surge"}
    assert running(world) == {"low/0", "high/0"}


def test_one_in_the_middle_of_its_own_replacement_is_left_until_that_is_done() -> None:
    world = settled(lab(low()), box(gpus=2))
    world.desired = lab(low(args=("--new",)))
    world.one_pass()
    world.desired = lab(low(args=("--new",)), high(gpus=2))
    made = world.one_pass()
    assert "evicted" not in told(made).values()
    world.settle()
    assert running(world) == {"high/0"}


def test_one_that_has_just_taken_over_is_not_evicted_while_its_predecessor_goes() -> None:
    world = settled(lab(low(), nodes=("gpu01", "gpu02")), box("gpu01"), box("gpu02"))
    (first,) = (rank.node for it in world.record.replicas.values() for rank in it.ranks)
    (second,) = {"gpu01", "gpu02"} - {first}
    wanted = lab(low(), nodes=("gpu01", "gpu02"))
    draining = replace(wanted.nodes[first], spec=replace(wanted.nodes[first].spec, drain=True))
    world.desired = replace(wanted, nodes={**wanted.nodes, first: draining})
    world.one_pass()  # its successor starts, and is ready when the next pass looks
    assert {rank.node for it in world.record.replicas.values() for rank in it.ranks} == {first, second}
    world.advance()
    world.advance()
    world.desired = replace(lab(low(), high(), nodes=("gpu01", "gpu02")), nodes=world.desired.nodes)
    made = world.plan()
    drained = {step.node for step in made.steps if step.kind is StepKind.DRAIN}
    assert drained == {first}, "one of two goes, not both"
    world.settle()
    assert running(world) == {"high/0"}


def test_a_plan_for_the_one_that_comes_alone_has_the_other_go_too() -> None:
    world = settled(lab(low()), box())
    world.desired = lab(low(), high())
    only = replace(OPTIONS, targets=("model/high",))
    assert set(told(world.plan(only))) == {"model/high/0", "model/low/0"}
    for _ in range(12):
        world.one_pass(only)
        world.advance()
    assert running(world) == {"high/0"}
    assert not world.record.models["low"].removed
    assert told(world.settle()) == {"model/low/0": "evicted"}


# ---- gangs -------------------------------------------------------------------------------------------


def gang(name: str, priority: int, *, nodes: int = 2) -> DesiredModel:
    return model(name, profile(nodes=nodes, restart=Restart(give_up_after=2)), priority=priority)


NAMES = ("gpu01", "gpu02", "gpu03")


def test_a_gang_gets_room_on_every_node_or_nobody_goes() -> None:
    kept = low("kept", protect=True, placement=PlacementRules(nodes=("gpu02",)))
    there = low(placement=PlacementRules(nodes=("gpu01",)))
    world = settled(lab(kept, there, nodes=NAMES[:2]), box(), box("gpu02"))
    world.desired = lab(kept, there, gang("high", 200), nodes=NAMES[:2])
    assert told(world.settle()) == {"model/high/0": "no-room"}
    assert running(world) == {"kept/0", "low/0"}
    two = low(replicas=2)
    world = settled(lab(two, nodes=NAMES[:2]), box(), box("gpu02"))
    world.desired = lab(two, gang("high", 200), nodes=NAMES[:2])
    assert len(change(world.plan(), "model/high/0").evicts) == 2
    world.settle()
    assert running(world) == {"high/0"}


def test_a_gang_that_is_evicted_frees_all_its_nodes() -> None:
    world = settled(lab(gang("low", 10), nodes=NAMES[:2]), box(), box("gpu02"))
    world.desired = lab(gang("low", 10), high(), nodes=NAMES[:2])
    world.settle()
    assert running(world) == {"high/0"}
    assert not world.record.models["low"].attempts, "no attempt of it is counted"
    world.nodes["gpu03"] = box("gpu03")
    world.desired = lab(gang("low", 10), high(), nodes=NAMES)
    world.settle()
    assert running(world) == {"low/0", "high/0"}


def test_one_gang_makes_room_for_another_rather_than_two_single_ones() -> None:
    four = (*NAMES, "gpu04")
    ones = low("ones", replicas=2, placement=PlacementRules(nodes=four[:2]))
    pair = replace(
        gang("pair", 10), spec=replace(gang("pair", 10).spec, placement=PlacementRules(nodes=four[2:]))
    )
    world = settled(lab(ones, pair, nodes=four), *(box(name) for name in four))
    world.desired = lab(ones, pair, gang("high", 200), nodes=four)
    assert [world.record.replicas[it].model for it in change(world.plan(), "model/high/0").evicts] == ["pair"]


# ---- to and fro --------------------------------------------------------------------------------------


def bad(step: Step) -> bool:
    return step.launch is not None and step.launch.model == "high"


def evictions(world: Fleet, passes: int) -> int:
    count = 0
    for _ in range(passes):
        made = world.one_pass()
        count += sum(1 for each in made.changes if each.keyword == "evicted" and each.action is Action.REMOVE)
        world.advance()
    return count


def test_one_that_never_gets_ready_evicts_once_and_gives_the_room_back() -> None:
    world = settled(lab(low()), box())
    world.fails = bad
    world.desired = lab(low(), high())
    assert evictions(world, 40) == 1
    assert running(world) == {"low/0"}
    assert told(world.plan()) == {"model/high": "held"}


def test_a_gang_that_keeps_failing_evicts_once_and_gives_the_room_back() -> None:
    world = settled(lab(low(replicas=2), nodes=NAMES[:2]), box(), box("gpu02"))
    world.fails = bad
    world.desired = lab(low(replicas=2), gang("high", 200), nodes=NAMES[:2])
    assert evictions(world, 60) == 2, "each of the two once"
    assert running(world) == {"low/0", "low/1"}


def test_a_node_that_is_never_as_planned_costs_one_eviction() -> None:
    world = settled(lab(low()), box())
    world.desired = lab(low(), high())
    count = 0
    for _ in range(40):
        made = world.one_pass()
        count += sum(1 for each in made.changes if each.keyword == "evicted" and each.action is Action.REMOVE)
        world.now += timedelta(seconds=7)
        world.advance()
        for key, shard in world.nodes["gpu01"].shards.items():
            if shard.model == "high" and shard.state in ("loading", "ready"):
                world.nodes["gpu01"].shards[key] = replace(
                    shard, state="failed", started=None, attempts=0, last_error="mismatch: GPU is not free"
                )
    assert count == 1


def test_what_comes_back_needs_nobody_else_to_go() -> None:
    world = settled(lab(low(), low("lowest", priority=1)), box(gpus=2))
    world.desired = lab(low(), low("lowest", priority=1), high(gpus=2))
    world.settle()
    assert running(world) == {"high/0"}
    world.desired = lab(low(), low("lowest", priority=1), high(gpus=1))
    assert evictions(world, 30) == 0
    assert running(world) == {"high/0", "low/0"}
    assert told(world.plan()) == {"model/lowest/0": "evicted"}


def test_evicted_replicas_do_not_hold_up_the_rollout_of_those_that_stayed() -> None:
    world = settled(lab(low(replicas=2)), box(gpus=2))
    world.desired = lab(low(replicas=2), high())
    world.settle()
    world.desired = lab(low(replicas=2, args=("--new",)), high())
    last = world.settle()
    assert told(last) == {"model/low/1": "evicted"}
    assert {it.spec.model.args for it in world.record.replicas.values() if it.model == "low"} == {("--new",)}
