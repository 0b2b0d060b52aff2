"""Commands that go on without a person: ``sync`` from cron, ``serve`` as a daemon."""

import logging
from contextlib import AsyncExitStack
from secrets import SystemRandom

import click

import llmgw
from llmgw.cli import output
from llmgw.cli.environment import environment
from llmgw.cli.main import INTERRUPTED, Asked, fleet_options
from llmgw.cli.session import fleet_of, interruptible, run
from llmgw.controller.opening import Opened
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.progress import Silent
from llmgw.controller.repo.locks import FileLock
from llmgw.controller.serving.attempt import Attempted, Attempts, Cause
from llmgw.controller.serving.hints import Hints
from llmgw.controller.serving.loop import Loop
from llmgw.controller.serving.outward import outward
from llmgw.controller.serving.pauses import Pace
from llmgw.controller.serving.refs import place_of
from llmgw.controller.serving.snapshot import NOTHING, Snapshot, Snapshots
from llmgw.controller.settings import Settings
from llmgw.notify import ServiceManager

SYNC_LOCK, SERVE_LOCK = "sync.lock", "serve.lock"


@click.command(short_help="Make the fleet what the newest commit asks for, from cron.")
@click.option("--jitter", metavar="TIME", help="Wait a random time up to this first, such as 30s.")
@click.option("--wait", is_flag=True, help="Until everything is ready, instead of one pass.")
@click.option("--verbose", "-v", is_flag=True, help="Say so where nothing was to be done.")
@fleet_options
@click.pass_obj
def sync(asked: Asked, *, jitter: str | None, wait: bool, verbose: bool) -> int:
    """Carry out what the newest commit asks for, without asking: one pass, one line, an exit code.

    Says nothing where nothing was to be done. Never two at once on one machine: the second ends with 4.

    \b
    * * * * *  llmgw --config /etc/llmgw/llmgw.yaml sync --jitter 30s
    """  # noqa: D301 - click wants the character itself
    return run(_sync(asked, jitter, wait=wait, verbose=verbose))


async def _sync(asked: Asked, jitter: str | None, *, wait: bool, verbose: bool) -> int:
    halt = Halt()
    async with AsyncExitStack() as stack:
        opened, links = await stack.enter_async_context(
            fleet_of(asked, trigger="cron", flags={"jitter": jitter})
        )
        await stack.enter_async_context(_only_one(opened, SYNC_LOCK, "syncing").held())
        stack.enter_context(interruptible(halt))
        if await halt.sleep(SystemRandom().uniform(0, opened.settings.jitter or 0)):
            return INTERRUPTED
        attempts = Attempts(fleet=opened.fleet, links=links, recorded=opened.write_endpoints, wait=wait)
        cause = Cause(trigger="cron", why="cron")
        attempted = await attempts.make(cause, number=1, halt=halt, progress=Silent())
    return _tell(attempted, verbose=verbose)


def _tell(attempted: Attempted, *, verbose: bool) -> int:
    last = attempted.last
    errors = attempted.refused.problems if attempted.refused is not None else ()
    for error in (*errors, *last.errors):
        output.complain(error)
    if attempted.result is not None and (verbose or last.ended != NOTHING or last.code):
        output.say(f"{(last.commit or '-')[:10]} serial {last.serial} {last.ended}: {last.sentence}")
    return last.code


def _only_one(opened: Opened, name: str, doing: str) -> FileLock:
    """At most one in a state directory; whoever comes second is told the pid."""
    settings = opened.settings
    return FileLock(
        settings.state_dir / name,
        clock=opened.fleet.clock,
        holder=settings.holder,
        what=f"{doing} {settings.repo}",
        instead="there can be one for each state directory: end that one first, or leave it to it",
    )


@click.command(short_help="Follow the branch and the nodes for as long as it runs.")
@click.option(
    "--listen", metavar="ADDRESS", help="Where to answer: HOST:PORT, or none. [default: 127.0.0.1:9470]"
)
@click.option("--poll-interval", metavar="TIME", help="How often to look at the branch. [default: 30s]")
@click.option(
    "--resync-interval",
    metavar="TIME",
    help="How often to make a pass though nothing was heard. [default: 5m]",
)
@click.option("--jitter", metavar="TIME", help="Chance in the poll interval. [default: a tenth of it]")
@click.option("--verbose", "-v", is_flag=True, help="Tell of every step and every stream.")
@fleet_options
@click.pass_obj
def serve(
    asked: Asked,
    *,
    listen: str | None,
    poll_interval: str | None,
    resync_interval: str | None,
    jitter: str | None,
    verbose: bool,
) -> int:
    """Keep the fleet what the newest commit asks for, until TERM or Ctrl-C: then it finishes what is in flight.

    Looks at once when a local branch moves, when a webhook comes and when something happens on a node, else from
    time to time. One line on standard error for each pass. docs/install-controller.md makes it a service.

    \b
    llmgw serve
    llmgw serve --listen 0.0.0.0:9470 --poll-interval 1m
    """  # noqa: D301 - click wants the character itself
    flags = {
        "listen": listen,
        "pollInterval": poll_interval,
        "resyncInterval": resync_interval,
        "jitter": jitter,
    }
    return run(_serve(asked, flags, verbose=verbose))


async def _serve(asked: Asked, flags: dict[str, str | None], *, verbose: bool) -> int:
    output.tell_of("llmgw.serve", logging.DEBUG if verbose else logging.INFO)
    manager = ServiceManager(environment())
    async with AsyncExitStack() as stack:
        opened, _ = await stack.enter_async_context(fleet_of(asked, trigger="watch", flags=flags))
        await stack.enter_async_context(_only_one(opened, SERVE_LOCK, "serving").held())
        stop = Halt()
        stack.enter_context(interruptible(stop))
        snapshots, hints = Snapshots(_first(opened)), Hints()
        observers = await stack.enter_async_context(
            outward(
                opened.settings,
                snapshots=snapshots,
                hints=hints,
                clock=opened.fleet.clock,
                environ=environment(),
                redactor=output.redactor(),
                rng=SystemRandom(),
            )
        )
        loop = Loop(
            opened.fleet,
            pace=_pace(opened.settings),
            snapshots=snapshots,
            hints=hints,
            rng=SystemRandom(),
            observers=observers,
            recorded=opened.write_endpoints,
            place=place_of(opened.mirror),
        )
        logging.getLogger("llmgw.serve").info(
            "serving %s, version %s", opened.settings.repo, llmgw.__version__
        )
        manager.ready()
        try:
            await loop.run(stop)
        finally:
            manager.stopping()
    return output.DONE


def _first(opened: Opened) -> Snapshot:
    settings = opened.settings
    return Snapshot(
        started=opened.fleet.clock.now(),
        version=llmgw.__version__,
        fleet=opened.fleet.name,
        holder=settings.holder,
        ref=settings.branch or "",
    )


LOCAL_POLL = 5.0
"""Seconds between looks at a repository on this machine, at most: they cost little, and its file system does not tell all."""


def _pace(settings: Settings) -> Pace:
    poll = settings.poll_interval if settings.repo.local is None else min(settings.poll_interval, LOCAL_POLL)
    jitter = settings.jitter if settings.jitter is not None else poll / 10
    return Pace(poll=poll, jitter=min(jitter, poll), resync=settings.resync_interval)
