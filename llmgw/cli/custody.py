"""Commands that change whose business a replica is: ``forget``, ``adopt``."""

import json
from typing import Any

import click

from llmgw.cli import output
from llmgw.cli.asking import agree
from llmgw.cli.main import Asked, fleet_options
from llmgw.cli.output import FORMAT_VERSION
from llmgw.cli.planned import plan_key, plan_text
from llmgw.cli.session import fleet_of, run
from llmgw.controller.passes.custody import Custody, adopting, forgetting, touched
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.prepare import prepare
from llmgw.controller.passes.progress import Silent
from llmgw.controller.passes.reconcile import one_pass
from llmgw.controller.passes.values import PassRequest
from llmgw.core.amounts import names
from llmgw.model.plan import Plan
from llmgw.model.problems import StaleError
from llmgw.model.struct import replace


@click.command(short_help="Stop managing a replica or a model; what runs runs on.")
@click.argument("address")
@click.option("--why", default="", metavar="TEXT", help="For the record: who reads it wants to know.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--json", "json_wanted", is_flag=True, help="Print what became of it as JSON.")
@click.option("--allow-unpushed", is_flag=True, help="Use a commit that is on no remote.")
@fleet_options
@click.pass_obj
def forget(asked: Asked, /, *, address: str, why: str, **options: Any) -> int:
    """Stop managing what ADDRESS names: a model, model/NAME/ORDINAL, or a replica of `llmgw status`.

    It runs on and is restarted by its node's agent as before, keeps its GPUs and ports, and no plan touches it. It leaves
    `llmgw endpoints`. While Git still asks for it, the next apply places another copy where one fits.

    \b
    llmgw forget model/chat --why "handed over to the vision team"
    llmgw forget chat-1f0c9a2b-0.1 --yes
    """  # noqa: D301 - click wants the character itself
    custody = forgetting(address, why=" ".join(why.split()))
    return run(_carry_out(asked, custody, question="Stop managing it?", word="forgotten", **options))


@click.command(short_help="Manage a replica that runs and is forgotten or unrecorded.")
@click.argument("address")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--json", "json_wanted", is_flag=True, help="Print what became of it as JSON.")
@click.option("--allow-unpushed", is_flag=True, help="Use a commit that is on no remote.")
@fleet_options
@click.pass_obj
def adopt(asked: Asked, /, *, address: str, **options: Any) -> int:
    """Manage what ADDRESS names: a replica that was forgotten, or that runs and nobody recorded. Nothing restarts.

    Refused, with the fields that differ, unless it is exactly what Git asks for.

    \b
    llmgw adopt chat-1f0c9a2b-0.1
    llmgw adopt model/chat --yes --json
    """  # noqa: D301 - click wants the character itself
    return run(_carry_out(asked, adopting(address), question="Manage it?", word="adopted", **options))


async def _carry_out(
    asked: Asked,
    custody: Custody,
    *,
    question: str,
    word: str,
    yes: bool,
    json_wanted: bool,
    allow_unpushed: bool,
) -> int:
    async with fleet_of(asked) as (opened, links):
        request = PassRequest(
            instead=custody.plan,
            amend=custody.amend,
            allow_unpushed=allow_unpushed,
            lock_timeout=opened.settings.lock_timeout,
            recorded=opened.write_endpoints,
        )
        shown = custody.plan(await prepare(opened.fleet, request.wish, links))
        if not json_wanted:
            output.say(plan_text(shown))
        if not yes:
            agree(question)
        request = replace(request, approve=lambda made: _as_shown(made, shown))
        result = await one_pass(opened.fleet, request, links=links, halt=Halt(), progress=Silent())
    replicas = touched(result.plan.changes)
    if json_wanted:
        document = {"formatVersion": FORMAT_VERSION, "serial": result.record.serial, word: list(replicas)}
        output.say(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        output.say(
            f"{names(replicas)} {'is' if len(replicas) == 1 else 'are'} {word} (serial {result.record.serial})."
        )
    return output.DONE


def _as_shown(made: Plan, shown: Plan) -> None:
    if plan_key(made) != plan_key(shown):
        raise StaleError("what is meant changed while you were reading: nothing was done, try again")
