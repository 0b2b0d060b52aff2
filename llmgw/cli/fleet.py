"""Commands that plan and change the fleet: ``plan``, ``apply``."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from llmgw.cli import output
from llmgw.cli.addresses import ADDRESS, MODEL_ADDRESS
from llmgw.cli.asking import agree, can_answer
from llmgw.cli.main import Asked, fleet_options
from llmgw.cli.session import fleet_of, interruptible, run
from llmgw.cli.show import showing
from llmgw.cli.told import as_json, nothing_asked, plan_key, plan_text, summary
from llmgw.controller.opening import Opened
from llmgw.controller.passes import saved as saved_plans
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.lease import open_pass
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.prepare import Prepared, Wish, prepare
from llmgw.controller.passes.progress import Progress
from llmgw.controller.passes.reconcile import one_pass
from llmgw.controller.passes.saved import SavedPlan
from llmgw.controller.passes.settle import Settled, ends_early, settle
from llmgw.controller.passes.values import PassRequest
from llmgw.controller.passes.verdict import verdict
from llmgw.core.show.markdown import plan_markdown, problems_markdown
from llmgw.model.plan import Plan
from llmgw.model.problems import InvalidError, StaleError
from llmgw.model.units import duration

Command = Callable[..., Any]


def _wishes(command: Command) -> Command:
    """Options that ``plan`` and ``apply`` have in common."""
    for option in (
        click.option(
            "--commit",
            help="Plan this branch, tag, commit, HEAD (the newest of the branch that is followed), or one behind any of them (main~2). "
            "[default: HEAD] `plan --offline` takes A..B too: what B changes against A, whichever is newer.",
        ),
        click.option("--allow-rollback", is_flag=True, help="Go back behind the commit applied last."),
        click.option(
            "--allow-unknown-size",
            is_flag=True,
            help="Place models whose memory nobody can tell, as if they fitted.",
        ),
        click.option(
            "--allow-prune",
            is_flag=True,
            help="Remove more than spec.prune of the Fleet allows, even everything.",
        ),
        click.option(
            "--prune-unrecorded",
            is_flag=True,
            help="Stop what agents of this fleet run and no record knows, unless Git asks for it.",
        ),
        click.option(
            "--target",
            "targets",
            multiple=True,
            metavar="ADDRESS",
            type=ADDRESS,
            help="Only this model, replica or node, and what it needs: model/chat, model/chat/0, node/gpu01. Repeatable.",
        ),
        click.option(
            "--replace",
            "replaced",
            multiple=True,
            metavar="ADDRESS",
            type=MODEL_ADDRESS,
            help="New copies of this model or replica, though nothing changed; try again what is held. Repeatable.",
        ),
        click.option(
            "--override-freeze",
            "override",
            metavar="REASON",
            default="",
            help="Make changes although the fleet is suspended or outside its sync windows. The record says why.",
        ),
    ):
        command = option(command)
    return command


@click.command(short_help="Show what applying the newest commit would change.")
@click.option(
    "--json", "json_wanted", is_flag=True, help="Print the plan as JSON (schemas/plan.schema.json)."
)
@click.option("--markdown", is_flag=True, help="Print it as Markdown, for a comment on a pull request.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Keep the plan, to apply exactly this."
)
@click.option("--offline", is_flag=True, help="Ask no node: plan from the record. Can't be applied.")
@click.option("--worktree", is_flag=True, help="Plan the files as they are, uncommitted. Can't be applied.")
@click.option("--show-commands", is_flag=True, help="Show exact command lines and environments.")
@click.option(
    "--detailed-exitcode",
    is_flag=True,
    help="Exit with 2 when something would change, 6 when all that is asked for is blocked.",
)
@_wishes
@fleet_options
@click.pass_obj
def plan(asked: Asked, /, **options: Any) -> int:
    """Show what `llmgw apply` would do, where everything would go and why. Changes nothing.

    \b
    llmgw plan
    llmgw plan --out plan.json && llmgw apply plan.json
    llmgw plan --offline --markdown               # in a pull request's check
    """  # noqa: D301 - click wants the character itself
    return run(show_plan(asked, **options))


@contextmanager
def _problems_as(*, markdown: bool) -> Iterator[None]:
    """Who reads a comment must find there what is wrong, too."""
    try:
        yield
    except InvalidError as wrong:
        if markdown:
            output.say(problems_markdown(wrong.problems))
        raise


async def show_plan(
    asked: Asked,
    *,
    json_wanted: bool = False,
    markdown: bool = False,
    out: Path | None = None,
    show_commands: bool = False,
    detailed_exitcode: bool = False,
    commit: str | None = None,
    **wished: Any,
) -> int:
    if json_wanted and markdown:
        raise click.UsageError("--json and --markdown are two ways to print the same: choose one")
    async with fleet_of(asked) as (opened, links):
        wish = await _wish(opened, commit=commit, **wished)
        with _problems_as(markdown=markdown):
            prepared, left_out = await asyncio.gather(
                prepare(opened.fleet, wish, links), _uncommitted(opened, wish)
            )
    made = saved_plans.with_wish(prepared.plan, wish)
    if json_wanted:
        output.say(json.dumps(saved_plans.document(made), ensure_ascii=False))
    elif markdown:
        output.say(plan_markdown(made, show_commands=show_commands))
    else:
        output.say(plan_text(made, show_commands=show_commands))
    _tell_open_pass(prepared)
    output.note_if(nothing_asked(prepared.desired))
    output.note_if(left_out)
    if out is not None:
        saved_plans.save(made, out)
        output.note(f"Saved to {out}. To do exactly this: llmgw apply {out}")
    elif made.commands and not (json_wanted or markdown) and not wish.offline and wish.worktree is None:
        output.note(
            "To do this: llmgw apply. To do exactly this later: llmgw plan --out FILE, llmgw apply FILE"
        )
    return _planned_code(made) if detailed_exitcode else output.DONE


async def _wish(
    opened: Opened,
    *,
    commit: str | None,
    offline: bool = False,
    worktree: bool = False,
    targets: tuple[str, ...] = (),
    replaced: tuple[str, ...] = (),
    override: str = "",
    **allowed: Any,
) -> Wish:
    """``allowed``: what the flags of a wish's own names say."""
    if commit is not None and worktree:
        raise click.UsageError("--commit and --worktree name two different things to plan: give one of them")
    since, meant = _ends(commit, offline=offline)
    source = opened.fleet.source
    return Wish(
        commit=await source.commit(meant) if meant else None,
        since=await source.commit(since) if since else None,
        worktree=opened.worktree if worktree else None,
        offline=offline,
        targets=tuple(dict.fromkeys(targets)),
        replaced=tuple(dict.fromkeys(replaced)),
        override=" ".join(override.split()),
        **allowed,
    )


