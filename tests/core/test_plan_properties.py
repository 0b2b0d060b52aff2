"""What holds for every fleet and every history: plan after apply is empty, planning twice gives the same bytes, claims are
never exceeded at any moment, and a rollout keeps as many ready as it promised."""

from collections import Counter
from collections.abc import Callable
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core.planner import plan
from llmgw.model.desired import Desired, DesiredModel, DesiredNode
from llmgw.model.facts import Facts
from llmgw.model.manifest import GIB, PlacementRules, Restart, Rollout, Size
from llmgw.model.plan import Action, Step
from llmgw.model.report import Reach
from llmgw.model.struct import replace
from llmgw.wire import codec
from tests.core.builders import ADAPTERS, NodeState, desired, facts, gpu, model, node, profile
from tests.core.fleets import OPTIONS, Fleet, fleet

LIMITS: st.SearchStrategy[int | Literal["auto"]] = st.sampled_from(["auto", 0, 1, 2])
ENDED = ("stopped", "failed")
BAD = "--bad"


def dooms(step: Step) -> bool:
    """Replicas with the bad flag never get ready."""
    return step.launch is not None and BAD in step.launch.processes[-1].argv


# ---- what must hold after every single step ----------------------------------------------------------


def claims_hold(world: Fleet) -> None:
    """Of everything that lives on a node: whole GPUs once, shares within the GPU, memory and ports."""
    for state in world.nodes.values():
        live = [shard for shard in state.shards.values() if shard.state not in ENDED]
        totals = {gpu.uuid: gpu.memory_total for gpu in state.facts.gpus}
        used: Counter[str] = Counter()
        for shard in live:
            for claim in shard.claims.gpus:
                used[claim.uuid] += totals[claim.uuid] if claim.memory is None else claim.memory
        for uuid, taken in used.items():
            assert taken <= totals[uuid], f"{uuid} of {state.name} is claimed beyond its memory"
        ports = Counter(port for shard in live for port in shard.claims.ports)
        assert max(ports.values(), default=0) <= 1, f"two shards of {state.name} have one port"
        assert sum(shard.claims.memory for shard in live) <= state.facts.memory_total


def nothing_unrecorded(world: Fleet) -> None:
    """Whatever lives was recorded before it was started."""
    for state in world.nodes.values():
        for shard in state.shards.values():
            if shard.state not in ENDED:
                assert shard.replica in world.record.replicas, f"{shard.shard} runs and nobody recorded it"


def gangs_are_whole(world: Fleet) -> None:
    """All ranks have a place or none has: each on a node of its own, all on GPUs of one class."""
    classes = {gpu.uuid: gpu.gpu_class for state in world.nodes.values() for gpu in state.facts.gpus}
    for replica in world.record.replicas.values():
        nodes = [rank.node for rank in replica.ranks]
        assert len(set(nodes)) == len(nodes) == replica.spec.profile.nodes
        assert len({classes[gpu.uuid] for rank in replica.ranks for gpu in rank.gpus}) <= 1
    for endpoint in world.record.endpoints:
        leader = world.record.replicas[endpoint.replica].ranks[0]
        assert (endpoint.address, endpoint.port) == (leader.address, leader.ports[0])


def sound(world: Fleet) -> None:
    claims_hold(world)
    nothing_unrecorded(world)
    gangs_are_whole(world)


# ---- fleets and wishes -------------------------------------------------------------------------------

shapes = st.sampled_from(
    [
        profile(gpus=1),
        profile(gpus=2),
        profile(gpus=1, share=20 * GIB),
        profile(gpus=1, share=50 * GIB),
        profile(gpus=0, memory=Size(24 * GIB)),
        profile(gpus=1, nodes=2, restart=Restart(give_up_after=2)),
        profile(gpus=0, nodes=3, memory=Size(24 * GIB), restart=Restart(give_up_after=3)),
    ]
)


