"""Whatever happens to a fleet while models roll: the planner's own doing never leaves fewer ready than the rollout allows."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.model.desired import Desired
from llmgw.model.ids import parse_replica_id
from llmgw.model.manifest import Restart, Rollout
from llmgw.model.plan import Step, StepKind
from llmgw.model.report import ShardReport
from llmgw.model.struct import replace
from tests.core.builders import NodeState, desired, facts, model, node, profile
from tests.core.fleets import OPTIONS, Fleet, fleet
from tests.core.test_plan_properties import BAD, dooms, sound

ALLOW = replace(OPTIONS, allow_prune=True)
NAMES = ("gpu01", "gpu02")
ENDED = ("stopped", "failed")


@dataclass
class Watch:
    """What is promised of one model. ``served``: ordinals that ever were ready."""

    world: Fleet
    served: set[int] = field(default_factory=set)

    def ready(self) -> list[ShardReport]:
        """Leaders that answer, of replicas that were not told to go."""
        return [
            shard
            for state in self.world.nodes.values()
            for shard in state.shards.values()
            if shard.model == "chat" and shard.state == "ready" and shard.rank == 0 and self._whole(shard)
        ]

    def _whole(self, leader: ShardReport) -> bool:
        ranks = [
            shard
            for state in self.world.nodes.values()
            for shard in state.shards.values()
            if shard.replica == leader.replica and shard.state == "ready"
        ]
        return len(ranks) == leader.ranks

    def note(self) -> None:
        names = (parse_replica_id(shard.replica) for shard in self.ready())
        self.served |= {name.ordinal for name in names if name is not None}

    def before(self, step: Step) -> bool:
        """Called before each step is carried out; refuses none."""
        self.note()
        if step.kind not in (StepKind.DRAIN, StepKind.STOP) or step.model != "chat":
            return False
        ready = self.ready()
        if step.replica not in {shard.replica for shard in ready}:
            return False
        spec = self.world.desired.models["chat"].spec
        asked = spec.rollout.max_unavailable
        if asked == "auto":
            return False
        least = min(len(self.served), spec.replicas) - asked
        left = len([shard for shard in ready if shard.replica != step.replica])
        assert left >= least, f"{step.id} leaves {left} ready of {spec.replicas}, {asked} may be missing"
        return False


def lab(replicas: int, *, surge: int, down: int, args: tuple[str, ...], nodes: int) -> Desired:
    runs = profile(nodes=nodes, restart=Restart(give_up_after=2))
    rollout = Rollout(max_surge=surge, max_unavailable=down)
    chat = model("chat", runs, args=args, replicas=replicas, rollout=rollout)
    return desired([node(name) for name in NAMES], [chat])


def lose(state: NodeState, key: str) -> None:
    del state.shards[key]


def die(state: NodeState, key: str) -> None:
    state.shards[key] = replace(state.shards[key], state="failed", last_error="it died", attempts=6)


def surprise(state: NodeState, key: str) -> None:
    """Its node is not what the plan took for granted."""
    shard = state.shards[key]
    state.shards[key] = replace(
        shard, state="failed", started=None, attempts=0, last_error="mismatch: GPU is not free"
    )


def nothing(state: NodeState, key: str) -> None:
    del state, key


TROUBLE: list[Callable[[NodeState, str], None]] = [lose, die, surprise, nothing, nothing]


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_never_fewer_ready_than_allowed_by_its_own_doing(data: st.DataObject) -> None:
    states = [NodeState(name, facts(name, gpus=data.draw(st.integers(2, 3)))) for name in NAMES]
    nodes = data.draw(st.sampled_from([1, 1, 1, 2]))
    shape = {"surge": data.draw(st.integers(0, 2)), "down": data.draw(st.integers(0, 1)), "nodes": nodes}
    count = data.draw(st.integers(1, 3))
    world = fleet(lab(count, args=(), **shape), states)
    watch = Watch(world)
    world.refuses, world.check, world.fails = watch.before, sound, dooms
    world.settle(ALLOW)
    for _ in range(data.draw(st.integers(2, 14))):
        if data.draw(st.integers(0, 3)) == 0:
            args = data.draw(st.sampled_from([(), ("--b",), ("--c",), (BAD,)]))
            count = data.draw(st.integers(1, 3))
            world.desired = lab(count, args=args, **shape)
        state = data.draw(st.sampled_from(states))
        living = sorted(key for key, shard in state.shards.items() if shard.state not in ENDED)
        if living:
            data.draw(st.sampled_from(TROUBLE))(state, data.draw(st.sampled_from(living)))
        world.one_pass(ALLOW)
        world.advance()
    world.settle(ALLOW)
