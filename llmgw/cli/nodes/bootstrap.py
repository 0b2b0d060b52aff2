"""``node bootstrap`` and ``node adopt``: a machine gets its agent, or another fleet's agent becomes ours."""

from collections.abc import Callable

import click

from llmgw.cli import output
from llmgw.cli.asking import agree
from llmgw.cli.main import Asked, fleet_options
from llmgw.cli.nodes.found import named, newest
from llmgw.cli.session import fleet_of, interruptible, run
from llmgw.controller.nodes.bootstrap.machine import Owner
from llmgw.controller.nodes.byhand import ByHand, insisting
from llmgw.controller.opening import Opened
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.observe import NODE_TIMEOUT
from llmgw.controller.passes.onenode import bootstrapping
from llmgw.controller.passes.prepare import Wish
from llmgw.controller.passes.progress import Silent
from llmgw.controller.passes.reconcile import one_pass
from llmgw.controller.passes.values import PassRequest, PassResult
from llmgw.core.amounts import names, plural
from llmgw.model.desired import DesiredNode
from llmgw.model.problems import LlmgwError, NoAgentError, StalledError
from llmgw.model.report import Report
from llmgw.model.struct import replace
from llmgw.wire.messages import NO_JOURNAL, ReportParams


class Told(Silent):
    """Prints what a pass says about itself."""

    def said(self, text: str) -> None:
        output.note(text)


@click.command("bootstrap", short_help="Install, mend or upgrade the agent of a node.")
@click.argument("name")
@click.option("--downgrade", is_flag=True, help="Also where the agent there is newer than this llmgw.")
@click.option("--allow-unpushed", is_flag=True, help="Use a commit that is on no remote.")
@fleet_options
@click.pass_obj
def bootstrap(asked: Asked, *, name: str, downgrade: bool, allow_unpushed: bool) -> int:
    """Bring the node NAME to where its agent answers, as `llmgw apply` would, and nothing else.

    Looks first, tells everything that the machine lacks, and does only what is missing: it may be repeated, and cut off
    anywhere. Engines that run there are not touched.

    \b
    llmgw node bootstrap gpu01
    """  # noqa: D301 - click wants the character itself
    return run(_bootstrap(asked, name, downgrade=downgrade, allow_unpushed=allow_unpushed))


async def _bootstrap(asked: Asked, name: str, *, downgrade: bool, allow_unpushed: bool) -> int:
    async with fleet_of(asked) as (opened, _):
        node = named((await newest(opened.fleet)).desired, name)
        if downgrade and node.spec.transport != "ssh":
            raise click.UsageError(f"--downgrade is for nodes over SSH, and {name} is {node.spec.transport}")
        await _reached(opened, node)
        result = await _carry_out(
            opened, name, reason="asked for by hand", allow_unpushed=allow_unpushed, downgrade=downgrade
        )
    return _told(result, name, f"The agent of {name} answers.")


@click.command("adopt", short_help="Take a node over from another fleet.")
@click.argument("name")
@click.option("--take-over", is_flag=True, help="Make its agent this fleet's.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--allow-unpushed", is_flag=True, help="Use a commit that is on no remote.")
@fleet_options
@click.pass_obj
def adopt(asked: Asked, *, name: str, take_over: bool, yes: bool, allow_unpushed: bool) -> int:
    """Show whose agent works on the node NAME and, with --take-over, make it ours.

    The engines that run there run on. This fleet's record does not know them: `llmgw status` shows them as such. The
    other fleet's controllers are refused by the node from then on.

    \b
    llmgw node adopt gpu03 --take-over
    """  # noqa: D301 - click wants the character itself
    return run(_adopt(asked, name, take_over=take_over, yes=yes, allow_unpushed=allow_unpushed))


