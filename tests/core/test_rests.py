"""What can't work now is not tried at every pass, and what waits for a stranger is not waited for."""

from datetime import timedelta

from llmgw.core.record.setbacks import LONGEST_REST
from llmgw.core.seen.alerts import alerts
from llmgw.model.ids import JobId
from llmgw.model.manifest import Duration, Restart, Source
from llmgw.model.plan import Plan, StepKind
from llmgw.model.report import JobReport, Reach
from llmgw.model.struct import replace
from tests.core.builders import NodeState, desired, facts, model, node, profile
from tests.core.fleets import OPTIONS, Fleet, fleet


def bare() -> Fleet:
    """One machine that can't be set up, and one that is well."""
    wanted = desired([node("gpu01"), node("gpu02")], [model("chat")])
    states = [
        NodeState("gpu01", facts("gpu01", gpus=4), reach=Reach.NO_AGENT),
        NodeState("gpu02", facts("gpu02")),
    ]
    world = fleet(wanted, states)
    world.refuses = lambda step: step.kind is StepKind.BOOTSTRAP
    return world


def bootstraps(made: Plan) -> list[str | None]:
    return [step.node for step in made.steps if step.kind is StepKind.BOOTSTRAP]


def test_a_machine_that_can_t_be_set_up_is_tried_twice_then_rests_ever_longer() -> None:
    world = bare()
    rests = []
    for _ in range(9):
        made = world.one_pass()
        assert bootstraps(made) == ["gpu01"]
        made = world.plan()
        if bootstraps(made):
            continue
        [change] = [each for each in made.blocked if each.address == "node/gpu01"]
        assert change.keyword == "setup-rests"
        assert "refused by the test; it is tried again from" in change.reason
        assert made.due is not None
        rests.append(made.due - world.now)
        world.now = made.due
    assert rests[:3] == [timedelta(minutes=1), timedelta(minutes=2), timedelta(minutes=4)]
    assert rests[-1] == LONGEST_REST
    [alert] = alerts(world.desired, world.record, world.observe())
    assert alert.id == "setup-failed/node/gpu01"


def test_what_would_go_there_goes_elsewhere_meanwhile() -> None:
    world = bare()
    world.one_pass()
    world.one_pass()
    assert "gpu01" in world.record.setbacks
    world.settle()
    (replica,) = world.record.replicas.values()
    assert replica.ranks[0].node == "gpu02"


def test_one_that_was_set_up_starts_from_nothing() -> None:
    world = bare()
    world.one_pass()
    world.refuses = lambda _: False
    world.one_pass()
    assert not world.record.setbacks


def displaced(error: str) -> Fleet:
    world = fleet(desired([node("gpu01")], [model("chat")]), [NodeState("gpu01", facts("gpu01"))])
    world.settle()
    state = world.nodes["gpu01"]
    (key,) = state.shards
    state.shards[key] = replace(state.shards[key], state="backoff", attempts=1, last_error=error)
    state.facts = replace(state.facts, listening=state.shards[key].claims.ports[:1])
    return world


def test_a_replica_whose_port_a_stranger_took_is_placed_at_another() -> None:
    world = displaced("mismatch: port 18000 is held by pid 77 (nc) of user ann")
    (old,) = world.record.replicas.values()
    [change] = [each for each in world.plan().changes if each.keyword == "displaced"]
    assert "somebody else listens on port 18000 of gpu01" in change.reason
    world.settle()
    (new,) = world.record.replicas.values()
    assert new.n == old.n + 1
    assert not set(new.ranks[0].ports) & set(old.ranks[0].ports)


def test_a_crash_alone_is_left_to_the_agent_although_facts_still_show_its_port() -> None:
    world = displaced("engine exited by itself with code 1")
    assert not world.plan().commands


def failed_job(world: Fleet, name: str) -> None:
    world.nodes["gpu01"].jobs[name] = JobReport(
        job=JobId(name), kind="fetch", target="t", description="old weights", state="failed", error="404"
    )


def test_a_failed_job_that_nobody_wants_is_dropped_with_the_next_commands_and_never_for_itself_alone() -> (
    None
):
    world = fleet(desired([node("gpu01")], [model("chat")]), [NodeState("gpu01", facts("gpu01", gpus=2))])
    world.settle()
    failed_job(world, "fetch-1f0c9a2b")
    assert not world.plan().commands
    world.desired = desired([node("gpu01")], [model("chat"), model("code")])
    [step] = [step for step in world.plan().steps if step.kind is StepKind.CANCEL]
    assert (step.node, step.job) == ("gpu01", "fetch-1f0c9a2b")
    world.settle()
    assert not world.nodes["gpu01"].jobs


def test_a_failed_job_that_is_still_wanted_stays_to_be_read() -> None:
    url = Source(url="http://weights.invalid/chat.gguf", sha256="0" * 64)
    world = fleet(
        desired([node("gpu01")], [model("chat", source=url)]), [NodeState("gpu01", facts("gpu01", gpus=2))]
    )
    [fetch] = [step.fetch for step in world.plan().steps if step.fetch is not None]
    failed_job(world, fetch.job)
    world.desired = replace(world.desired, models={**world.desired.models, "code": model("code")})
    made = world.plan()
    assert made.commands
    assert not [step for step in made.steps if step.kind is StepKind.CANCEL]


def test_a_gang_that_was_given_up_starts_again_when_somebody_asks_for_a_new_copy() -> None:
    runs = profile(nodes=2, restart=Restart(backoff=Duration(1), give_up_after=2))
    wanted = desired([node("gpu01"), node("gpu02")], [model("chat", runs)])
    world = fleet(wanted, [NodeState(name, facts(name)) for name in wanted.nodes])
    world.settle()
    world.fails = lambda _: True
    for state in world.nodes.values():
        state.shards = {key: replace(shard, state="failed") for key, shard in state.shards.items()}
    for _ in range(40):
        world.one_pass()
        world.advance()
    [given_up] = world.plan().blocked
    assert "llmgw apply --replace model/chat/0" in given_up.reason
    world.fails = lambda _: False
    world.one_pass(replace(OPTIONS, replaced={"model/chat/0": "ann"}))
    world.settle()
    assert world.ready("chat") == 1
