"""What somebody should look at: each kind is raised by what it says, with an id that stays while the trouble stays."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import jsonschema_rs
import pytest

from llmgw.core.seen.alerts import alerts
from llmgw.core.show import render_status
from llmgw.core.show.status import status
from llmgw.manifests import schema
from llmgw.model.alerts import Alert, AlertKind, Severity
from llmgw.model.facts import Disk, Xid
from llmgw.model.ids import Commit, JobId
from llmgw.model.manifest import GIB, Expect
from llmgw.model.report import JobReport, JournalEntry, NodeObservation, Reach
from llmgw.model.struct import replace
from llmgw.wire import codec
from tests.core.builders import NOW, NodeState, desired, facts, gpu, model, node, stranger
from tests.core.fleets import Fleet, fleet


def calm() -> Fleet:
    wanted = desired([node("gpu01", expect=Expect(gpus=1)), node("gpu02")], [model("chat")])
    world = fleet(wanted, [NodeState("gpu01", facts("gpu01")), NodeState("gpu02", facts("gpu02"))])
    world.settle()
    return world


def told(world: Fleet) -> tuple[Alert, ...]:
    return alerts(world.desired, world.record, world.observe())


def test_a_fleet_that_is_well_raises_nothing() -> None:
    assert told(calm()) == ()


def change_facts(**more: Any) -> Callable[[Fleet], None]:
    def change(world: Fleet) -> None:
        state = world.nodes["gpu01"]
        state.facts = replace(state.facts, **more)

    return change


def fail_job(world: Fleet) -> None:
    world.nodes["gpu01"].jobs["j"] = JobReport(
        job=JobId("fetch-1f0c9a2b"),
        kind="fetch",
        target="t",
        description="weights of chat",
        state="failed",
        ended=NOW,
        error="no space left",
    )


def lose(world: Fleet) -> None:
    state = world.nodes["gpu01"]
    state.reach, state.error = Reach.UNREACHABLE, "timed out"
    world.one_pass()


def kill_agent(world: Fleet) -> None:
    world.nodes["gpu01"].reach = Reach.NO_AGENT


def steal(world: Fleet) -> None:
    world.nodes["gpu01"].fleet = "fleet-2"


def take_port(world: Fleet) -> None:
    """Its engine is gone and somebody sits where it was."""
    state = world.nodes["gpu01"]
    (key,) = state.shards
    error = "mismatch: port 18000 is held by pid 77 (nc) of user ann"
    state.shards[key] = replace(state.shards[key], state="backoff", last_error=error)
    state.facts = replace(state.facts, listening=state.shards[key].claims.ports[:1])


def give_up(world: Fleet) -> None:
    state = world.nodes["gpu01"]
    (key,) = state.shards
    state.shards[key] = replace(state.shards[key], state="failed", last_error="CUDA error", since=NOW)


def xid(number: int) -> Callable[[Fleet], None]:
    seen = Xid(number=number, at=NOW, text="GPU has fallen off the bus", count=2)
    return change_facts(gpus=(gpu("gpu01", 0, xids=(seen,)),))


@pytest.mark.parametrize(
    ("harm", "severity", "ident"),
    [
        (change_facts(gpus=()), "critical", "gpus-missing/node/gpu01"),
        (
            change_facts(gpus=(gpu("gpu01", 0, health=("remapping of broken memory rows failed",)),)),
            "critical",
            "gpu-unhealthy/node/gpu01/GPU-gpu01-0",
        ),
        (
            change_facts(gpus=(gpu("gpu01", 0, health=("3 uncorrectable",), ecc_volatile=3),)),
            "critical",
            "gpu-ecc/node/gpu01/GPU-gpu01-0",
        ),
        (xid(79), "critical", "gpu-xid/node/gpu01/GPU-gpu01-0:79"),
        (xid(94), "warning", "gpu-xid/node/gpu01/GPU-gpu01-0:94"),
        (xid(31), "info", "gpu-xid/node/gpu01/GPU-gpu01-0:31"),
        (
            change_facts(gpus=(gpu("gpu01", 0, processes=(stranger(GIB),)),)),
            "warning",
            "gpu-stranger/node/gpu01/GPU-gpu01-0",
        ),
        (
            change_facts(disks=(Disk(path="/data", total=100 * GIB, free=5 * GIB),)),
            "warning",
            "disk-low/node/gpu01//data",
        ),
        (
            change_facts(disks=(Disk(path="/data", total=100 * GIB, free=GIB // 2),)),
            "critical",
            "disk-low/node/gpu01//data",
        ),
        (fail_job, "warning", "job-failed/node/gpu01/fetch-1f0c9a2b"),
        (lose, "critical", "agent-lost/node/gpu01"),
        (kill_agent, "critical", "agent-lost/node/gpu01"),
        (steal, "critical", "node-foreign/node/gpu01"),
        (take_port, "warning", "port-taken/node/gpu01/18000"),
        (give_up, "critical", "replica-failed/model/chat/0/{digest}"),
    ],
)
def test_trouble_is_told_once_under_an_id_that_stays(
    harm: Callable[[Fleet], None], severity: str, ident: str
) -> None:
    world = calm()
    (replica,) = world.record.replicas.values()
    harm(world)
    [first] = told(world)
    assert (first.id, first.severity.value) == (ident.format(digest=replica.spec_digest[:8]), severity)
    world.now += timedelta(hours=1)
    [again] = told(world)
    assert again.id == first.id
    assert first.text


def test_what_was_given_up_is_told_under_one_id_until_it_has_run_for_long() -> None:
    world = calm()
    give_up(world)
    [first] = told(world)
    world.one_pass()
    [coming] = told(world)
    world.settle()
    [runs] = told(world)
    assert {it.id for it in (first, coming, runs)} == {first.id}
    assert [it.severity for it in (first, coming, runs)] == [
        Severity.CRITICAL,
        Severity.CRITICAL,
        Severity.WARNING,
    ]
    assert "failed: CUDA error" in coming.text
    assert "--replace model/chat/0" in coming.do
    assert "0.2 runs since" in runs.text
    for state in world.nodes.values():
        state.shards = {key: replace(it, ready_at=world.now) for key, it in state.shards.items()}
    world.now += timedelta(minutes=10)
    world.one_pass()
    assert told(world) == ()


def test_a_lost_agent_is_told_with_the_time_since_when() -> None:
    world = calm()
    lose(world)
    [alert] = told(world)
    assert alert.since == world.record.nodes["gpu01"].unreachable_since
    assert alert.since is not None


def test_a_machine_that_was_taken_out_of_the_fleet_is_missed_only_for_what_runs_there() -> None:
    """Until the next apply it was lost, and somebody was woken up for it."""
    world = calm()
    for state in world.nodes.values():
        state.reach, state.error = Reach.UNREACHABLE, "timed out"
    (replica,) = world.record.replicas.values()
    nodes = {name: replace(it, leaving=True) for name, it in world.desired.nodes.items()}
    world.desired = replace(world.desired, nodes=nodes)
    assert [it.node for it in told(world)] == [replica.ranks[0].node]
    shown = status(world.record, world.observe(), now=world.now, desired=world.desired)
    [empty] = [it for it in shown.nodes if it.name != replica.ranks[0].node]
    assert empty.leaving
    assert "the next `llmgw apply` forgets it" in empty.problems[0]


def test_a_machine_that_never_was_in_the_fleet_has_nothing_to_lose() -> None:
    world = fleet(desired([node("gpu01")], []), [NodeState("gpu01", facts("gpu01"), reach=Reach.UNREACHABLE)])
    assert told(world) == ()


def test_a_held_model_names_the_commit_that_broke_it() -> None:
    world = calm()
    world.desired = replace(
        desired(list(world.desired.nodes.values()), [model("chat", args=("--bad",))]), commit=Commit("b" * 40)
    )
    world.fails = lambda _: True
    world.settle()
    [held] = [alert for alert in told(world) if alert.kind is AlertKind.MODEL_HELD]
    assert held.commit == "b" * 40
    assert "bad flag" in held.text
    assert held.since is not None
    assert held.severity is Severity.WARNING


def with_journal(world: Fleet, *numbers: int) -> NodeObservation:
    seen = world.observe().nodes["gpu01"]
    entries = tuple(
        JournalEntry(number=each, at=NOW, kind="problem", subject="", text="x") for each in numbers
    )
    assert seen.report is not None
    return replace(seen, report=replace(seen.report, journal=entries, journal_last=max(numbers)))


@pytest.mark.parametrize(
    ("numbers", "missing"),
    [((11, 12), 0), ((14, 15), 3), ((11, 13), 1), ((3, 4), 2), ((1, 2), 0)],
    ids=["none", "before", "between", "new journal, begun late", "new journal"],
)
def test_what_the_journal_dropped_is_counted(numbers: tuple[int, ...], missing: int) -> None:
    world = calm()
    known = replace(world.record.nodes["gpu01"], journal_cursor=10)
    world.record = replace(world.record, nodes={**world.record.nodes, "gpu01": known})
    seen = world.observe()
    seen = replace(seen, nodes={**seen.nodes, "gpu01": with_journal(world, *numbers)})
    found = alerts(world.desired, world.record, seen)
    assert [alert.text.split(" ")[0] for alert in found] == ([str(missing)] if missing else [])


def test_a_clock_that_is_off_is_an_alert_too() -> None:
    world = calm()
    seen = world.observe()
    off = replace(seen, nodes={**seen.nodes, "gpu01": replace(seen.nodes["gpu01"], skew=61.0)})
    assert [alert.id for alert in alerts(world.desired, world.record, off)] == ["clock-skew/node/gpu01"]


def test_what_a_gpu_shares_with_its_instances_is_told_of_the_gpu() -> None:
    world = calm()
    whole = gpu("gpu01", 0, health=("a repair waits",))
    part = replace(gpu("gpu01", 1, health=("its GPU: a repair waits",)), uuid="MIG-1", parent=whole.uuid)
    change_facts(gpus=(whole, part))(world)
    assert [alert.id for alert in told(world)] == [f"gpu-unhealthy/node/gpu01/{whole.uuid}"]


def test_status_shows_them_with_what_helps_and_passes_its_schema() -> None:
    world = calm()
    lose(world)
    seen = status(world.record, world.observe(), now=world.now, desired=world.desired)
    assert seen.alerts == told(world)
    text = render_status.status_text(seen)
    assert "ALERT       SEVERITY  OF          SINCE" in text
    assert "    can't be reached: timed out\n    what runs there keeps what it holds" in text
    document = {"formatVersion": 1, **codec.to_json(seen)}
    assert document["alerts"][0]["id"] == "agent-lost/node/gpu01"
    validator = jsonschema_rs.Draft202012Validator(schema.schema("status"))
    assert [error.message for error in validator.iter_errors(document)] == []
