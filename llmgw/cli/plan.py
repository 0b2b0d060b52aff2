"""``llmgw plan``: show what would change, and keep it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from llmgw.cli import output
from llmgw.cli.main import Asked, Looking, fleet_options
from llmgw.cli.planned import nothing_asked, plan_text
from llmgw.cli.session import fleet_of, run
from llmgw.cli.wishes import uncommitted, wish_from, wish_options
from llmgw.controller.passes import saved as saved_plans
from llmgw.controller.passes.keys import missing
from llmgw.controller.passes.lease import open_pass
from llmgw.controller.passes.prepare import Prepared, prepare
from llmgw.controller.together import both
from llmgw.core.show.markdown import plan_markdown, problems_markdown
from llmgw.model.plan import Plan
from llmgw.model.problems import InvalidError


@click.command(cls=Looking, short_help="Show what applying the newest commit would change.")
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
@wish_options
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
        wish = await wish_from(opened, commit=commit, **wished)
        with _problems_as(markdown=markdown):
            prepared, left_out = await both(prepare(opened.fleet, wish, links), uncommitted(opened, wish))
    made = saved_plans.with_wish(prepared.plan, wish)
    if json_wanted:
        output.say(json.dumps(saved_plans.document(made), ensure_ascii=False))
    elif markdown:
        output.say(plan_markdown(made, show_commands=show_commands))
    else:
        output.say(plan_text(made, show_commands=show_commands))
    _tell_open_pass(prepared)
    if not wish.offline:
        for text in missing(made, prepared.record, prepared.desired, opened.fleet.environment):
            output.note(f"Note: {text}")
    output.note_if(nothing_asked(prepared.desired))
    output.note_if(left_out)
    if out is not None:
        saved_plans.save(made, out)
        output.note(_saved(made, out))
    elif made.commands and not (json_wanted or markdown) and not wish.offline and wish.worktree is None:
        output.note(
            "To do this: llmgw apply. To do exactly this later: llmgw plan --out FILE, llmgw apply FILE"
        )
    return _planned_code(made) if detailed_exitcode else output.DONE


def _saved(made: Plan, out: Path) -> str:
    if (how := saved_plans.only_to_read(made)) is not None:
        return (
            f"Saved to {out}, to read and to compare: it was planned {how}, so `llmgw apply` does not take it. A plan of a commit, "
            "made by asking the nodes, can be applied"
        )
    return f"Saved to {out}. To do exactly this: llmgw apply {out}"


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