async def _adopt(asked: Asked, name: str, *, take_over: bool, yes: bool, allow_unpushed: bool) -> int:
    async with fleet_of(asked) as (opened, _):
        known = await newest(opened.fleet)
        node = named(known.desired, name)
        if node.spec.transport != "ssh":
            raise StalledError(
                f"node {name} is {node.spec.transport}: give it a work directory of its own (local.workDir) instead of another's"
            )
        owner = await _owner(opened, node)
        if owner is None or (owner.fleet in (None, known.record.fleet) and owner.node == name):
            whose = "nobody's" if owner is None else "this fleet's already"
            output.say(
                f"Nothing to take over: the agent of {name} is {whose}. `llmgw node bootstrap {name}` sets it up."
            )
            return output.DONE
        await _tell_owner(opened, node, owner, ours=known.record.fleet)
        if not take_over:
            raise StalledError(f"to make it this fleet's: llmgw node adopt {name} --take-over")
        if not yes:
            agree(f"Take {name} over from fleet {owner.fleet}?")
        result = await _carry_out(
            opened,
            name,
            reason=f"taken over from node {owner.node} of fleet {owner.fleet}",
            allow_unpushed=allow_unpushed,
            take_over=True,
        )
    return _told(
        result,
        name,
        f"Node {name} is this fleet's ({result.record.fleet}). What runs there: llmgw node show {name}",
    )


async def _owner(opened: Opened, node: DesiredNode) -> Owner | None:
    """By its settings on disk, so that an agent which does not run right now is found as well."""
    machine = await opened.bootstrap().look(await opened.ssh.connection(node), node)
    owner = machine.inside.owner if machine.inside is not None else None
    return owner if owner is not None and owner.node else None


async def _tell_owner(opened: Opened, node: DesiredNode, owner: Owner, *, ours: str) -> None:
    output.say(
        f"The agent of {node.name} is set up as node {owner.node} of fleet {owner.fleet}; this is fleet {ours}."
    )
    links = Links(opened.fleet.transports)
    links.whoever = True
    try:
        link = await links.to(node)
        report = await link.request(
            "report", ReportParams(journal_after=NO_JOURNAL), Report, timeout=NODE_TIMEOUT
        )
    except NoAgentError:
        output.say("It does not run now.")
    except LlmgwError as wrong:
        output.say(f"What runs there is not known: {wrong}")
    else:
        shards = [shard.shard for shard in report.shards if shard.state != "stopped"]
        output.say(
            f"It runs {plural(len(shards), 'shard')}{f': {names(shards)}' if shards else ''}. They run on."
        )
    finally:
        await links.close()


# ---- both --------------------------------------------------------------------------------------------------


async def _reached(opened: Opened, node: DesiredNode) -> None:
    """A machine that can't be logged in to is told at once, and not tried for as long as a bootstrap may take."""
    if node.spec.transport == "ssh":
        await opened.ssh.connection(node)


async def _carry_out(
    opened: Opened,
    name: str,
    *,
    reason: str,
    allow_unpushed: bool,
    take_over: bool = False,
    downgrade: bool = False,
) -> PassResult:
    tell: Callable[[str], None] = lambda text: output.note(f"{name}: {text}")  # noqa: E731 - passed on by name
    request = PassRequest(
        wish=Wish(take_over=take_over),
        instead=bootstrapping(name, reason=reason),
        allow_unpushed=allow_unpushed,
        lock_timeout=opened.settings.lock_timeout,
    )
    halt = Halt()
    by_hand = ByHand(
        bootstrap=replace(opened.bootstrap(), told=tell), take_over=take_over, downgrade=downgrade, told=tell
    )
    async with insisting(opened.local, opened.around, by_hand) as ways:
        links = Links(ways)
        try:
            with interruptible(halt):
                return await one_pass(opened.fleet, request, links=links, halt=halt, progress=Told())
        finally:
            await links.close()


def _told(result: PassResult, name: str, done: str) -> int:
    if f"bootstrap {name}" in result.done:
        output.say(done)
        if result.unrecorded:
            output.complain(result.unrecorded)
            return output.ERROR
        return output.DONE
    for error in result.errors:
        output.complain(error.removeprefix(f"bootstrap {name}: "))
    if result.halted:
        output.complain(f"stopped before its end: {result.halted}; the next try goes on from there")
    return output.ERROR
