"""Of every small fleet whose models differ in priority: who goes is of lower priority, not protected and not out of sight, nobody
goes to and fro, and in the end nobody waits for room who could have it."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core.planner import plan
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.facts import Facts
from llmgw.model.manifest import PlacementRules, Restart, Rollout
from llmgw.model.plan import Action, Change, Plan
from llmgw.model.report import Observed, Reach
from llmgw.model.struct import replace
from llmgw.wire import codec
from tests.core.builders import ADAPTERS, NodeState, desired, facts, gpu, model, node, profile
from tests.core.fleets import OPTIONS, Fleet, fleet
from tests.core.test_plan_properties import BAD, dooms, sound

ROUNDS = 50
ALLOW = replace(OPTIONS, allow_prune=True)
NAMES = ("gpu01", "gpu02", "gpu03")


@st.composite
def machine(draw: st.DrawFn, name: str) -> NodeState:
    count = draw(st.integers(1, 3))
    linked = draw(st.booleans())
    gpus = tuple(
        gpu(name, index, nvlink_peers=(f"GPU-{name}-{index ^ 1}",) if linked else ())
        for index in range(count)
    )
    return NodeState(name, replace(facts(name), gpus=gpus))


@st.composite
def asked(draw: st.DrawFn, name: str) -> DesiredModel:
    runs = draw(
        st.sampled_from(
            [
                profile(gpus=1),
                profile(gpus=2),
                profile(share=40 * 2**30),
                profile(nodes=2, restart=Restart(give_up_after=2)),
            ]
        )
    )
    return model(
        name,
        runs,
        args=draw(st.sampled_from([(), (), ("--other",), (BAD,)])),
        replicas=draw(st.integers(0, 2)),
        priority=draw(st.integers(1, 3)),
        protect=draw(st.sampled_from([False, False, True])),
        placement=PlacementRules(spread=draw(st.sampled_from(["none", "node"]))),
        rollout=Rollout(
            max_surge=draw(st.integers(0, 1)), max_unavailable=draw(st.sampled_from(["auto", 1]))
        ),
    )


@st.composite
def wishes(draw: st.DrawFn) -> Desired:
    names = draw(st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True, min_size=1, max_size=4))
    return desired([node(name) for name in NAMES], [draw(asked(name)) for name in sorted(names)])


def evicted(made: Plan) -> list[Change]:
    return [it for it in made.changes if it.keyword == "evicted" and it.action is Action.REMOVE]


def only_whom_it_may(world: Fleet, made: Plan) -> None:
    models = world.desired.models
    comes = {it.address: it for it in made.changes if it.evicts}
    for change in evicted(made):
        who, whom = models[change.model or ""], comes[change.evicted_for]
        assert change.previous in whom.evicts
        assert who.spec.priority < models[whom.model or ""].spec.priority
        assert not who.spec.protect
        replica = world.record.replicas[change.previous or ""]
        assert all(world.nodes[rank.node].reach is Reach.OK for rank in replica.ranks)


def one_round(world: Fleet) -> list[Change]:
    made = world.plan(ALLOW)
    only_whom_it_may(world, made)
    gone = evicted(made)
    world.one_pass(ALLOW)
    world.advance()
    return gone


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_nobody_goes_to_and_fro(data: st.DataObject) -> None:
    states = [data.draw(machine(name)) for name in NAMES]
    world = fleet(data.draw(wishes()), states)
    world.fails, world.check = dooms, sound
    for _ in range(data.draw(st.integers(0, 12))):
        one_round(world)
    world.desired = data.draw(wishes())
    rounds = [one_round(world) for _ in range(ROUNDS)]
    went = Counter((it.previous, it.evicted_for) for gone in rounds for it in gone)
    assert not any(rounds[-10:]), "still evicting"
    times = Counter(who for who, _ in went)
    assert max(times.values(), default=0) <= 1, "one copy went twice"
    ordinals = Counter(it.address for it in {it.previous: it for gone in rounds for it in gone}.values())
    above = sum(it.spec.replicas for it in world.desired.models.values())
    assert max(ordinals.values(), default=0) <= above, ordinals
    last = world.plan(ALLOW)
    assert not last.commands, last.changes


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_trouble_evicts_nobody_whom_it_may_not(data: st.DataObject) -> None:
    states = [data.draw(machine(name)) for name in NAMES]
    world = fleet(data.draw(wishes()), states)
    world.fails, world.check = dooms, sound
    for _ in range(data.draw(st.integers(4, 14))):
        state = data.draw(st.sampled_from(states))
        state.reach = data.draw(st.sampled_from([Reach.OK, Reach.OK, Reach.UNREACHABLE]))
        if data.draw(st.integers(0, 3)) == 0:
            world.desired = data.draw(wishes())
        one_round(world)
    for state in states:
        state.reach = Reach.OK
    rounds = [one_round(world) for _ in range(ROUNDS // 2)]
    assert not any(rounds[-5:])


# ---- the same whatever the order ---------------------------------------------------------------------


def turned(data: st.DataObject, found: Facts) -> Facts:
    return replace(found, gpus=tuple(data.draw(st.permutations(found.gpus))))


def shuffled(data: st.DataObject, seen: Observed) -> Observed:
    nodes = {}
    for name in data.draw(st.permutations(sorted(seen.nodes))):
        of = seen.nodes[name]
        report = of.report
        if report is not None:
            found = turned(data, report.facts)
            shards = tuple(data.draw(st.permutations(report.shards)))
            jobs = tuple(data.draw(st.permutations(report.jobs)))
            of = replace(of, facts=found, report=replace(report, facts=found, shards=shards, jobs=jobs))
        nodes[name] = of
    return replace(seen, nodes=nodes)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_plan_is_the_same_in_whatever_order_things_are_told(data: st.DataObject) -> None:
    world = fleet(data.draw(wishes()), [data.draw(machine(name)) for name in NAMES])
    world.fails = dooms
    for _ in range(data.draw(st.integers(0, 8))):
        one_round(world)
    world.desired = data.draw(wishes())
    seen = world.observe()
    first = codec.dumps(world.plan(ALLOW))
    record = replace(
        world.record,
        replicas={
            it: world.record.replicas[it] for it in data.draw(st.permutations(list(world.record.replicas)))
        },
        models={it: world.record.models[it] for it in data.draw(st.permutations(list(world.record.models)))},
    )
    asked_for = replace(
        world.desired,
        models={
            it: world.desired.models[it] for it in data.draw(st.permutations(list(world.desired.models)))
        },
        nodes={it: world.desired.nodes[it] for it in data.draw(st.permutations(list(world.desired.nodes)))},
    )
    again = plan(asked_for, record, shuffled(data, seen), ADAPTERS, now=world.now, options=ALLOW)
    assert codec.dumps(again) == first