def _ends(commit: str | None, *, offline: bool) -> tuple[str | None, str | None]:
    """What is taken for applied, and what is planned. An end that is left out is HEAD, as with git."""
    before, between, after = (commit or "").partition("..")
    if not between:
        return None, commit or None
    if after.startswith("."):
        raise click.UsageError(f"--commit A...B is no comparison of two commits: write A..B, got {commit}")
    if not offline:
        raise click.UsageError(
            "--commit A..B compares two commits, which needs no node: llmgw plan --offline --commit A..B"
        )
    return before or "HEAD", after or "HEAD"


UNCOMMITTED_SHOWN = 3
WITHOUT_TERMINAL = "give --yes, or a plan that `llmgw plan --out` saved"


async def _uncommitted(opened: Opened, wish: Wish) -> str:
    """What somebody who has just edited a manifest has to know, or nothing."""
    if wish.worktree is not None or wish.commit is not None:
        return ""
    files = await opened.mirror.uncommitted()
    if not files:
        return ""
    more = f" and {len(files) - UNCOMMITTED_SHOWN} more" if len(files) > UNCOMMITTED_SHOWN else ""
    return (
        f"Note: not committed, so no part of this: {', '.join(files[:UNCOMMITTED_SHOWN])}{more}. Commit it, or see what it "
        "would change with: llmgw plan --worktree"
    )


def _planned_code(made: Plan) -> int:
    if made.commands:
        return output.CHANGES
    return output.BLOCKED if made.blocked else output.DONE


def _tell_open_pass(prepared: Prepared) -> None:
    at_work = open_pass(prepared.stored.record)
    if at_work is not None:
        output.note(
            f"Note: {at_work.holder} began serial {at_work.serial} at {at_work.started:%H:%M:%S} UTC and has not told how "
            "it ended: this plan is about what that pass meant to do"
        )


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
@_wishes
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
        wish = await _wish(opened, **wished)
        if saved is not None:
            wish = _wish_of(saved, wish)
        elif not json_wanted:
            output.note_if(await _uncommitted(opened, wish))
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
