"""What is known of every node and shard right now: reports, the record and Git laid over each other.

Says for each node whether shards may be placed there and, if not, why not. Decides nothing else.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime

from llmgw.core.amounts import GIB
from llmgw.model.desired import Desired, DesiredNode
from llmgw.model.facts import Facts, Gpu
from llmgw.model.manifest import Expect
from llmgw.model.record import Record
from llmgw.model.report import NodeObservation, Reach, Report, ShardReport
from llmgw.model.struct import Struct, field

_CLASS_GIB = re.compile(r"-(\d+)g$")


class Silence(Struct):
    """Of a node that does not answer. ``since`` None: this is the first time. ``over``: when its grace ends. ``brake``: why nothing
    is given up all the same. ``given_up``: what runs there is started elsewhere."""

    since: datetime | None
    over: datetime | None
    brake: str = ""
    given_up: bool = False


class NodeView(Struct):
    """One node as this plan sees it. ``obstacle`` says why nothing may be placed there, empty: nothing stands
    in the way. ``presumed`` facts come from the record or the manifest, not from the node."""

    name: str
    desired: DesiredNode | None
    reach: Reach
    facts: Facts | None
    report: Report | None
    error: str = ""
    obstacle: str = ""
    presumed: bool = False
    bad_weights: Mapping[str, str] = field(default_factory=dict)  # why not, by digest
    intruder: str = ""  # why its agent is not this fleet's node: another fleet's, another node's
    skew: float | None = None  # seconds that its clock is ahead of this one
    silence: Silence | None = None
    fenced: str = ""  # why its agent would refuse this record's commands
    rests: str = ""  # why its agent is not set up now, until ``rest_over``
    rest_over: datetime | None = None

    @property
    def known(self) -> bool:
        """Whether its shards can be told and commanded."""
        return self.report is not None and not self.intruder and not self.fenced

    @property
    def named(self) -> bool:
        """Whether Git names it; else it is only here for what the record knows of it."""
        return self.desired is not None and not self.desired.leaving

    @property
    def bare(self) -> bool:
        """A machine of Git that has no agent yet."""
        return self.desired is not None and self.reach is Reach.NO_AGENT


class SeenShard(Struct):
    """``at``: when its agent told so, by the clock of that node, which all times in ``report`` are of."""

    node: str
    report: ShardReport
    at: datetime


class Survey(Struct):
    """``shards`` by shard id; one reported by two nodes stands under the first and in ``doubles``."""

    nodes: Mapping[str, NodeView]
    shards: Mapping[str, SeenShard]
    doubles: tuple[SeenShard, ...] = ()
    offline: bool = False


def survey(
    desired: Desired, record: Record, observed: Mapping[str, NodeObservation], *, offline: bool
) -> Survey:
    """Every node that Git, the record or an observation names, in order of name."""
    every = sorted({*desired.nodes, *record.nodes, *observed})
    views = {name: _view(name, desired, record, observed.get(name), offline=offline) for name in every}
    shards: dict[str, SeenShard] = {}
    doubles = []
    for seen in _shards(views):
        if seen.report.shard in shards:
            doubles.append(seen)
        else:
            shards[seen.report.shard] = seen
    return Survey(nodes=views, shards=shards, doubles=tuple(doubles), offline=offline)


def _shards(views: Mapping[str, NodeView]) -> Iterator[SeenShard]:
    for view in views.values():
        if view.report is not None and not view.intruder:
            for shard in sorted(view.report.shards, key=lambda each: each.shard):
                yield SeenShard(node=view.name, report=shard, at=view.report.at)


def _view(
    name: str, desired: Desired, record: Record, seen: NodeObservation | None, *, offline: bool
) -> NodeView:
    node = desired.nodes.get(name)
    reach = Reach.NOT_ASKED if offline or seen is None else seen.reach
    report = seen.report if seen is not None and reach is Reach.OK else None
    facts, presumed = _facts(name, node, record, seen, reach)
    intruder = _intruder(name, record, report)
    error = seen.error if seen is not None else ""
    return NodeView(
        name=name,
        desired=node,
        reach=reach,
        facts=facts,
        report=report,
        error=error,
        obstacle=intruder or _obstacle(node, reach, facts, error, offline=offline),
        presumed=presumed,
        bad_weights=seen.bad_weights if seen is not None else {},
        intruder=intruder,
        skew=seen.skew if seen is not None else None,
    )


def _facts(
    name: str, node: DesiredNode | None, record: Record, seen: NodeObservation | None, reach: Reach
) -> tuple[Facts | None, bool]:
    if seen is not None and reach in (Reach.OK, Reach.NO_AGENT):
        live = seen.facts or (seen.report.facts if seen.report else None)
        if live is not None:
            return live, False
    if node is not None and node.pretended is not None:
        return node.pretended, False
    recorded = record.nodes.get(name)
    if recorded is not None and recorded.facts is not None:
        return recorded.facts, True
    if reach is Reach.NOT_ASKED and node is not None and node.spec.expect.gpus:
        return expected_facts(name, node.spec.expect), True
    return None, True


def expected_facts(name: str, expect: Expect) -> Facts:
    """What ``expect`` promises of a node nobody has seen: offline plans count on it."""
    found = _CLASS_GIB.search(expect.gpu_class or "")
    memory = int(found[1]) * GIB if found else 0
    return Facts(
        gpu_source="expected",
        gpus=tuple(
            Gpu(
                uuid=f"expected-{name}-{index}",
                index=index,
                name=expect.gpu_class or "GPU",
                gpu_class=expect.gpu_class or "",
                memory_total=memory,
            )
            for index in range(expect.gpus)
        ),
    )


def _intruder(name: str, record: Record, report: Report | None) -> str:
    if report is None:
        return ""
    if report.agent.fleet not in (None, record.fleet):
        return f"its agent belongs to another fleet ({report.agent.fleet}; this one is {record.fleet})"
    known = record.nodes.get(name)
    if report.agent.node not in (name, *(known.formerly if known is not None else ())):
        return f"the agent that answers there says it is node {report.agent.node}"
    return ""


def _obstacle(
    node: DesiredNode | None, reach: Reach, facts: Facts | None, error: str, *, offline: bool
) -> str:
    if node is None or node.leaving:
        return "not in Git" if node is None else "not in Git any more"
    if node.spec.cordon or node.spec.drain:
        return "being drained" if node.spec.drain else "cordoned"
    if reach is Reach.UNREACHABLE:
        return f"can't be reached: {error}" if error else "can't be reached"
    if facts is None:
        return "(known after bootstrap)" if offline or reach is Reach.NO_AGENT else "nothing is known of it"
    return ""
