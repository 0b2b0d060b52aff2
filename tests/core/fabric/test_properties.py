"""Whatever adapters nodes have and however they are labelled: what ranks are told is true of their nodes."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.planner import plan
from llmgw.engines.registry import ADAPTERS
from llmgw.model.facts import Facts, HcaPort
from llmgw.model.launch import LaunchSpec
from llmgw.model.manifest import Fabric
from llmgw.model.plan import Action, StepKind
from tests.core.builders import NOW, NodeState, desired, empty_record, model, node, observed, profile
from tests.core.fabric.nodes import infiniband, machine, roce
from tests.core.fleets import OPTIONS

NAMES = ("gpu11", "gpu12", "gpu13")
DEVICES = tuple(f"mlx5_{number}" for number in (0, 1, 10))
Labels = Mapping[str, Mapping[str, tuple[str, ...]]]


@st.composite
def ports(draw: st.DrawFn) -> tuple[HcaPort, ...]:
    found = []
    for at, device in enumerate(DEVICES):
        kind = draw(st.sampled_from(("none", "ib", "down", "roce")))
        if kind == "ib":
            found.append(infiniband(device, rate=draw(st.sampled_from((100.0, 400.0)))))
        elif kind == "down":
            found.append(infiniband(device, state="DOWN"))
        elif kind == "roce":
            found.append(roce(device, f"10.{at}.0.1", draw(st.sampled_from((3, 5)))))
    return tuple(found)


labels = st.dictionaries(
    st.sampled_from(("a", "b")), st.lists(st.sampled_from(DEVICES), min_size=1, unique=True).map(tuple)
)


@given(
    found=st.lists(ports(), min_size=3, max_size=3),
    written=st.lists(labels, min_size=3, max_size=3),
    wish=st.sampled_from(("required", "preferred", "none")),
)
def test_ranks_are_told_what_their_nodes_have(
    found: list[tuple[HcaPort, ...]], written: list[dict[str, tuple[str, ...]]], wish: str
) -> None:
    states = {name: machine(name, *ports) for name, ports in zip(NAMES, found, strict=True)}
    labelled = dict(zip(NAMES, written, strict=True))
    starts = _starts(states, labelled, wish)
    assert starts or wish == "required", "only a required fabric can keep it from starting"
    told = [_told(spec) for _, spec in starts]
    assert len({"NCCL_IB_HCA" in env for env in told}) <= 1, "all ranks use the fabric, or none does"
    for name, spec in starts:
        _true(spec, states[name].facts, labelled[name], wish)
    if "NCCL_IB_HCA" in (told[0] if told else {}):
        assert _one_fabric(starts, labelled), "of one fabric that all of them share"


def _starts(states: Mapping[str, NodeState], labelled: Labels, wish: str) -> list[tuple[str, LaunchSpec]]:
    nodes = [
        node(
            name,
            fabrics=tuple(Fabric(name=fabric, hcas=hcas) for fabric, hcas in sorted(labelled[name].items())),
        )
        for name in NAMES
    ]
    wanted = desired(nodes, [model("chat", profile(gpus=8, nodes=2, fabric=wish))])
    made = plan(wanted, empty_record(), observed(*states.values()), ADAPTERS, now=NOW, options=OPTIONS)
    again = plan(wanted, empty_record(), observed(*states.values()), ADAPTERS, now=NOW, options=OPTIONS)
    assert made == again
    starts = [
        (step.node or "", step.launch)
        for step in made.steps
        if step.kind is StepKind.START and step.launch is not None
    ]
    (change,) = [change for change in made.changes if change.model is not None]
    assert (change.action is Action.BLOCKED) == (not starts)
    return starts


def _told(spec: LaunchSpec) -> Mapping[str, str]:
    return spec.processes[-1].env


def _hcas(spec: LaunchSpec) -> list[str]:
    value = _told(spec)["NCCL_IB_HCA"]
    assert value.startswith("=")
    return value.removeprefix("=").split(",")


def _true(spec: LaunchSpec, facts: Facts, labels: Mapping[str, tuple[str, ...]], wish: str) -> None:
    env = _told(spec)
    assert ("NCCL_IB_DISABLE" in env) == ("NCCL_IB_HCA" not in env)
    assert wish != "required" or "NCCL_IB_HCA" in env
    if "NCCL_IB_HCA" not in env:
        assert not spec.expect.gids
        return
    by_name = {f"{port.device}:{port.port}": port for port in facts.hca_ports}
    used = [by_name[name] for name in _hcas(spec)]
    assert all(port.state == "ACTIVE" for port in used)
    (layer,) = {port.link_layer for port in used}
    assert ("NCCL_IB_GID_INDEX" in env) == (layer == "Ethernet")
    index = int(env.get("NCCL_IB_GID_INDEX", "0"))
    entries = {
        f"{port.device}:{port.port}:{index}": gid.gid
        for port in used
        for gid in port.gids
        if gid.index == index
    }
    assert spec.expect.gids == entries
    assert len(entries) == len(used), "every port has the entry"


def _one_fabric(starts: list[tuple[str, LaunchSpec]], labelled: Labels) -> bool:
    return any(
        all(
            {name.partition(":")[0] for name in _hcas(spec)} <= set(labelled[node_name].get(fabric, ()))
            for node_name, spec in starts
        )
        for fabric in ("a", "b")
    )


def test_an_order_of_labels_changes_nothing() -> None:
    ports = (infiniband("mlx5_0"), infiniband("mlx5_1"))
    states = {name: machine(name, *ports) for name in NAMES}
    one: Labels = {name: {"a": ("mlx5_0", "mlx5_1")} for name in NAMES}
    other: Labels = {name: {"a": ("mlx5_1", "mlx5_0")} for name in NAMES}
    told = [[_hcas(spec) for _, spec in _starts(states, labels, "required")] for labels in (one, other)]
    assert told[0] == told[1]
