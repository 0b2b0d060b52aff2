"""``node doctor``: everything that is wrong with a node, and what to do about it."""

import json

import click

from llmgw.cli import output
from llmgw.cli.main import Asked, Looking, fleet_options
from llmgw.cli.nodes.found import named, to_look_at
from llmgw.cli.session import fleet_of, run
from llmgw.controller.nodes.pastagent import PastAgent
from llmgw.controller.passes.checkup import Examination
from llmgw.core.show.doctor import examined
from llmgw.engines.openpaths import GUARDED, OPEN_PATHS
from llmgw.model.checkup import Level, lines, worst
from llmgw.wire.codec import to_json

FORMAT_VERSION = 1


@click.command("doctor", cls=Looking, short_help="Check a node, from here, on it and from another one.")
@click.argument("name")
@click.option("--json", "json_wanted", is_flag=True, help="Print it as JSON.")
@fleet_options
@click.pass_obj
def doctor(asked: Asked, *, name: str, json_wanted: bool) -> int:
    """Check everything about the node NAME: each line is ok, warn or fail, with what to do. Changes nothing.

    Its agent looks at the machine, this llmgw at how it is reached and whether it is what Git says, and another node at its
    ports: what its engines answer without a key is told. Ends with 1 when something fails.

    \b
    llmgw node doctor gpu01
    """  # noqa: D301 - click wants the character itself
    return run(_doctor(asked, name, json_wanted=json_wanted))


async def _doctor(asked: Asked, name: str, *, json_wanted: bool) -> int:
    async with fleet_of(asked) as (opened, links):
        known = await to_look_at(opened.fleet)
        node = named(known.desired, name)
        links.fleet = known.record.fleet if known.stored.record else None
        examination = Examination(
            nodes=known.desired.nodes,
            record=known.record,
            links=links,
            clock=opened.fleet.clock,
            open_paths=OPEN_PATHS,
            guarded=GUARDED,
            past=PastAgent(ssh=opened.ssh, local=opened.local),
        )
        checks = examined(await examination.of(node), OPEN_PATHS, guarded=GUARDED)
    if json_wanted:
        told = {"formatVersion": FORMAT_VERSION, "node": name, "checks": to_json(checks)}
        output.say(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        output.say("\n".join(lines(checks)))
    return output.ERROR if worst(checks) is Level.FAIL else output.DONE
