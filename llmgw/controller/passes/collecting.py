"""What jobs have brought to a node and the fleet does not need any more; and the plan that removes it. Pure.

Needed is what any model of the manifests, any recorded replica and any spec that a model may go back to stands on, there
or on another node: a replica may come here. Whether something on the node itself still refers to it is the agent's to say.
"""

from collections.abc import Iterable, Iterator, Mapping

from llmgw.controller.passes.onenode import MakePlan, forgettable, instead
from llmgw.controller.passes.prepare import Prepared
from llmgw.core.adapter import EngineAdapter, NodeContext
from llmgw.core.amounts import plural, size
from llmgw.core.moves import commands
from llmgw.core.moves.jobs import recorded_model
from llmgw.engines import weights
from llmgw.model.desired import Desired, DesiredModel, DesiredNode
from llmgw.model.launch import FetchSpec, InstallSpec
from llmgw.model.plan import Action, Change, Plan, Step, StepKind
from llmgw.model.problems import StalledError
from llmgw.model.record import Record
from llmgw.model.report import Report, Stored
from llmgw.model.struct import Struct

COLLECT_WITHIN = 600.0
"""Seconds for the answer: removing some hundred thousand files of engines takes minutes on a slow disk."""


class Kept(Struct):
    """Something stored, and why it stays."""

    stored: Stored
    why: str


class Sorting(Struct):
    """Everything stored on a node."""

    unused: tuple[Stored, ...]
    kept: tuple[Kept, ...]


def sort(
    stored: Iterable[Stored],
    *,
    node: DesiredNode,
    desired: Desired,
    record: Record,
    report: Report | None,
    adapters: Mapping[str, EngineAdapter],
) -> Sorting:
    """Largest first. What only orders of shards refer to that have ended and that nobody records is unused: the plan has
    them forgotten first."""
    ended = frozenset(forgettable(report, record))
    needed = _needed(node, desired, record, adapters)
    unused, kept = [], []
    for one in sorted(stored, key=lambda one: (-one.size, one.name)):
        released = bool(one.shards) and ended.issuperset(one.shards)
        why = ("" if released else one.held) or _why(one.name, needed)
        if why:
            kept.append(Kept(stored=one, why=why))
        else:
            unused.append(one)
    return Sorting(unused=tuple(unused), kept=tuple(kept))


def collecting(node: str, stored: tuple[Stored, ...], *, adapters: Mapping[str, EngineAdapter]) -> MakePlan:
    """Removes what nobody needs of ``stored``, by the record and the manifests that stand when the plan is made."""

    def make(prepared: Prepared) -> Plan:
        if node not in prepared.desired.nodes:
            raise StalledError(f"node {node} is not in the manifests any more: put it back to clean up there")
        found = sort(
            stored,
            node=prepared.desired.nodes[node],
            desired=prepared.desired,
            record=prepared.record,
            report=prepared.observed.nodes[node].report,
            adapters=adapters,
        )
        if not found.unused:
            return instead(prepared, changes=(), steps=())
        total = size(sum(one.size for one in found.unused))
        reason = f"nothing refers to {plural(len(found.unused), 'thing')} of {total} on {node}"
        orders = {shard for one in found.unused for shard in one.shards}
        forgets = tuple(commands.forget(shard, node, reason) for shard in sorted(orders))
        return instead(
            prepared,
            changes=(
                Change(
                    address=f"node/{node}",
                    action=Action.UPDATE,
                    keyword="asked-for",
                    reason=reason,
                    where=prepared.desired.nodes[node].where,
                ),
            ),
            steps=(
                *forgets,
                Step(
                    id=f"collect {node}",
                    kind=StepKind.COLLECT,
                    node=node,
                    reason=reason,
                    after=tuple(step.id for step in forgets),
                    timeout=COLLECT_WITHIN,
                    collect=tuple(one.name for one in found.unused),
                ),
            ),
        )

    return make


def _why(name: str, needed: Mapping[str, str]) -> str:
    """Who needs it; empty: nobody."""
    kind, _, rest = name.partition("/")
    if kind == "half":
        return needed.get(f"half/{rest.partition('/')[0]}", "")
    if kind == "tool":
        return needed.get(f"tool/{rest.rpartition('-')[0]}", "")
    return needed.get(name, "")


def _needed(
    node: DesiredNode, desired: Desired, record: Record, adapters: Mapping[str, EngineAdapter]
) -> Mapping[str, str]:
    """Names of what is needed, and by whom. Of tools without the digest, which only the node knows."""
    pip = desired.fleet.pip
    context = NodeContext(name=node.name, spec=node.spec, facts=None)
    needed: dict[str, str] = {}
    for whose, model in _models(desired, record):
        adapter = adapters.get(model.profile.engine.name)
        if adapter is None:
            continue
        fetches = [adapter.fetch(model, pip), *(weights.fetch(it.source, pip) for it in model.spec.adapters)]
        names = [*_of_install(adapter.install(model, context, pip))]
        names += [name for fetch in fetches for name in _of_fetch(fetch)]
        for name in names:
            needed.setdefault(name, whose)
    return needed


def _models(desired: Desired, record: Record) -> Iterator[tuple[str, DesiredModel]]:
    for model in desired.models.values():
        yield f"model {model.name} needs it", model
    for replica in record.holding:
        yield f"replica {replica.id} runs with it", recorded_model(replica.model, replica.spec)
    for known in record.models.values():
        if known.last_good_spec is not None:
            yield f"model {known.name} may go back to it", recorded_model(known.name, known.last_good_spec)


def _of_install(spec: InstallSpec | None) -> tuple[str, ...]:
    return () if spec is None else (f"engine/{spec.digest}", f"half/{spec.job}")


def _of_fetch(spec: FetchSpec | None) -> tuple[str, ...]:
    if spec is None:
        return ()
    tool = (f"tool/{spec.tool.replace('==', '-')}",) if spec.tool is not None else ()
    return (f"weights/{spec.digest}", f"half/{spec.job}", *tool)
