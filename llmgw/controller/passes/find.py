"""Which shards a person means by a name, and on which node each one is."""

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.observe import observe
from llmgw.controller.passes.prepare import Applied, applied
from llmgw.model.addresses import bare_model, is_called
from llmgw.model.desired import DesiredNode
from llmgw.model.ids import ShardId, parse_shard_id, shard_id
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct


class Found(Struct):
    shard: ShardId
    node: DesiredNode


async def find(fleet: Fleet, links: Links, name: str) -> tuple[Found, ...]:
    """``name`` is a model (its replicas' leaders), a replica (its leader) in any of its names, or a shard. Looks into the record first, then
    asks the nodes: what failed may be there still. StalledError when nothing is called so."""
    known = await applied(fleet)
    links.fleet = known.record.fleet if known.stored.record else None
    found = _recorded(known, name) or await _reported(fleet, known, links, name)
    if not found:
        raise StalledError(_nothing(known, name))
    return found


def _nothing(known: Applied, name: str) -> str:
    model = bare_model(name)
    if model in known.record.models or model in known.desired.models:
        return f"there is no output of {model}: no node has anything of it: `llmgw status` and `llmgw plan` say why"
    models = ", ".join(sorted({each.model for each in known.record.replicas.values()})) or "none yet"
    return f"nothing that runs or ran here is called {name}: name a model ({models}), model/NAME/ORDINAL, or a replica or shard of `llmgw status`"


def _recorded(known: Applied, name: str) -> tuple[Found, ...]:
    found: list[Found] = []
    for replica in known.record.replicas.values():
        for rank in replica.ranks:
            shard = shard_id(replica.id, rank.rank)
            wanted = shard == name or (
                rank.rank == 0
                and (
                    name == replica.spec.served_name
                    or is_called(name, model=replica.model, replica=replica.id)
                )
            )
            node = known.desired.nodes.get(rank.node)
            if wanted and node is not None:
                found.append(Found(shard=shard, node=node))
    return tuple(found)


async def _reported(fleet: Fleet, known: Applied, links: Links, name: str) -> tuple[Found, ...]:
    observed = await observe(known.desired.nodes, known.stored.record, links, clock=fleet.clock)
    return tuple(
        Found(shard=shard.shard, node=known.desired.nodes[node.node])
        for node in observed.nodes.values()
        if node.report is not None
        for shard in node.report.shards
        if name == shard.shard
        or bare_model(name) == shard.model
        or (is_called(name, model=shard.model, replica=shard.replica) and _is_leader(shard.shard))
    )


def _is_leader(shard: str) -> bool:
    parsed = parse_shard_id(shard)
    return parsed is not None and parsed[1] == 0
