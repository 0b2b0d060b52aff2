"""A fleet that has no record, while another one's agents run its models: its own record was lost, or lies elsewhere.

Going on would set up machines that have no agent yet for a new fleet, and start there what runs already.
"""

from collections import defaultdict

from llmgw.clock import Clock
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.observe import observe
from llmgw.core.amounts import names
from llmgw.model.desired import Desired
from llmgw.model.problems import StalledError
from llmgw.model.report import Observed, ShardState


async def refuse_lost_record(desired: Desired, observed: Observed, links: Links, *, clock: Clock) -> None:
    """Looks at what the agents of others run, and changes nothing there. Raises StalledError, with what to do."""
    owned = {name: desired.nodes[name] for name, node in observed.nodes.items() if node.owner is not None}
    if not owned:
        return
    looking = Links(links.transports)
    looking.whoever = True
    try:
        seen = await observe(owned, None, looking, clock=clock)
    finally:
        await looking.close()
    running: defaultdict[str, set[str]] = defaultdict(set)
    for name, node in seen.nodes.items():
        for shard in node.report.shards if node.report is not None else ():
            if shard.model in desired.models and shard.state != ShardState.STOPPED.value:
                running[name].add(shard.model)
    if not running:
        return
    fleets = names(sorted({str(observed.nodes[name].owner) for name in running}))
    models = sorted(set().union(*running.values()))
    told = f"{names(models)} of these manifests {'runs' if len(models) == 1 else 'run'} on {names(sorted(running))} already"
    raise StalledError(
        f"there is no record here, and {told}, for fleet {fleets}: nothing is started. If the record was lost, llmgw recover rebuilds it; if it is kept elsewhere, name that (stateRepo, stateRef); machines "
        "that are another fleet's are taken out of the manifests, or over one by one (llmgw node adopt)"
    )