@st.composite
def models(draw: st.DrawFn, name: str) -> DesiredModel:
    args = draw(st.sampled_from([(), ("--a",), ("--b",), (BAD,)]))
    rollout = Rollout(
        max_surge=draw(st.integers(0, 2)),
        max_unavailable=draw(LIMITS),
        auto_revert=draw(st.booleans()),
    )
    return model(
        name,
        draw(shapes),
        args=args,
        replicas=draw(st.integers(0, 3)),
        priority=draw(st.integers(1, 3)),
        rollout=rollout,
        aliases=draw(st.sampled_from([(), ("default",)])),
        placement=PlacementRules(spread=draw(st.sampled_from(["none", "node"]))),
    )


@st.composite
def wishes(draw: st.DrawFn, nodes: tuple[DesiredNode, ...]) -> Desired:
    names = draw(st.lists(st.sampled_from(["chat", "code", "embed"]), unique=True, max_size=3))
    cordoned = draw(st.sampled_from([None, *(each.name for each in nodes)]))
    return desired(
        [
            replace(each, spec=replace(each.spec, cordon=True)) if each.name == cordoned else each
            for each in nodes
        ],
        [draw(models(name)) for name in sorted(names)],
    )


def _facts(name: str, gpus: int, *, memory: int) -> Facts:
    """Of one class or another: the ranks of a gang must be alike."""
    kind = tuple(gpu(name, index, memory=memory * GIB) for index in range(gpus))
    return replace(facts(name), gpus=kind)


@st.composite
def machines(draw: st.DrawFn) -> tuple[tuple[DesiredNode, ...], list[NodeState]]:
    count = draw(st.integers(1, 3))
    names = [f"gpu{number:02d}" for number in range(1, count + 1)]
    states = [
        NodeState(
            name,
            _facts(name, draw(st.integers(0, 3)), memory=draw(st.sampled_from([80, 80, 45]))),
            reach=draw(st.sampled_from([Reach.OK, Reach.NO_AGENT])),
        )
        for name in names
    ]
    return tuple(node(name) for name in names), states


ALLOW = replace(OPTIONS, allow_prune=True)


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_after_an_apply_there_is_nothing_to_plan(data: st.DataObject) -> None:
    nodes, states = data.draw(machines())
    world = fleet(data.draw(wishes(nodes)), states)
    world.fails, world.check = dooms, sound
    for _ in range(data.draw(st.integers(1, 3))):
        last = world.settle(ALLOW)
        left = [change for change in last.changes if change.action is not Action.BLOCKED]
        assert not left, left
        assert not last.steps
        world.desired = data.draw(wishes(nodes))
        for _ in range(data.draw(st.integers(0, 3))):
            # The next wish comes in the middle of the last one's rollout.
            world.one_pass(ALLOW)
            world.advance()
            world.desired = data.draw(wishes(nodes))
    world.settle(ALLOW)


def rank_dies(state: NodeState, which: int) -> None:
    """Of a gang: a single shard would be started again by its agent."""
    living = [key for key, it in sorted(state.shards.items()) if it.ranks > 1 and it.state not in ENDED]
    if living:
        key = living[which % len(living)]
        state.shards[key] = replace(state.shards[key], state="failed", last_error="it died")


def of_kind(kind: str) -> Callable[[Step], bool]:
    return lambda step: step.kind.value == kind


