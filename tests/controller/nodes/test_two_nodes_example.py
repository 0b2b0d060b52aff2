"""examples/two-nodes-ssh, planned against machines that have nothing yet."""

from datetime import datetime, timezone
from pathlib import Path

from llmgw.controller.nodes.ssh.login import Surroundings, login_of
from llmgw.core.planner import PlanOptions, plan
from llmgw.core.resolving.resolve import resolve
from llmgw.engines.registry import ADAPTERS
from llmgw.manifests.folder import read_folder
from llmgw.manifests.load import load
from llmgw.model.desired import Desired
from llmgw.model.facts import Disk, Facts, Interface
from llmgw.model.ids import FleetId
from llmgw.model.manifest import GIB
from llmgw.model.plan import StepKind
from llmgw.model.record import Record
from llmgw.model.report import NodeObservation, Observed, Reach

EXAMPLE = Path(__file__).parents[3] / "examples" / "two-nodes-ssh"
NOW = datetime(2030, 1, 1, 12, 0, tzinfo=timezone.utc)


def desired() -> Desired:
    files, links = read_folder(EXAMPLE, "manifests")
    manifests = load(files, commit="c" * 40, links=links, path="manifests")
    return resolve(manifests, key_id="0" * 8, adapters=ADAPTERS)


def bare(node: str, address: str) -> NodeObservation:
    facts = Facts(
        hostname=node,
        arch="x86_64",
        libc="glibc-2.36",
        cpus=16,
        memory_total=64 * GIB,
        memory_available=60 * GIB,
        interfaces=(Interface(name="eth0", addresses=(address,)),),
        disks=(Disk(path="/var/lib/llmgw-agent", total=500 * GIB, free=400 * GIB),),
    )
    return NodeObservation(node=node, reach=Reach.NO_AGENT, facts=facts)


def test_one_plan_goes_from_two_bare_machines_to_a_replica_on_each() -> None:
    wanted = desired()
    seen = Observed(nodes={name: bare(name, node.address) for name, node in wanted.nodes.items()})
    made = plan(
        wanted, Record(fleet=FleetId("fleet-1")), seen, ADAPTERS, now=NOW, options=PlanOptions(key_id="0" * 8)
    )
    assert not made.blocked
    by_kind = {kind: {step.node for step in made.steps if step.kind is kind} for kind in StepKind}
    assert by_kind[StepKind.BOOTSTRAP] == {"gpu01", "gpu02"}
    assert (
        by_kind[StepKind.INSTALL] == by_kind[StepKind.FETCH] == by_kind[StepKind.START] == {"gpu01", "gpu02"}
    )
    for step in made.steps:
        if step.kind is StepKind.START:
            assert f"bootstrap {step.node}" in step.after


def test_the_ways_to_both_can_be_told_and_their_keys_are_keys() -> None:
    around = Surroundings(home=Path("/home/ann"), environ={"SSH_AUTH_SOCK": "/run/agent"})
    ways = {name: login_of(node, around) for name, node in desired().nodes.items()}
    assert [str(hop) for hop in ways["gpu01"].hops] == ["root@10.0.0.11"]
    assert [str(hop) for hop in ways["gpu02"].hops] == ["ops@10.0.0.11", "ops@10.0.0.12"]
    assert (ways["gpu01"].sudo, ways["gpu02"].sudo) == (False, True)
    assert all(hop.pinned.keys for way in ways.values() for hop in way.hops)
