"""``rollback``: the manifests of an earlier commit, as a new commit."""

import json
from typing import Any, Final

import click

from llmgw.cli import output
from llmgw.cli.look import of_serial
from llmgw.cli.main import Asked, fleet_options
from llmgw.cli.output import FORMAT_VERSION
from llmgw.cli.plan import show_plan
from llmgw.cli.session import fleet_of, run
from llmgw.cli.written import written
from llmgw.controller.opening import Opened
from llmgw.model.ids import Commit
from llmgw.model.problems import InvalidError, StalledError

MOST_DIGITS: Final = 6
"""Of a serial. What is longer and made of digits alone is taken for a commit's id."""


@click.command(short_help="Go back to the manifests of an earlier commit, by a new commit.")
@click.argument("target", metavar="COMMIT|SERIAL")
@click.option("--message", "-m", metavar="TEXT", help="The commit's message. [default: what is done]")
@click.option("--no-push", is_flag=True, help="Keep the commit here.")
@click.option("--json", "json_wanted", is_flag=True, help="Print the commit as JSON; no plan.")
@fleet_options
@click.pass_obj
def rollback(asked: Asked, /, **options: Any) -> int:
    """Make the fleet's folder what it was at COMMIT, or at the commit that was applied at SERIAL of `llmgw history`: a new
    commit, pushed and planned. History stays; nothing outside of the folder changes.

    \b
    llmgw rollback 12
    llmgw rollback 1f0c9a2b3d -m "The new flags lose requests"
    """  # noqa: D301 - click wants the character itself
    return run(_rollback(asked, **options))


async def _rollback(
    asked: Asked, *, target: str, message: str | None, no_push: bool, json_wanted: bool
) -> int:
    async with fleet_of(asked) as (opened, _):
        commit, named = await _meant(opened, target)
        doing = f"rolling back to {named}"
        try:
            here = written(opened)
        except InvalidError as wrong:
            raise StalledError(
                f"{doing}: what lies in the work tree is invalid already: {wrong.problems[0]}: git restore it"
            ) from wrong
        here.tree.check(here.folder, branch=await opened.followed(), doing=doing)
        if not here.tree.unchanged(here.folder):
            raise StalledError(
                f"{doing}: {here.folder} has changes that are not committed: commit or undo them first"
            )
        await opened.fleet.source.desired(commit, key_id="")  # all its problems, before anything is touched
        info = await opened.mirror.info(commit)
        subject = message or f"Roll back to {named}: {info.subject}"
        made = here.tree.restore(here.folder, commit, message=subject, doing=doing)
    pushed = here.tree.push(made) if made and not no_push else ""
    if json_wanted:
        document = {
            "formatVersion": FORMAT_VERSION,
            "commit": made or None,
            "to": commit,
            "pushedTo": pushed or None,
        }
        output.say(json.dumps(document, ensure_ascii=False))
        return output.DONE
    if not made:
        output.say(f"{here.folder} is as it was at {named} already.")
        return output.DONE
    output.say(f"Committed {here.folder} ({made}): {subject}.")
    if pushed:
        output.say(f"Pushed to {pushed}.")
    elif no_push and (hint := here.tree.push_hint()):
        output.say(f"Not pushed. Next: {hint}, then llmgw plan")
        return output.DONE
    return await show_plan(asked)


async def _meant(opened: Opened, target: str) -> tuple[Commit, str]:
    """The commit, and how it is called."""
    if not target.isdecimal() or len(target) > MOST_DIGITS:
        commit = await opened.fleet.source.commit(target)
        return commit, commit[:10]
    for entry in await of_serial(opened, int(target)):
        if applied := dict(entry.trailers).get("Llmgw-Manifests"):
            commit = await opened.fleet.source.commit(applied)
            return commit, f"serial {target} ({commit[:10]})"
    raise StalledError(f"serial {target} tells of no commit: `llmgw history` lists what there is")
