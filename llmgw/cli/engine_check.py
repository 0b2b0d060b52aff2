"""``engine-check``: whether the engines on the nodes know every flag that the profiles could come to."""

import json

import click

from llmgw.cli import output
from llmgw.cli.main import Asked, Looking, fleet_options
from llmgw.cli.nodes.found import named, to_look_at
from llmgw.cli.session import fleet_of, run
from llmgw.controller.passes.enginecheck import EngineCheck, chosen
from llmgw.core.enginecheck.result import Checked, lines
from llmgw.wire.codec import to_json

FORMAT_VERSION = 1


@click.command(
    "engine-check", cls=Looking, short_help="Ask the engines on the nodes whether they know every flag."
)
@click.argument("profile", required=False)
@click.option("--node", help="Only on this node. [default: wherever a model of the profile may run]")
@click.option("--token", is_flag=True, help="Also have a ready replica compute one token, and say on what.")
@click.option("--json", "json_wanted", is_flag=True, help="Print it as JSON.")
@fleet_options
@click.pass_obj
def engine_check(
    asked: Asked, *, profile: str | None, node: str | None, token: bool, json_wanted: bool
) -> int:
    """Compare every command line that PROFILE could come to with the help of the engines that are installed.

    Starts no engine and changes nothing. A line begins with ! where a model could not be started, with ~ where only
    another shape of the profile could not be (LoRA, several nodes, …), with ? where nobody can tell. Ends with 1 where
    there is a !, with 5 where an engine should have answered and did not.

    \b
    llmgw engine-check
    llmgw engine-check chat --node gpu01 --token
    """  # noqa: D301 - click wants the character itself
    return run(_engine_check(asked, profile, node, token=token, json_wanted=json_wanted))


async def _engine_check(
    asked: Asked, profile: str | None, node: str | None, *, token: bool, json_wanted: bool
) -> int:
    async with fleet_of(asked) as (opened, links):
        known = await to_look_at(opened.fleet)
        nodes = tuple(sorted(known.desired.nodes)) if node is None else (named(known.desired, node).name,)
        links.fleet = known.record.fleet if known.stored.record else None
        check = EngineCheck(fleet=opened.fleet, desired=known.desired, links=links, token=token)
        found = await check.of(chosen(known.desired, profile), nodes)
    if json_wanted:
        told = {"formatVersion": FORMAT_VERSION, "checks": to_json(found)}
        output.say(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        _print(found)
    return _ended(found)


def _print(found: tuple[Checked, ...]) -> None:
    if not found:
        output.say("No model may run there, so there is no command line to compare.")
    for checked in found:
        for sign, text in lines(checked):
            output.say(output.paint(f"{sign or ' '} {text}", sign))


def _ended(found: tuple[Checked, ...]) -> int:
    if any(checked.bad for checked in found):
        return output.ERROR
    return output.PART if any(checked.unsure for checked in found) else output.DONE
