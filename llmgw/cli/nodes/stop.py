"""``node stop-agent``: the agent of a node of this machine ends, its engines run on."""

import click

from llmgw.cli import output
from llmgw.cli.main import Asked, fleet_options
from llmgw.cli.session import fleet_of, run
from llmgw.controller.passes.prepare import applied
from llmgw.model.problems import StalledError


@click.command("stop-agent", short_help="Stop the agent of a node of this machine.")
@click.argument("name")
@click.option("--force", is_flag=True, help="Although engines run there: they run on without an agent.")
@fleet_options
@click.pass_obj
def stop_agent(asked: Asked, *, name: str, force: bool) -> int:
    """Stop the agent of the local node NAME. Engines are not touched; the next apply starts the agent again.

    \b
    llmgw node stop-agent laptop
    """  # noqa: D301 - click wants the character itself
    return run(_stop_agent(asked, name, force=force))


async def _stop_agent(asked: Asked, name: str, *, force: bool) -> int:
    async with fleet_of(asked) as (opened, _):
        known = await applied(opened.fleet)
        found = known.desired.nodes.get(name)
        if found is None:
            there = ", ".join(sorted(known.desired.nodes)) or "none"
            raise StalledError(f"no node is called {name}; there is: {there}")
        if found.spec.transport != "local":
            raise StalledError(
                f"node {name} is reached by {found.spec.transport}: stop its agent there, as its service"
            )
        running = [
            replica.id
            for replica in known.record.replicas.values()
            if any(rank.node == name for rank in replica.ranks)
        ]
        if running and not force:
            raise StalledError(
                f"node {name} runs {', '.join(running)}: apply a commit that stops them first, or give --force to leave them "
                "running without an agent"
            )
        await opened.local.stop_agent(found)
    output.say(f"The agent of {name} is stopped.")
    return output.DONE
