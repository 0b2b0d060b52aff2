"""``node gc``: engines and weights that nothing refers to any more are listed and, with --yes, removed."""

import json
from typing import Any

import click

from llmgw.cli import output
from llmgw.cli.main import Asked, fleet_options
from llmgw.cli.nodes.found import named, newest
from llmgw.cli.session import fleet_of, interruptible, run
from llmgw.controller.opening import Opened
from llmgw.controller.passes.collecting import Sorting, collecting, sort
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.observe import NODE_TIMEOUT
from llmgw.controller.passes.progress import Silent
from llmgw.controller.passes.reconcile import one_pass
from llmgw.controller.passes.values import PassRequest
from llmgw.core.amounts import plural, size
from llmgw.model.desired import DesiredNode
from llmgw.model.report import Report, Stored
from llmgw.wire.codec import to_json
from llmgw.wire.messages import NO_JOURNAL, ReportParams, StorageParams, StorageResult

FORMAT_VERSION = 1
LOOK_WITHIN = 120.0
"""Seconds for an agent to measure what it has stored: some hundred thousand files on a slow disk."""


@click.command("gc", short_help="List, and remove, engines and weights that nobody needs.")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Remove what is listed as unused.")
@click.option("--json", "json_wanted", is_flag=True, help="Print the list as JSON.")
@click.option("--allow-unpushed", is_flag=True, help="Use a commit that is on no remote.")
@fleet_options
@click.pass_obj
def gc(asked: Asked, *, name: str, yes: bool, json_wanted: bool, allow_unpushed: bool) -> int:
    """List what the agent of the node NAME has installed and fetched, and who needs it; with --yes remove what nobody does.

    Needed is what a model of the manifests, a recorded replica, a spec to go back to or a shard on the node stands on.
    Nothing else of llmgw ever removes weights or engines.

    \b
    llmgw node gc gpu01
    llmgw node gc gpu01 --yes
    """  # noqa: D301 - click wants the character itself
    if yes and json_wanted:
        raise click.UsageError("--json is for the list: give it, or --yes")
    return run(_gc(asked, name, yes=yes, json_wanted=json_wanted, allow_unpushed=allow_unpushed))


async def _gc(asked: Asked, name: str, *, yes: bool, json_wanted: bool, allow_unpushed: bool) -> int:
    async with fleet_of(asked) as (opened, links):
        known = await newest(opened.fleet)
        node = named(known.desired, name)
        links.fleet = known.record.fleet if known.stored.record else None
        stored = await _stored(node, links)
        found = sort(
            stored,
            node=node,
            desired=known.desired,
            record=known.record,
            report=await _report(node, links),
            adapters=opened.fleet.adapters,
        )
        if yes and found.unused:
            return await _remove(opened, links, node, stored, allow_unpushed=allow_unpushed)
    if json_wanted:
        output.say(json.dumps(as_json(name, found), indent=2, ensure_ascii=False))
    else:
        output.say(page(name, found))
    return output.DONE


async def _stored(node: DesiredNode, links: Links) -> tuple[Stored, ...]:
    link = await links.to(node)
    return (await link.request("storage", StorageParams(), StorageResult, timeout=LOOK_WITHIN)).stored


async def _report(node: DesiredNode, links: Links) -> Report:
    link = await links.to(node)
    return await link.request("report", ReportParams(journal_after=NO_JOURNAL), Report, timeout=NODE_TIMEOUT)


async def _remove(
    opened: Opened, links: Links, node: DesiredNode, stored: tuple[Stored, ...], *, allow_unpushed: bool
) -> int:
    request = PassRequest(
        instead=collecting(node.name, stored, adapters=opened.fleet.adapters),
        allow_unpushed=allow_unpushed,
        lock_timeout=opened.settings.lock_timeout,
    )
    halt = Halt()
    with interruptible(halt):
        result = await one_pass(opened.fleet, request, links=links, halt=halt, progress=Silent())
    for error in result.errors:
        output.complain(error.removeprefix(f"collect {node.name}: "))
    links.fleet = result.record.fleet
    left = {one.name: one for one in await _stored(node, links)}
    gone = [one for one in stored if one.name not in left]
    for one in gone:
        output.say(f"Removed {one.description}  {size(one.size)}  {one.path}")
    asked = {name for step in result.plan.steps for name in step.collect}
    for one in left.values():
        if one.name in asked:
            output.say(f"Kept    {one.description}: {one.held or 'it could not be removed'}")
    output.say(f"{size(sum(one.size for one in gone))} freed on {node.name}.")
    return output.ERROR if result.errors else output.DONE


# ---- as text and as JSON -------------------------------------------------------------------------------


def page(name: str, found: Sorting) -> str:
    lines = []
    if found.kept:
        lines += ["Needed", *(f"  {_line(it.stored)}: {it.why}" for it in found.kept), ""]
    if found.unused:
        lines += ["Unused", *(f"  {_line(one)}" for one in found.unused), ""]
        total = size(sum(one.size for one in found.unused))
        lines.append(
            f"{plural(len(found.unused), 'thing')} of {total} can go: llmgw node gc {name} --yes removes them."
        )
    else:
        lines.append(f"Nothing on {name} is unused.")
    return "\n".join(lines) + "\n"


def _line(one: Stored) -> str:
    return f"{one.name.partition('/')[0]}  {one.description}  {size(one.size)}  {one.path}"


def as_json(name: str, found: Sorting) -> dict[str, Any]:
    return {
        "formatVersion": FORMAT_VERSION,
        "node": name,
        "unused": [to_json(one) for one in found.unused],
        "needed": [{**to_json(it.stored), "why": it.why} for it in found.kept],
    }
