"""Which node a person means, and in which manifests it stands."""

from difflib import get_close_matches

from llmgw.cli import output
from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.prepare import Applied, applied
from llmgw.core.record.leaving import with_leaving
from llmgw.model.desired import Desired, DesiredNode
from llmgw.model.problems import InvalidError, StalledError
from llmgw.model.record import Record


async def newest(fleet: Fleet) -> Applied:
    """The newest commit beside the record: a node that was just added stands there, applied or not."""
    stored = await fleet.store.read()
    record = stored.record or Record(fleet=fleet.first_id)
    desired = await fleet.source.desired(await fleet.source.newest(), key_id=record.key_id)
    return Applied(stored=stored, record=record, desired=with_leaving(desired, record))


async def to_look_at(fleet: Fleet) -> Applied:
    """The newest manifests; where those are wrong, the ones applied last."""
    try:
        return await newest(fleet)
    except InvalidError as wrong:
        known = await applied(fleet)
        output.note(
            f"Note: the newest manifests can't be used ({wrong.problems[0]}): these are the ones applied last"
        )
        return known


def named(desired: Desired, name: str) -> DesiredNode:
    """StalledError when no node is called so."""
    node = desired.nodes.get(name)
    if node is not None:
        return node
    near = get_close_matches(name, desired.nodes, n=1)
    there = ", ".join(sorted(desired.nodes)) or "none"
    raise StalledError(
        f"no node is called {name} in the manifests of commit {(desired.commit or '')[:10]}"
        + (f": did you mean {near[0]}?" if near else f"; there is: {there}")
    )
