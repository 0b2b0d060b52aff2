"""Each promise, broken on purpose in a fleet that had settled: a check that can't fail proves nothing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest

from llmgw import __version__
from llmgw.agent.fakes import Process
from llmgw.model.claims import GpuClaim
from llmgw.model.ids import ReplicaId
from llmgw.model.record import ModelRecord, Outcome, PassRecord, Record, ReplicaPhase, ReplicaRecord
from llmgw.model.struct import replace
from llmgw.wire import codec
from llmgw.wire.messages import DrainParams, ForgetParams
from tests.sim.commits import OLD_AGENT, FleetWish, ModelWish, NodeWish, WindowWish
from tests.sim.history import look_closely, settled
from tests.sim.invariants import ENDING
from tests.sim.loop import VirtualLoop, run
from tests.sim.node import SimNode
from tests.sim.world import World

WISH = FleetWish(
    nodes=(NodeWish(name="node1", gpus=3),),
    models=(
        ModelWish(name="ant", shape="whole", replicas=2),
        ModelWish(name="bee", shape="share", protect=True),
    ),
)
HOURLY = WindowWish(kind="deny", every=60, minutes=30)
NEVER = WindowWish(kind="deny", every=60, minutes=60)
Plant = Callable[[World], Awaitable[None]]


def planted(plant: Plant, wish: FleetWish = WISH) -> str:
    """What the world says once ``plant`` has spoilt it."""
    worlds: list[World] = []

    async def main() -> None:
        world = World(Random(5), wish)
        worlds.append(world)
        try:
            assert await settled(world)
            assert not world.violations
            await plant(world)
        finally:
            world.close()

    run(main(), VirtualLoop())
    return "\n".join(worlds[0].violations)


# ---- what the tests take hold of ---------------------------------------------------------------------


def node_of(world: World) -> SimNode:
    return world.nodes["node1"]


def engine(world: World, model: str) -> Process:
    living = node_of(world).machine.living()
    return next(process for process in living if process.order.shard.startswith(f"{model}-"))


def record_of(world: World) -> Record:
    record = world.store.record
    assert record is not None
    return record


def replica_of(world: World, model: str) -> ReplicaRecord:
    return next(it for it in record_of(world).replicas.values() if it.model == model)


def changed(record: Record, replica: ReplicaRecord) -> Record:
    return replace(record, replicas={**record.replicas, replica.id: replica})


async def write(world: World, record: Record) -> None:
    await world.store.at("ann@desk").write(
        record, after=world.store.written[-1].version, message="planted", plan=None
    )


def last_pass(record: Record) -> PassRecord:
    assert record.last_pass is not None
    return record.last_pass


def begun(record: Record, **changes: Any) -> Record:
    """The record as the next pass would begin it."""
    serial = record.serial + 1
    passed = replace(last_pass(record), **{"serial": serial, "outcome": None, "ended": None, **changes})
    return replace(record, serial=serial, last_pass=passed)


async def intent(world: World, wish: FleetWish | None = None, *, created: datetime | None = None) -> int:
    """A pass begins, by the last plan that commanded something, but of a commit of its own if there is a wish, and made then."""
    plan = world.store.plans[max(world.store.plans)]
    if wish is not None:
        plan = replace(plan, basis=replace(plan.basis, commit=world.commits.add(wish)))
    plan = replace(plan, created=created or world.clock.now())
    record = replace(begun(record_of(world), lease_until=world.clock.now()), commit=plan.basis.commit)
    await world.store.at("ann@desk").write(
        record, after=world.store.written[-1].version, message="planted", plan=plan
    )
    return record.serial


def command(serial: int, shard: str, number: int = 1) -> dict[str, Any]:
    fence = {"fleet": "fleet", "serial": serial, "intent": "0"}
    return {"command": {"id": f"{serial}-planted {shard} {number}", "fence": fence}, "shard": shard}


async def sent(world: World, method: str, params: dict[str, Any]) -> None:
    """As the door does: it has come, and it was taken."""
    world.invariants.arrived("node1", method, params)
    world.invariants.accepted("node1", method, params)


# ---- machines ----------------------------------------------------------------------------------------


def test_two_engines_on_one_gpu() -> None:
    async def plant(world: World) -> None:
        process, specs = engine(world, "ant"), world.invariants.specs
        other = replace(process.order, shard="ant-00000000-7.1-r0", argv=("sim", "--port", "19000"))
        specs[other.shard] = specs[process.order.shard]
        node_of(world).machine.start(other)

    assert "one of them as a whole" in planted(plant)


def test_shares_that_are_more_than_the_gpu() -> None:
    async def plant(world: World) -> None:
        process, specs = engine(world, "bee"), world.invariants.specs
        for number in (7, 8):
            other = replace(
                process.order, shard=f"bee-00000000-{number}.1-r0", argv=("sim", "--port", f"1900{number}")
            )
            specs[other.shard] = specs[process.order.shard]
            node_of(world).machine.start(other)

    assert "claim more than" in planted(plant)


def test_two_engines_on_one_port() -> None:
    async def plant(world: World) -> None:
        process = engine(world, "ant")
        other = replace(process.order, shard="cpu-00000000-0.1-r0")
        spec = world.invariants.specs[process.order.shard]
        world.invariants.specs[other.shard] = replace(spec, claims=replace(spec.claims, gpus=()))
        node_of(world).machine.start(other)

    assert "both want port" in planted(plant)


def test_more_memory_than_the_machine_has() -> None:
    async def plant(world: World) -> None:
        process = engine(world, "ant")
        spec = world.invariants.specs[process.order.shard]
        claims = replace(spec.claims, memory=10**15)
        world.invariants.specs[process.order.shard] = replace(spec, claims=claims)
        world.invariants.began(node_of(world))

    assert "engines that live claim" in planted(plant)


def test_an_engine_that_nobody_asked_for() -> None:
    async def plant(world: World) -> None:
        order = replace(engine(world, "ant").order, shard="own-00000000-0.1-r0", argv=("sim",))
        node_of(world).machine.start(order)

    assert "nobody ever asked for it" in planted(plant)


def test_an_engine_that_is_started_while_it_lives() -> None:
    async def plant(world: World) -> None:
        process = engine(world, "ant")
        with pytest.raises(Exception, match="runs already"):
            node_of(world).machine.start(process.order)

    assert "TWICE" in planted(plant)


def test_a_serving_engine_that_is_ended_unasked() -> None:
    async def plant(world: World) -> None:
        node_of(world).machine.signalled(engine(world, "ant"), 15)

    assert "serves and was not told to go" in planted(plant)


def test_an_engine_that_is_ended_before_its_time_to_start_is_over() -> None:
    async def plant(world: World) -> None:
        process = engine(world, "ant")
        process.script = replace(process.script, ready_after=60.0)
        process.born = world.loop.elapsed - 2.0
        node_of(world).machine.signalled(process, 15)

    assert "which has had 2.0 s of 90 s to start" in planted(plant)


def test_an_engine_that_gets_ready_only_after_it_was_told_to_end_may_be_killed() -> None:
    async def plant(world: World) -> None:
        process = engine(world, "ant")
        process.script = replace(process.script, ignore_term=True, ready_after=None)
        node_of(world).machine.signalled(process, 15)
        process.script = replace(process.script, ready_after=1.0)
        assert node_of(world).machine.serves(process)
        node_of(world).machine.signalled(process, 9)

    assert planted(plant) == ""


# ---- agents ------------------------------------------------------------------------------------------


def test_an_agent_whose_death_takes_its_engines_along() -> None:
    async def plant(world: World) -> None:
        node, process = node_of(world), engine(world, "ant")
        node.kill_agent()
        node.machine.processes.pop((process.order.shard, process.order.process))
        assert node.fleet is not None
        await node.start_agent(node.fleet)

    assert "when the agent died and is None" in planted(plant)


def test_an_agent_that_forgets_what_runs() -> None:
    async def plant(world: World) -> None:
        node, process = node_of(world), engine(world, "ant")
        process.script = replace(process.script, traceless=True)
        node.kill_agent()
        del node.contents.files[f"shards/{process.order.shard}.json"]
        assert node.fleet is not None
        await node.start_agent(node.fleet)

    assert "the agent that answers does not know it" in planted(plant)


def test_a_fence_that_is_lowered() -> None:
    async def plant(world: World) -> None:
        files = node_of(world).contents.files
        files["state/owner.json"] = b'{"fleet": "fleet", "fence": {"serial": 0, "intent": "0"}}'
        await asyncio.sleep(10)

    assert "its fence went from" in planted(plant)


# ---- commands ----------------------------------------------------------------------------------------


def test_a_command_without_an_intent() -> None:
    async def plant(world: World) -> None:
        await sent(world, "stop", command(99, engine(world, "ant").order.shard))

    assert "serial 99 has no intent" in planted(plant)


def test_a_start_that_no_plan_holds() -> None:
    async def plant(world: World) -> None:
        serial = await intent(world)
        spec = replace(world.invariants.specs[engine(world, "ant").order.shard], served_name="other")
        await sent(world, "start", {**command(serial, spec.shard), "spec": codec.to_json(spec)})

    told = planted(plant)
    assert "that the plan of serial" in told
    assert "a placement number came twice" in told


def test_a_controller_that_commands_when_its_lease_is_over() -> None:
    async def plant(world: World) -> None:
        first = record_of(world).serial
        serial = await intent(world)
        for number in (serial, first):
            params = command(number, "ant-00000000-0.1-r0")
            world.invariants.sending(
                world.clock, "forget", codec.from_json(ForgetParams, params, strict=True)
            )
            await sent(world, "forget", params)

    told = planted(plant)
    assert "is sent by a controller whose lease is over" in told
    assert "two at once" in told


def test_a_stop_of_what_the_record_never_held() -> None:
    async def plant(world: World) -> None:
        serial = await intent(world)
        await sent(world, "stop", command(serial, "own-00000000-0.1-r0"))

    assert "which the record never held" in planted(plant)


def test_too_many_taken_away_at_once() -> None:
    async def plant(world: World) -> None:
        serial = await intent(world)
        await sent(world, "drain", command(serial, engine(world, "ant").order.shard))

    assert "leaves 1 of ant serving" in planted(plant)


def test_a_serving_replica_that_is_stopped_without_a_drain() -> None:
    async def plant(world: World) -> None:
        serial = await intent(world)
        await sent(world, "stop", command(serial, engine(world, "ant").order.shard))

    assert "was never drained" in planted(plant)


@pytest.mark.parametrize("reached", [True, False])
def test_a_rank_is_stopped_without_a_drain_though_its_leader_could_be_asked(*, reached: bool) -> None:
    two = (NodeWish(name="node1", gpus=1), NodeWish(name="node2", gpus=1))
    wish = FleetWish(nodes=two, models=(ModelWish(name="ant", shape="gang"),))

    async def plant(world: World) -> None:
        replica = replica_of(world, "ant")
        if not reached:
            world.nodes[replica.ranks[0].node].line.go_down()
            await asyncio.sleep(1.0)
            world.invariants.step()
        serial = await intent(world)
        await sent(world, "stop", command(serial, f"{replica.id}-r1"))

    assert ("was never drained" in planted(plant, wish)) is reached


@pytest.mark.parametrize("frozen", [replace(WISH, suspend=True), replace(WISH, windows=(NEVER,))])
def test_something_is_taken_away_while_changes_are_frozen(frozen: FleetWish) -> None:
    async def plant(world: World) -> None:
        serial = await intent(world, frozen)
        await sent(world, "drain", command(serial, engine(world, "ant").order.shard))

    assert "and changes are frozen" in planted(plant)


@pytest.mark.parametrize("seconds", [1.0, 100.0])
def test_something_is_taken_away_when_the_time_for_changes_has_ended(seconds: float) -> None:
    """It was open when the pass began: what is about to be sent then may be, what comes later not."""

    async def plant(world: World) -> None:
        left = timedelta(hours=1) - (
            world.clock.now() - world.clock.now().replace(minute=0, second=0, microsecond=0)
        )
        await asyncio.sleep(left.total_seconds() - 0.5)
        serial = await intent(world, replace(WISH, windows=(HOURLY,)))
        await asyncio.sleep(seconds)
        params = {**command(serial, engine(world, "ant").order.shard), "timeout": 10}
        world.invariants.sending(world.clock, "drain", codec.from_json(DrainParams, params, strict=True))

    assert ("the time for changes has ended" in planted(plant)) is (seconds > ENDING)


def test_something_new_is_started_while_changes_are_frozen() -> None:
    async def plant(world: World) -> None:
        spec = world.invariants.specs[engine(world, "ant").order.shard]
        serial = await intent(world, replace(WISH, windows=(NEVER,)))
        await sent(world, "start", {**command(serial, spec.shard), "spec": codec.to_json(spec)})

    assert "and changes are frozen" in planted(plant)


@pytest.mark.parametrize("renamed", [("ant",), ("node1",), ("ant", "node1", "ant")])
def test_a_rename_takes_away_what_serves(renamed: tuple[str, ...]) -> None:
    async def plant(world: World) -> None:
        serial = await intent(world, replace(WISH, renames=renamed))
        await sent(world, "drain", command(serial, engine(world, "ant").order.shard))

    assert "and it serves as Git asks" in planted(plant)


def test_the_last_replica_of_a_protected_model_is_taken_away() -> None:
    async def plant(world: World) -> None:
        serial = await intent(world, replace(WISH, models=WISH.models[:1]))
        await sent(world, "drain", command(serial, engine(world, "bee").order.shard))

    assert "and 1 must be: it is protected" in planted(plant)


# ---- the record --------------------------------------------------------------------------------------

RecordPlant = Callable[[World, Record], Record]


def _twice_on_a_gpu(world: World, record: Record) -> Record:
    replica = replica_of(world, "ant")
    ranks = (replace(replica.ranks[0], ports=(18011,)),)
    return changed(record, replace(replica, id=ReplicaId(f"ant-{replica.spec_digest[:8]}-5.1"), ranks=ranks))


def _twice_on_a_port(world: World, record: Record) -> Record:
    replica = replica_of(world, "ant")
    ranks = (replace(replica.ranks[0], gpus=()),)
    return changed(record, replace(replica, id=ReplicaId(f"ant-{replica.spec_digest[:8]}-5.1"), ranks=ranks))


def _too_much_of_a_gpu(world: World, record: Record) -> Record:
    replica = replica_of(world, "bee")
    claim = GpuClaim(uuid=replica.ranks[0].gpus[0].uuid, memory=10**12)
    return changed(record, replace(replica, ranks=(replace(replica.ranks[0], gpus=(claim,)),)))


def _too_much_memory(world: World, record: Record) -> Record:
    replica = replica_of(world, "bee")
    return changed(record, replace(replica, ranks=(replace(replica.ranks[0], memory=10**15),)))


def _another_under_the_same_name(world: World, record: Record) -> Record:
    replica = replica_of(world, "bee")
    return changed(record, replace(replica, ranks=(replace(replica.ranks[0], ports=(18011,)),)))


def _another_digest(world: World, record: Record) -> Record:
    return changed(record, replace(replica_of(world, "bee"), spec_digest="f" * 64))


def _not_as_it_is_read(world: World, record: Record) -> Record:
    reasons: Any = ["a list, and a tuple once it has been read"]
    return changed(record, replace(replica_of(world, "bee"), reasons=reasons))


def _placements_fall(_: World, record: Record) -> Record:
    model: ModelRecord = replace(record.models["ant"], placements={})
    return replace(record, models={**record.models, "ant": model})


def _serial_jumps(_: World, record: Record) -> Record:
    return replace(record, serial=record.serial + 2)


def _outcome_changes(_: World, record: Record) -> Record:
    return replace(record, last_pass=replace(last_pass(record), outcome=Outcome.FAILED))


def _published_unknown(_: World, record: Record) -> Record:
    return replace(record, endpoints=(replace(record.endpoints[0], replica=ReplicaId("own-00000000-0.1")),))


def _published_elsewhere(_: World, record: Record) -> Record:
    return replace(record, endpoints=(replace(record.endpoints[0], port=1),))


def _published_too_soon(world: World, record: Record) -> Record:
    starting = {
        name: replace(replica, phase=ReplicaPhase.STARTING) for name, replica in record.replicas.items()
    }
    return replace(record, replicas=starting)


def _published_with_another_key(world: World, record: Record) -> Record:
    secret = world.controllers.secret
    return replace(record, endpoints=(replace(record.endpoints[0], key_id=secret.rotate()),))


def _published_without_a_secret(_: World, record: Record) -> Record:
    return replace(record, endpoints=(replace(record.endpoints[0], key_id="00000000"),))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_twice_on_a_gpu, "recorded: ant-"),
        (_twice_on_a_port, "both hold port"),
        (_too_much_of_a_gpu, "recorded: bee-"),
        (_too_much_memory, "bytes of memory on node1"),
        (_another_under_the_same_name, "became another replica under the same name"),
        (_another_digest, "runs ffffffff"),
        (_not_as_it_is_read, "does not survive being written and read"),
        (_placements_fall, "placements of ant/0 fell"),
        (_serial_jumps, "follows"),
        (_outcome_changes, "the outcome of serial"),
        (_published_unknown, "which the record does not hold"),
        (_published_elsewhere, ":1"),
        (_published_too_soon, "which is starting"),
        (_published_with_another_key, "with a key that it does not know"),
        (_published_without_a_secret, "and its secret 00000000 is gone"),
    ],
)
def test_a_record_that_must_not_be(spoil: RecordPlant, told: str) -> None:
    async def plant(world: World) -> None:
        await write(world, spoil(world, record_of(world)))

    assert told in planted(plant)


def test_a_message_that_does_not_tell_which_pass_it_was() -> None:
    async def plant(world: World) -> None:
        await write(world, begun(record_of(world)))

    assert "says Llmgw-Serial: None" in planted(plant)


def test_a_command_that_no_plan_holds() -> None:
    async def plant(world: World) -> None:
        serial = await intent(world)
        await sent(world, "stop", command(serial, engine(world, "ant").order.shard))

    assert "has no such step" in planted(plant)


def test_a_serial_that_begins_before_the_last_has_ended() -> None:
    async def plant(world: World) -> None:
        await write(world, begun(record_of(world)))
        await write(world, begun(record_of(world)))

    assert "has no outcome" in planted(plant)


def test_somebody_who_writes_during_anothers_lease() -> None:
    async def plant(world: World) -> None:
        await write(
            world, begun(record_of(world), holder="ann", lease_until=world.clock.now().replace(year=2040))
        )
        record = record_of(world)
        await write(world, replace(record, last_pass=replace(last_pass(record), holder="bob")))

    assert "bob writes while ann holds a lease" in planted(plant)


# ---- the end -----------------------------------------------------------------------------------------


def test_a_serial_that_never_told_its_outcome() -> None:
    async def plant(world: World) -> None:
        await write(world, begun(record_of(world)))
        world.invariants.at_the_end()

    told = planted(plant)
    assert "has no outcome" in told


def test_an_engine_that_the_record_lost() -> None:
    async def plant(world: World) -> None:
        record, replica = record_of(world), replica_of(world, "bee")
        rest = {name: it for name, it in record.replicas.items() if name != replica.id}
        endpoints = tuple(it for it in record.endpoints if it.replica != replica.id)
        await write(world, replace(record, replicas=rest, endpoints=endpoints))
        world.invariants.at_the_end()

    assert "and the record does not know" in planted(plant)


def test_something_left_to_do_once_all_had_settled() -> None:
    async def plant(world: World) -> None:
        world.commits.add(WISH.changed(replace(WISH.models[0], flag=1)))
        await look_closely(world)

    told = planted(plant)
    assert "is to be done" in told
    assert "-/+ model/ant/0" in told


def test_a_rotation_that_nobody_finishes() -> None:
    async def plant(world: World) -> None:
        world.controllers.secret.rotate()
        world.controllers.machines["ann@desk"].secret.earlier.clear()
        await look_closely(world)

    assert "and the secret is" in planted(plant)


def test_a_secret_that_nothing_needs_is_kept() -> None:
    async def plant(world: World) -> None:
        world.controllers.secret.earlier["00000000"] = b"an earlier one"
        await look_closely(world)

    assert "the secrets ['00000000'] are kept, and nothing needs them" in planted(plant)


@pytest.mark.parametrize("version", [OLD_AGENT, __version__])
def test_an_agent_that_is_not_as_git_asks(version: str) -> None:
    async def plant(world: World) -> None:
        node = node_of(world)
        assert node.info is not None
        called = "node1" if version == OLD_AGENT else "node1x"
        node.info = replace(node.info, version=version, node=called)
        await look_closely(world)

    told = "is 0.0.9" if version == OLD_AGENT else "calls itself node1x"
    assert f"the agent of node1 {told}" in planted(plant)


def test_an_engine_that_died_and_nobody_noticed() -> None:
    async def plant(world: World) -> None:
        node = node_of(world)
        node.kill_agent()
        process = engine(world, "ant")
        node.machine.processes.pop((process.order.shard, process.order.process))
        await look_closely(world)

    assert "of 2 replicas of ant serve" in planted(plant)


# ---- the code itself ---------------------------------------------------------------------------------


def test_an_error_that_the_product_logs() -> None:
    async def plant(_: World) -> None:
        logging.getLogger("llmgw.agent").error("planted")

    assert "logged as an error: planted" in planted(plant)


def test_a_task_that_breaks_and_that_nobody_looks_at() -> None:
    async def plant(world: World) -> None:
        async def breaks() -> None:
            raise ValueError("planted")

        task = world.loop.create_task(breaks())
        await asyncio.sleep(1)
        del task

    assert "nobody handled ValueError: planted" in planted(plant)