def dying(world: Fleet) -> None:
    claims_hold(world)
    gangs_are_whole(world)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_trouble_in_between_breaks_no_claim_and_is_overcome(data: st.DataObject) -> None:
    nodes, states = data.draw(machines())
    world = fleet(data.draw(wishes(nodes)), states)
    world.fails, world.check = dooms, dying
    for _ in range(data.draw(st.integers(2, 8))):
        trouble = data.draw(st.sampled_from(["cut", "mend", "lose", "die", "refuse", "agent", "none"]))
        state = data.draw(st.sampled_from(states))
        world.refuses = lambda _: False
        if trouble == "cut":
            state.reach, state.error = Reach.UNREACHABLE, "no route"
        elif trouble == "mend":
            state.reach = Reach.OK
        elif trouble == "agent" and state.reach is Reach.OK:
            state.reach = Reach.NO_AGENT
        elif trouble == "lose" and state.shards:
            del state.shards[data.draw(st.sampled_from(sorted(state.shards)))]
        elif trouble == "die":
            rank_dies(state, data.draw(st.integers(0, 5)))
        elif trouble == "refuse":
            world.refuses = of_kind(data.draw(st.sampled_from(["start", "drain", "stop"])))
        world.one_pass(ALLOW)
        if data.draw(st.booleans()):
            world.advance()
    for state in states:
        state.reach = Reach.OK
    world.refuses = lambda _: False
    world.settle(ALLOW)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_planning_twice_gives_the_same_bytes(data: st.DataObject) -> None:
    nodes, states = data.draw(machines())
    world = fleet(data.draw(wishes(nodes)), states)
    for _ in range(data.draw(st.integers(0, 3))):
        world.one_pass(ALLOW)
        world.advance()
    world.desired = data.draw(wishes(nodes))
    first = codec.dumps(world.plan(ALLOW))
    seen = world.observe()
    turned = replace(seen, nodes=dict(reversed(list(seen.nodes.items()))))
    shuffled = replace(
        world.desired,
        nodes=dict(reversed(list(world.desired.nodes.items()))),
        models=dict(reversed(list(world.desired.models.items()))),
    )
    assert codec.dumps(world.plan(ALLOW)) == first
    again = plan(shuffled, world.record, turned, ADAPTERS, now=world.now, options=ALLOW)
    assert codec.dumps(again) == first


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_a_rollout_keeps_what_it_promised(data: st.DataObject) -> None:
    count, surge = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 2))
    down = data.draw(LIMITS)
    gpus = data.draw(st.integers(count, count + 2))
    rollout = Rollout(max_surge=surge, max_unavailable=down)
    box = NodeState("gpu01", facts("gpu01", gpus=gpus))
    world = fleet(desired([node("gpu01")], [model("chat", replicas=count, rollout=rollout)]), [box])
    world.settle()
    world.desired = desired(
        [node("gpu01")], [model("chat", replicas=count, rollout=rollout, args=("--new",))]
    )
    may_be_down = 1 if down == "auto" else down
    fits = gpus > count and surge > 0

    def promised(world: Fleet) -> None:
        sound(world)
        copies = [shard for shard in box.shards.values() if shard.state not in ENDED]
        assert len(copies) <= count + surge
        assert world.ready("chat") >= count - may_be_down
        if down == "auto" and fits:
            assert world.ready("chat") == count or len(copies) > count

    world.check = promised
    last = world.settle()
    if fits or may_be_down:
        assert not last.changes
        assert {replica.spec.model.args for replica in world.record.replicas.values()} == {("--new",)}
    else:
        assert {change.keyword for change in last.changes} == {"no-surge"}
        assert world.ready("chat") == count


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_new_spec_that_never_gets_ready_costs_nothing(data: st.DataObject) -> None:
    count, gpus = data.draw(st.integers(1, 3)), data.draw(st.integers(4, 6))
    box = NodeState("gpu01", facts("gpu01", gpus=gpus))
    good = desired([node("gpu01")], [model("chat", replicas=count)])
    world = fleet(good, [box])
    world.settle()
    world.fails = dooms
    world.check = lambda world: _serves(world, count)
    world.desired = desired([node("gpu01")], [model("chat", replicas=count, args=(BAD,))])
    last = world.settle()
    assert [change.keyword for change in last.changes] == ["held"]
    world.desired = good
    assert not world.settle().changes


def _serves(world: Fleet, count: int) -> None:
    sound(world)
    assert world.ready("chat") == count
