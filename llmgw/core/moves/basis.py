"""What makes a saved plan stale: a digest of the part of the reports that decides. Never amounts, counters or times."""

from typing import Any

from llmgw.core.fabric.interfaces import own
from llmgw.core.seen.survey import NodeView, Survey
from llmgw.model.ids import digest
from llmgw.model.report import ShardReport

_SETTLING = frozenset({"pending", "installing", "fetching", "starting", "loading"})


def observed_digest(survey: Survey) -> str:
    return digest([_node(view) for view in survey.nodes.values()])


def _node(view: NodeView) -> list[Any]:
    """Boot, agent, network, GPUs with health and whether strangers hold them, shards and how they are."""
    report = view.report
    gpus = view.facts.gpus if view.facts is not None and not view.presumed else ()
    return [
        view.name,
        view.reach.value,
        [report.agent.boot_id, report.agent.version, report.agent.fleet] if report is not None else None,
        sorted(
            [gpu.uuid, sorted(gpu.health), any(process.shard is None for process in gpu.processes)]
            for gpu in gpus
        ),
        sorted([shard.shard, _coarse(shard)] for shard in report.shards) if report is not None else None,
        _network(view),
    ]


def _network(view: NodeView) -> list[Any]:
    """By which interface the node is met, and how the adapters of its labelled fabrics are."""
    if view.desired is None or view.facts is None or view.presumed:
        return []
    labelled = {hca.partition(":")[0] for fabric in view.desired.spec.fabrics for hca in fabric.hcas}
    ports = [
        [
            port.device,
            port.port,
            port.link_layer,
            port.state,
            sorted([gid.index, gid.gid] for gid in port.gids),
        ]
        for port in view.facts.hca_ports
        if port.device in labelled
    ]
    return [own(view.desired.address, view.facts).name, ports]


def _coarse(shard: ShardReport) -> str:
    return "coming" if shard.state in _SETTLING else shard.state
