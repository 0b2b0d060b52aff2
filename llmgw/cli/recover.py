"""``recover``: a record that was lost is made anew."""

import click

from llmgw.cli import output
from llmgw.cli.asking import agree
from llmgw.cli.main import Asked, fleet_options
from llmgw.cli.session import fleet_of, run
from llmgw.controller.opening import Opened
from llmgw.controller.passes.lease import open_pass
from llmgw.controller.passes.recover import Before, Recovered
from llmgw.controller.passes.recover import recover as rebuild
from llmgw.controller.repo.state_branch import LostRecordError, UnreadableRecordError
from llmgw.core.amounts import plural
from llmgw.model.problems import HeldError


@click.command(short_help="Rebuild a lost record from what the agents report.")
@click.option("--commit", help="The commit whose manifests the nodes are in. [default: the branch's newest]")
@click.option(
    "--forget",
    "forgotten",
    multiple=True,
    metavar="ADDRESS",
    help="Leave this model or replica unmanaged, as `llmgw forget` had done. Repeatable.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@fleet_options
@click.pass_obj
def recover(asked: Asked, *, commit: str | None, forgotten: tuple[str, ...], yes: bool) -> int:
    """Write the record anew when the state branch is gone, can't be read or was set back, from what the agents report.

    Shows what it takes over, and asks. Its serial is one above everything that any agent obeys. Stops and starts nothing. Needs the
    fleet's secret on this machine. What was forgotten is known from a record that can be read, or was read with this state
    directory; no agent knows it.

    \b
    llmgw recover
    llmgw recover --forget model/chat/0
    """  # noqa: D301 - click wants the character itself
    return run(_recover(asked, commit=commit, forgotten=forgotten, yes=yes))


async def _recover(asked: Asked, *, commit: str | None, forgotten: tuple[str, ...], yes: bool) -> int:
    async with fleet_of(asked) as (opened, links):
        before = await _before(opened)
        chosen = await opened.fleet.source.commit(commit) if commit else None

        def approve(found: Recovered) -> None:
            _show(found)
            if not yes:
                agree("Write this record?")

        async with opened.fleet.lock(opened.settings.lock_timeout):
            found = await rebuild(
                opened.fleet, links, commit=chosen, before=before, forget=forgotten, approve=approve
            )
    output.say(
        f"The record is rebuilt at serial {found.record.serial}. See what is different from the manifests with: llmgw plan"
    )
    return output.PART if found.unreachable or found.left_alone else output.DONE


async def _before(opened: Opened) -> Before:
    store = opened.store
    try:
        stored = await store.read()
    except LostRecordError as lost:
        output.note(str(lost))
        last = await store.read_cached()
        return Before(version=None, record=last.record)
    except UnreadableRecordError as broken:
        output.note(str(broken))
        return Before(version=await store.tip(), record=None)
    if (at_work := open_pass(stored.record)) is not None and at_work.lease_until > opened.fleet.clock.now():
        raise HeldError(
            f"{at_work.holder} is applying right now (serial {at_work.serial}): nothing is recovered while that goes on"
        )
    return Before(version=stored.version, record=stored.record)


def _show(found: Recovered) -> None:
    record = found.record
    for name, error in sorted(found.unreachable.items()):
        output.note(f"Not asked: {name}: {error}")
    for line in found.left_alone:
        output.note(f"Left alone: {line}")
    for name, each in record.forgotten.items():
        output.note(f"Forgotten: {name} (by {each.by}{f': {each.why}' if each.why else ''})")
    output.say(
        f"{plural(len(record.replicas), 'replica')} on {plural(len(record.nodes), 'node')} to be managed"
        f"{':' if record.replicas else ''}"
    )
    for replica in record.replicas.values():
        where = ", ".join(rank.node for rank in replica.ranks)
        output.say(f"  {replica.id}  {replica.phase.value} on {where}")
