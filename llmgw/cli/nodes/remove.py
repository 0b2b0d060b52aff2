"""``node remove``: what runs there goes elsewhere, its agent is taken away, its manifest is removed by a commit."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Final

import click

from llmgw.cli import output
from llmgw.cli.asking import agree
from llmgw.cli.main import Asked, fleet_options
from llmgw.cli.nodes.found import named, newest
from llmgw.cli.nodes.manifest import Removal, removal
from llmgw.cli.planned import plan_key, plan_text
from llmgw.cli.session import fleet_of, interruptible, run
from llmgw.cli.show import showing
from llmgw.clock import Clock
from llmgw.controller.opening import Opened
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.leaving import Ways, uninstall
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.lostnode import giving_up
from llmgw.controller.passes.observe import NODE_TIMEOUT, observe_node
from llmgw.controller.passes.onenode import (
    demands,
    evicting,
    forgetting,
    in_the_way,
    last_of_protected,
    replicas_on,
    strays,
    what_runs,
)
from llmgw.controller.passes.prepare import Prepared, Wish, applied, prepare
from llmgw.controller.passes.progress import Silent
from llmgw.controller.passes.reconcile import one_pass
from llmgw.controller.passes.settle import settle
from llmgw.controller.passes.values import PassRequest
from llmgw.controller.passes.verdict import verdict
from llmgw.core.amounts import names
from llmgw.model.desired import DesiredNode
from llmgw.model.plan import Plan
from llmgw.model.problems import StaleError, StalledError
from llmgw.model.record import Record
from llmgw.model.report import Reach
from llmgw.model.struct import Struct, replace

STOPPED_WITHIN: Final = 180.0
"""Seconds: engines get 60 to end by themselves, GPUs 30 to be empty, and both may be configured longer."""
POLL: Final = 1.0


class Asking(Struct):
    """The options of the command."""

    name: str
    stop: bool
    lost: bool
    everything: bool
    yes: bool
    no_commit: bool
    allow_unpushed: bool


@click.command("remove", short_help="Empty a node, take its agent away and remove its manifest.")
@click.argument("name")
@click.option("--stop", is_flag=True, help="Stop what runs there at once: no drain, no successor first.")
@click.option(
    "--lost",
    is_flag=True,
    help="The machine is gone for good: give up what is recorded there, and start it elsewhere.",
)
@click.option("--everything", is_flag=True, help="Delete weights, engines and logs on the machine too.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--no-commit", is_flag=True, help="Leave the manifest alone.")
@click.option("--allow-unpushed", is_flag=True, help="Use a commit that is on no remote.")
@fleet_options
@click.pass_obj
def remove(asked: Asked, /, **options: Any) -> int:
    """Take the node NAME out of the fleet: move what runs there, wait for it, uninstall the agent, remove the manifest.

    Refuses while a model can't do without the node. Shows what it would do and asks. May be repeated: it goes on from
    where it stopped.

    A machine that will not come back can't be asked to stop anything. With --lost its replicas are given up: others start at
    once, and should it come back all the same, what it runs is told to stop.

    \b
    llmgw node remove gpu03
    llmgw node remove gpu03 --stop --yes
    llmgw node remove gpu03 --lost
    """  # noqa: D301 - click wants the character itself
    asking = Asking(**options)
    if asking.lost and (asking.stop or asking.everything):
        raise click.UsageError(
            "--lost is for a machine that nobody reaches: leave out --stop and --everything"
        )
    return run(_remove(asked, asking))


async def _remove(asked: Asked, asking: Asking) -> int:
    async with fleet_of(asked) as (opened, links):
        node, wish, in_git = await _standing(opened, asking)
        paper = None if asking.no_commit or not in_git else await removal(opened, node)
        prepared = await prepare(opened.fleet, wish, links)
        reachable = _reachable(prepared, node, asking)
        seen = prepared.observed.nodes[node.name]
        if replicas_on(prepared.record, node.name) or strays(seen, prepared.record):
            code = await _empty(opened, links, asking, wish, prepared)
            if code != output.DONE:
                return code
        elif not asking.yes:
            agree(f"Nothing of this fleet runs on {node.name}. Remove it?")
        if reachable and asking.everything:
            await _forget(opened, links, wish, node.name, allow_unpushed=asking.allow_unpushed)
        await links.drop(node.name)
        if reachable:
            await _take_away(opened, node, prepared.record, everything=asking.everything)
    return _last_words(node, paper, in_git=in_git)


async def _standing(opened: Opened, asking: Asking) -> tuple[DesiredNode, Wish, bool]:
    """The node, what to plan to empty it, and whether the newest commit still has it. A removal that was cut off after its
    commit goes on by the manifests that were applied last."""
    name, known = asking.name, await newest(opened.fleet)
    if name in known.desired.nodes and known.desired.nodes[name].leaving:
        return known.desired.nodes[name], Wish(), False
    if name in known.desired.nodes:
        found = demands(known.desired, name)
        if found and not (asking.lost and asking.no_commit):
            raise StalledError(f"node {name} can't be removed:" + "".join(f"\n  - {one}" for one in found))
        return known.desired.nodes[name], Wish(drained=name), True
    before = await applied(opened.fleet)
    if name in before.desired.nodes and before.record.commit is not None:
        return before.desired.nodes[name], Wish(commit=before.record.commit, drained=name), False
    return named(known.desired, name), Wish(drained=name), True


def _reachable(prepared: Prepared, node: DesiredNode, asking: Asking) -> bool:
    """Whether its agent can be taken away; StalledError where something runs that could not be stopped."""
    seen = prepared.observed.nodes[node.name]
    if asking.lost and seen.report is not None:
        raise StalledError(
            f"node {node.name} answers, so it is not lost: remove it without --lost, which moves what runs there"
        )
    if asking.lost:
        return False
    alone = strays(seen, prepared.record)
    if alone and not asking.stop:
        raise StalledError(
            f"node {node.name} runs {names(shard.shard for shard in alone)}, which the record does not know: apply a commit that"
            " asks for it, which adopts it, or give --stop, which stops it too"
        )
    if seen.reach is not Reach.UNREACHABLE:
        return True
    if replicas_on(prepared.record, node.name):
        raise StalledError(
            f"{seen.error}: what runs there can't be stopped ({what_runs(prepared.record, node.name)}), and what is not known to be"
            " stopped is not started elsewhere: bring the node back, then remove it; or give --lost if the machine is gone for good"
        )
    output.note(f"Note: {seen.error}: nothing of this fleet runs there, so only its manifest is removed")
    return False


# ---- emptying it ---------------------------------------------------------------------------------------


async def _empty(opened: Opened, links: Links, asking: Asking, wish: Wish, prepared: Prepared) -> int:
    """Until no replica of the record has a rank there."""
    name = asking.name
    request = PassRequest(
        wish=wish,
        allow_unpushed=asking.allow_unpushed,
        lock_timeout=opened.settings.lock_timeout,
        recorded=opened.write_endpoints,
    )
    lost = giving_up(name) if asking.lost else None
    make = lost.plan if lost is not None else evicting(name) if asking.stop else None
    _refuse(asking, prepared)
    shown = make(prepared) if make is not None else prepared.plan
    output.say(plan_text(shown))
    if not asking.yes:
        what = "Is this machine gone for good? Give these up" if asking.lost else "Do this"
        agree(f"{what}, then remove {name}?")
        request = replace(request, approve=_as_shown(shown))
    halt = Halt()
    with interruptible(halt), showing(sys.stderr) as progress:
        if make is not None:
            stopped = await one_pass(
                opened.fleet,
                replace(request, instead=make, amend=lost.amend if lost is not None else None),
                links=links,
                halt=halt,
                progress=progress,
            )
            request = replace(request, approve=None)
            if stopped.errors or stopped.halted:
                return _not_empty(name, stopped.record, (*stopped.errors, stopped.halted))
            if lost is None:
                await _until_gone(links, prepared.desired.nodes[name], stopped.record, opened.fleet.clock)
        settled = await settle(opened.fleet, request, links=links, halt=halt, progress=progress)
    ended = verdict(settled)
    if replicas_on(settled.last.record, name):
        return _not_empty(name, settled.last.record, ended.errors)
    for error in ended.errors:
        output.note(f"Note: {error}")
    return output.DONE


async def _until_gone(links: Links, node: DesiredNode, record: Record, clock: Clock) -> None:
    """What the record does not know is waited for here: no pass does."""
    loop = asyncio.get_running_loop()
    until = loop.time() + STOPPED_WITHIN
    known = record.nodes.get(node.name)
    cursor = known.journal_cursor if known is not None else 0
    while True:
        seen = await observe_node(node, links, journal_after=cursor, clock=clock, timeout=NODE_TIMEOUT)
        alone = strays(seen, record)
        if not alone:
            return
        if loop.time() > until:
            raise StalledError(
                f"node {node.name}: {names(shard.shard for shard in alone)} has not stopped within {STOPPED_WITHIN:g} s: look at"
                f" llmgw node show {node.name}, then try again"
            )
        await asyncio.sleep(POLL)


def _as_shown(shown: Plan) -> Callable[[Plan], None]:
    """What is carried out must be what was agreed to."""

    def check(made: Plan) -> None:
        if plan_key(made) != plan_key(shown):
            raise StaleError(
                "the plan changed while you were reading it: nothing was done, remove the node again"
            )

    return check


def _refuse(asking: Asking, prepared: Prepared) -> None:
    """Before anything is commanded."""
    name, record = asking.name, prepared.record
    if asking.lost:
        return  # what a dead machine held is gone already, protected or not
    if asking.stop:
        if last := last_of_protected(record, prepared.desired, prepared.observed, name):
            raise StalledError(
                f"node {name} holds the last ready replica of {names(last)}, which is protected: remove it without --stop, which"
                " starts a successor first, or apply protect: false"
            )
        return
    if found := in_the_way(prepared.plan, record, name):
        raise StalledError(
            f"node {name} can't be emptied:"
            + "".join(f"\n  - {one}" for one in found)
            + "\nMake room elsewhere, ask for fewer replicas, or give --stop, which stops them without a successor"
        )


def _not_empty(name: str, record: Record, errors: tuple[str, ...]) -> int:
    for error in errors:
        if error:
            output.complain(error)
    output.say(
        f"Node {name} is not empty yet ({what_runs(record, name)}), so its agent stays. Try again: it goes on from here."
    )
    return output.PART


# ---- taking the agent away -----------------------------------------------------------------------------


async def _forget(opened: Opened, links: Links, wish: Wish, name: str, *, allow_unpushed: bool) -> None:
    """Orders of what has stopped keep a machine from being cleared."""
    request = PassRequest(
        wish=wish,
        instead=forgetting(name),
        allow_unpushed=allow_unpushed,
        lock_timeout=opened.settings.lock_timeout,
    )
    result = await one_pass(opened.fleet, request, links=links, halt=Halt(), progress=Silent())
    if result.errors:
        raise StalledError(f"clearing {name}: {'; '.join(result.errors)}: try again, or without --everything")


async def _take_away(opened: Opened, node: DesiredNode, record: Record, *, everything: bool) -> None:
    left = await uninstall(
        node,
        fleet=opened.fleet,
        owner=record.fleet,
        ways=Ways(ssh=opened.ssh, local=opened.local, bootstrap=opened.bootstrap()),
        lock_timeout=opened.settings.lock_timeout,
        everything=everything,
        told=lambda text: output.note(f"{node.name}: {text}"),
    )
    output.say(f"The agent of {node.name} is {'stopped' if node.spec.transport == 'local' else 'removed'}.")
    if left:
        output.say(f"Left there: {', '.join(left)}")


def _last_words(node: DesiredNode, paper: Removal | None, *, in_git: bool) -> int:
    if paper is not None:
        commit = paper.carry_out()
        push = paper.tree.push_hint()
        output.say(f"Removed it from {paper.path} ({commit}).")
        if push:
            output.say(
                f"Next: {push}, before somebody applies and sets it up again; then llmgw apply forgets it."
            )
        else:
            output.say("Next: llmgw apply, which forgets it.")
    elif in_git:
        output.say(f"Next: remove it from {node.where} by a commit; until then, an apply sets it up again.")
    else:
        output.say("Git does not name it any more: the next apply forgets it.")
    return output.DONE
