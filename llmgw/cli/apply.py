"""``llmgw apply``: carry out what a commit asks for, or exactly a plan that was kept."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from llmgw.cli import output
from llmgw.cli.asking import agree, can_answer
from llmgw.cli.ended import as_json, summary
from llmgw.cli.main import Asked, fleet_options
from llmgw.cli.planned import nothing_asked, plan_key, plan_text
from llmgw.cli.session import fleet_of, interruptible, run
from llmgw.cli.show import showing
from llmgw.cli.wishes import uncommitted, wish_from, wish_options
from llmgw.controller.opening import Opened
from llmgw.controller.passes import saved as saved_plans
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.prepare import Wish, prepare
from llmgw.controller.passes.progress import Progress
from llmgw.controller.passes.reconcile import one_pass
from llmgw.controller.passes.saved import SavedPlan
from llmgw.controller.passes.settle import Settled, ends_early, settle
from llmgw.controller.passes.values import PassRequest
from llmgw.controller.passes.verdict import verdict
from llmgw.model.plan import Plan
from llmgw.model.problems import StaleError
from llmgw.model.struct import replace
from llmgw.model.units import duration

WITHOUT_TERMINAL = "give --yes, or a plan that `llmgw plan --out` saved"


@click.command(short_help="Make the fleet what a commit asks for.")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help="Until everything is ready, or send the commands and go.",
)
@click.option("--allow-unpushed", is_flag=True, help="Apply a commit that is on no remote.")
@click.option("--lock-timeout", metavar="TIME", help="How long to wait while somebody else applies, e.g. 5m.")
@click.option("--json", "json_wanted", is_flag=True, help="Print what became of it as JSON.")
@wish_options
@fleet_options
@click.pass_obj
def apply(asked: Asked, /, **options: Any) -> int:
    """Carry out what the newest commit asks for, or exactly the plan in FILE.

    Shows the plan and asks first; --yes does not ask. Interrupted once, it finishes what is in flight and records
    the outcome; whatever happens to it, the next apply goes on from there.

    \b
    llmgw apply
    llmgw apply --yes --no-wait          # from a script; `llmgw sync` is made for cron
    llmgw apply plan.json                # what `llmgw plan --out plan.json` showed
    llmgw apply --target model/chat      # this one, and what it needs
    llmgw apply --replace model/chat/0   # a new copy of what runs
    """  # noqa: D301 - click wants the character itself
    return run(_apply(asked, **options))


async def _apply(
    asked: Asked,
    *,
    file: Path | None,
    yes: bool,
    wait: bool,
    allow_unpushed: bool,
    lock_timeout: str | None,
    json_wanted: bool,
    **wished: Any,
) -> int:
    saved = saved_plans.read(file) if file is not None else None
    if saved is None and not yes:
        can_answer(WITHOUT_TERMINAL)
    async with fleet_of(asked) as (opened, links):
        wish = await wish_from(opened, **wished)
        if saved is not None:
            wish = _wish_of(saved, wish)
        elif not json_wanted:
            output.note_if(await uncommitted(opened, wish))
        request = PassRequest(
            wish=wish,
            saved=saved,
            allow_unpushed=allow_unpushed,
            lock_timeout=seconds(lock_timeout, opened.settings.lock_timeout),
            approve=_tell if not json_wanted else None,
            recorded=opened.write_endpoints,
        )
        if saved is None and not yes:
            agreed = await _agreed(opened, wish, links)
            request = replace(request, approve=agreed)
        halt = Halt()
        with interruptible(halt), showing(sys.stderr) as progress:
            settled = await carry_out(opened, request, links, halt, progress, wait=wait)
    return tell_end(settled, json_wanted=json_wanted)


def _wish_of(saved: SavedPlan, wish: Wish) -> Wish:
    """A saved plan says itself which commit it is for, and what it was allowed."""
    if wish != Wish():
        raise click.UsageError(
            "a saved plan holds its commit and what was allowed: give no options of `llmgw plan` with it"
        )
    return saved_plans.wish_of(saved)


def seconds(text: str | None, otherwise: float) -> float:
    if text is None:
        return otherwise
    try:
        return duration(text)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="--lock-timeout") from wrong


def _tell(made: Plan) -> None:
    output.say(plan_text(made))


async def _agreed(opened: Opened, wish: Wish, links: Links) -> Callable[[Plan], None]:
    """Show the plan and ask. What is carried out must be what was agreed to."""
    prepared = await prepare(opened.fleet, wish, links)
    output.say(plan_text(prepared.plan))
    if not prepared.plan.commands:
        return _tell
    agree("Do this?", otherwise=WITHOUT_TERMINAL)
    agreed = plan_key(prepared.plan)

    def check(made: Plan) -> None:
        if plan_key(made) != agreed:
            output.say(plan_text(made))
            raise StaleError("the plan changed while you were reading it (the new one is above): apply again")

    return check


async def carry_out(
    opened: Opened, request: PassRequest, links: Links, halt: Halt, progress: Progress, *, wait: bool
) -> Settled:
    if wait:
        return await settle(opened.fleet, request, links=links, halt=halt, progress=progress)
    result = await one_pass(opened.fleet, request, links=links, halt=halt, progress=progress)
    early = request.saved is not None and ends_early(request.saved.plan)
    return Settled(last=result, passes=1, worked=bool(result.done), early=early)


def tell_end(settled: Settled, *, json_wanted: bool) -> int:
    ended = verdict(settled)
    if json_wanted:
        output.say(json.dumps(as_json(settled, ended), indent=2, ensure_ascii=False))
    for error in ended.errors:
        output.complain(error)
    if not json_wanted:
        output.note_if(nothing_asked(settled.last.prepared.desired))
        output.say(summary(settled, ended))
    return ended.code
