"""What a pass learns of weights: from the nodes that have them, else from where they come from, else from the record.

Only asked for models whose engine can reckon with the answer. Never raises: what could not be learnt stands where the planner sees
it, and the planner refuses rather than guess.
"""

import asyncio
from collections.abc import Iterable, Mapping

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.links import Links
from llmgw.controller.weights.remote import HUB, Wanted
from llmgw.core.moves.stocktaking import as_desired
from llmgw.core.place.candidates import breaks_rules_of
from llmgw.engines.memory.known import weights_of
from llmgw.engines.weights import describe
from llmgw.model.desired import Desired, DesiredModel, DesiredNode
from llmgw.model.problems import AgentError, LlmgwError
from llmgw.model.record import Record
from llmgw.model.report import NodeObservation, Observed, Reach
from llmgw.model.struct import Struct, field, replace
from llmgw.model.weights import Inspection, Weights
from llmgw.wire.codec import CodecError
from llmgw.wire.messages import METHOD_NOT_FOUND, Inspected, InspectParams

WITHIN = 30.0
"""Seconds for one node to look at its weights: headers, but perhaps on a busy network file system."""
AT_ONCE = 8
"""Remote weights that are looked at together."""


class _Asked(Struct):
    """One kind of weights, and the models that want them."""

    wanted: Wanted
    models: tuple[DesiredModel, ...]


class _Told(Struct):
    """What one node has said: of weights that it has looked at, and of those it could not look at, which may be good."""

    seen: list[Weights] = field(default_factory=list)
    unseen: list[Weights] = field(default_factory=list)


async def weigh(fleet: Fleet, desired: Desired, record: Record, observed: Observed, links: Links) -> Observed:
    """``observed`` with what is known of the weights that models ask for, by digest."""
    asked = _asked(fleet, desired, record)
    if not asked:
        return replace(observed, weights={})
    answers = await asyncio.gather(
        *(_on_node(desired.nodes[name], seen, asked, record, links) for name, seen in observed.nodes.items())
    )
    nodes = {
        seen.node: replace(seen, bad_weights=_bad(found.seen))
        for seen, found in zip(observed.nodes.values(), answers, strict=True)
    }
    known = _best([*(found.seen for found in answers), *(found.unseen for found in answers)])
    missing = [each for digest, each in asked.items() if not _usable(known, record, digest)]
    gate = asyncio.Semaphore(AT_ONCE)
    for weights in await asyncio.gather(*(_remote(fleet, each, gate) for each in missing)):
        if weights is not None and (weights.usable or weights.digest not in known):
            known[weights.digest] = weights
    for digest in asked:
        if digest in record.weights and not (digest in known and known[digest].usable):
            known[digest] = record.weights[digest]
    return replace(observed, nodes=nodes, weights=dict(sorted(known.items())))


def _asked(fleet: Fleet, desired: Desired, record: Record) -> dict[str, _Asked]:
    """By digest; what a held model runs instead is asked for as well."""
    hub = _hub(fleet, desired)
    found: dict[str, _Asked] = {}
    for model in (*desired.models.values(), *_last_good(desired, record)):
        adapter = fleet.adapters.get(model.profile.engine.name)
        digest = adapter.weights(model) if adapter is not None else None
        if digest is None:
            continue
        before = found[digest].models if digest in found else ()
        wanted = Wanted(digest=digest, source=model.spec.source, hub=hub)
        found[digest] = _Asked(wanted=wanted, models=(*before, model))
    return found


def _last_good(desired: Desired, record: Record) -> list[DesiredModel]:
    known = [(model, record.models.get(name)) for name, model in desired.models.items()]
    return [
        as_desired(model, it.last_good_spec, str(it.last_good))
        for model, it in known
        if it is not None and it.held is not None and it.last_good_spec is not None
    ]


def _hub(fleet: Fleet, desired: Desired) -> str:
    """As the nodes are told to: a fleet behind a mirror has one for all."""
    named = [node.spec.env.get("HF_ENDPOINT") for _, node in sorted(desired.nodes.items())]
    told = fleet.environment.get("HF_ENDPOINT") or next((it for it in named if isinstance(it, str)), "")
    return told or HUB


# ---- on nodes ------------------------------------------------------------------------------------------


async def _on_node(
    node: DesiredNode, seen: NodeObservation, asked: Mapping[str, _Asked], record: Record, links: Links
) -> _Told:
    """What one node says of the weights that lie there, or should."""
    paths = _paths(node, seen, asked, record)
    told = _Told()
    while seen.reach is Reach.OK and paths:
        try:
            link = await links.to(node)
            answer = await link.request("inspect", InspectParams(paths=paths), Inspected, timeout=WITHIN)
        except AgentError as wrong:
            why = "upgrade its agent" if wrong.code == METHOD_NOT_FOUND else str(wrong)
            told.unseen.extend(_unasked(paths, asked, f"{node.name} can't look at weights: {why}"))
            break
        except (LlmgwError, OSError, CodecError) as wrong:
            told.unseen.extend(_unasked(paths, asked, str(wrong)))
            break
        if not answer.inspections:
            break
        there = {digest: found for digest, found in answer.inspections.items() if digest in paths}
        told.seen.extend([_weights(digest, asked, found) for digest, found in there.items()])
        paths = {digest: path for digest, path in paths.items() if digest not in answer.inspections}
    return told


def _paths(
    node: DesiredNode, seen: NodeObservation, asked: Mapping[str, _Asked], record: Record
) -> dict[str, str]:
    """Where to look: at paths that a manifest names, each time, since their files may change; at what was fetched, once."""
    there = {weights.digest for weights in seen.facts.weights} if seen.facts is not None else set()
    paths = {}
    for digest, each in asked.items():
        path = each.wanted.source.path
        if path is not None and any(not breaks_rules_of(node, model.spec.placement) for model in each.models):
            paths[digest] = path
        elif path is None and digest in there and not _usable({}, record, digest):
            paths[digest] = ""
    return paths


def _weights(digest: str, asked: Mapping[str, _Asked], seen: Inspection) -> Weights:
    return weights_of(digest, describe(asked[digest].wanted.source), seen)


def _unasked(digests: Iterable[str], asked: Mapping[str, _Asked], why: str) -> list[Weights]:
    return [
        Weights(digest=digest, description=describe(asked[digest].wanted.source), problem=why)
        for digest in digests
    ]


def _bad(found: list[Weights]) -> dict[str, str]:
    return {weights.digest: weights.problem for weights in found if weights.problem}


def _best(told: Iterable[list[Weights]]) -> dict[str, Weights]:
    """The first node's word, and a usable one before one that is not."""
    known: dict[str, Weights] = {}
    for weights in (each for found in told for each in found):
        if weights.digest not in known or (weights.usable and not known[weights.digest].usable):
            known[weights.digest] = weights
    return known


def _usable(known: Mapping[str, Weights], record: Record, digest: str) -> bool:
    return any(digest in where and where[digest].usable for where in (known, record.weights))


# ---- from afar -----------------------------------------------------------------------------------------


async def _remote(fleet: Fleet, each: _Asked, gate: asyncio.Semaphore) -> Weights | None:
    if fleet.remote_weights is None:
        return None
    async with gate:
        seen = await fleet.remote_weights.look(each.wanted)
    return weights_of(each.wanted.digest, describe(each.wanted.source), seen) if seen is not None else None
