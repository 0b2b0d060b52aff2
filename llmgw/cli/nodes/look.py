"""``node list`` and ``node show``."""

import json

import click

from llmgw.cli import output
from llmgw.cli.main import Asked, Looking, fleet_options
from llmgw.cli.nodes import text
from llmgw.cli.nodes.found import named, to_look_at
from llmgw.cli.nodes.page import page
from llmgw.cli.session import fleet_of, run
from llmgw.controller.passes.observe import NODE_TIMEOUT, observe, observe_node
from llmgw.model.report import Observed, Reach
from llmgw.wire.codec import to_json


@click.command("list", cls=Looking, short_help="List the nodes and how they are.")
@click.option("--json", "json_wanted", is_flag=True, help="Print it as JSON.")
@fleet_options
@click.pass_obj
def list_nodes(asked: Asked, *, json_wanted: bool) -> int:
    """List every node of the manifests, and those that only the record still names. Asks all of them.

    \b
    llmgw node list
    """  # noqa: D301 - click wants the character itself
    return run(_list(asked, json_wanted=json_wanted))


async def _list(asked: Asked, *, json_wanted: bool) -> int:
    async with fleet_of(asked) as (opened, links):
        known = await to_look_at(opened.fleet)
        links.fleet = known.record.fleet if known.stored.record else None
        observed = await observe(known.desired.nodes, known.stored.record, links, clock=opened.fleet.clock)
        rows = text.lines(known, observed, now=opened.fleet.clock.now())
    if json_wanted:
        output.say(
            json.dumps(
                {"formatVersion": text.FORMAT_VERSION, "nodes": to_json(tuple(rows))},
                indent=2,
                ensure_ascii=False,
            )
        )
    elif rows:
        output.say(text.table(rows))
    else:
        output.say("There is no node yet: llmgw node add HOST")
    return output.DONE


@click.command("show", cls=Looking, short_help="Show what a node is and what runs there.")
@click.argument("name")
@click.option("--json", "json_wanted", is_flag=True, help="Print it as JSON.")
@fleet_options
@click.pass_obj
def show(asked: Asked, *, name: str, json_wanted: bool) -> int:
    """Show what the node NAME is made of, who holds its GPUs, and what runs there.

    \b
    llmgw node show gpu01
    """  # noqa: D301 - click wants the character itself
    return run(_show(asked, name, json_wanted=json_wanted))


async def _show(asked: Asked, name: str, *, json_wanted: bool) -> int:
    async with fleet_of(asked) as (opened, links):
        known = await to_look_at(opened.fleet)
        node = named(known.desired, name)
        links.fleet = known.record.fleet if known.stored.record else None
        recorded = known.record.nodes.get(name)
        cursor = recorded.journal_cursor if recorded is not None else 0
        seen = await observe_node(
            node, links, journal_after=cursor, clock=opened.fleet.clock, timeout=NODE_TIMEOUT
        )
        rows = text.lines(known, Observed(nodes={name: seen}), now=opened.fleet.clock.now())
    line = next(row for row in rows if row.name == name)
    if json_wanted:
        output.say(json.dumps(text.as_json(node, seen, line), indent=2, ensure_ascii=False))
    else:
        output.say(page(node, seen, line))
    return output.ERROR if seen.reach is Reach.UNREACHABLE else output.DONE
