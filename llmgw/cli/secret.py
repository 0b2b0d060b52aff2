"""The fleet secret: ``secret rotate`` and ``secret status``. What it is, is never printed."""

import json
import sys
from collections import Counter
from typing import Any

import click

from llmgw.cli import output
from llmgw.cli.apply import carry_out, seconds, tell_end
from llmgw.cli.asking import agree, can_answer
from llmgw.cli.main import Asked, fleet_options
from llmgw.cli.session import fleet_of, interruptible, run
from llmgw.cli.show import showing
from llmgw.controller.passes.halt import Halt
from llmgw.controller.passes.keyring import needed, unfinished
from llmgw.controller.passes.prepare import Wish
from llmgw.controller.passes.rotation import begin_rotation, rotatable
from llmgw.controller.passes.values import PassRequest
from llmgw.core.amounts import names, plural
from llmgw.model.ids import key_id

FORMAT_VERSION = 1


@click.group(short_help="Rotate the secret that keys are made from; show which is in force.")
def secret() -> None:
    """The fleet secret, from which every replica's API key is made.

    \b
    llmgw secret status
    llmgw secret rotate
    """  # noqa: D301 - click wants the character itself


@secret.command(short_help="Make a new secret, and give every replica a new key.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Until every replica has its new key."
)
@click.option("--lock-timeout", metavar="TIME", help="How long to wait while somebody else applies, e.g. 5m.")
@click.option("--json", "json_wanted", is_flag=True, help="Print what became of it as JSON.")
@fleet_options
@click.pass_obj
def rotate(asked: Asked, /, **options: Any) -> int:
    """Make a new fleet secret, and replace every replica by one whose key is made from it, by its model's rollout.

    Of the commit applied last, and nothing else. The old secret is kept beside the new one until no replica needs it, and
    `llmgw endpoints` gives each replica its own key all the time. Interrupted, the next `llmgw apply` goes on.

    \b
    llmgw secret rotate
    """  # noqa: D301 - click wants the character itself
    return run(_rotate(asked, **options))


async def _rotate(asked: Asked, *, yes: bool, wait: bool, lock_timeout: str | None, json_wanted: bool) -> int:
    if not yes:
        can_answer()
    async with fleet_of(asked) as (opened, links):
        patience = seconds(lock_timeout, opened.settings.lock_timeout)
        record = await rotatable(opened.fleet)
        if not yes:
            count = plural(len(record.replicas), "replica")
            agree(f"Make a new secret, and replace {count} one after the other?")
        rotation = await begin_rotation(opened.fleet, patience=patience)
        output.note(f"Made secret {rotation.fresh}; {rotation.before} is kept until no replica needs it.")
        request = PassRequest(
            wish=Wish(commit=rotation.commit), lock_timeout=patience, recorded=opened.write_endpoints
        )
        halt = Halt()
        with interruptible(halt), showing(sys.stderr) as progress:
            settled = await carry_out(opened, request, links, halt, progress, wait=wait)
    return tell_end(settled, json_wanted=json_wanted)


@secret.command(short_help="Show which secret is in force, and how far a rotation is.")
@click.option("--json", "json_wanted", is_flag=True, help="Print it as JSON.")
@fleet_options
@click.pass_obj
def status(asked: Asked, *, json_wanted: bool) -> int:
    """Show key ids: of the secret on this machine, of the record's, and of each replica's. Never a secret.

    \b
    llmgw secret status
    """  # noqa: D301 - click wants the character itself
    return run(_status(asked, json_wanted=json_wanted))


async def _status(asked: Asked, *, json_wanted: bool) -> int:
    async with fleet_of(asked) as (opened, _):
        record = (await opened.store.read()).record
        newest, place = opened.fleet.secret.load(), opened.fleet.secret.place
        unended = record is None or unfinished(opened.fleet, record)
        kept = sorted(opened.fleet.secret.kept())
    here = key_id(newest) if newest is not None else None
    recorded = record.key_id if record is not None else None
    replicas = Counter(it.spec.key_id for it in record.holding) if record is not None else Counter()
    missing = sorted((needed(record) if record is not None else set()) - {here, *kept})
    if json_wanted:
        told = {
            "formatVersion": FORMAT_VERSION,
            "secret": here,
            "place": place,
            "recorded": recorded,
            "kept": kept,
            "missing": missing,
            "replicas": dict(sorted(replicas.items())),
        }
        output.say(json.dumps(told, indent=2))
        return output.DONE
    output.say(f"Secret on this machine: {here or 'none'} ({place})")
    output.say(f"Secret of the record:   {recorded or 'none yet'}")
    for each, count in sorted(replicas.items()):
        output.say(f"  {plural(count, 'replica')} with a key from {each}")
    if kept:
        ends = (
            "`llmgw apply` goes on with the rotation" if unended else "What was forgotten has its key from it"
        )
        output.say(f"Kept until nothing needs it: {names(kept)}. {ends}")
    if missing:
        output.say(f"Not on this machine: {names(missing)}. Copy it from the machine that applied before")
    return output.DONE
