"""Commands that only look: ``status``, ``history``, ``logs``, ``endpoints``."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from llmgw.cli import output
from llmgw.cli.looked import history_rows, status_json, status_text
from llmgw.cli.main import Asked, Looking, fleet_options
from llmgw.cli.numbers import Whole
from llmgw.cli.session import fleet_of, run
from llmgw.controller.opening import Opened
from llmgw.controller.passes import endpoints as places
from llmgw.controller.passes.find import Found, find
from llmgw.controller.passes.keyring import keyring
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.observe import observe
from llmgw.controller.passes.prepare import Applied, applied
from llmgw.controller.repo.records import HistoryEntry
from llmgw.core.show.newest import Newest
from llmgw.model.problems import LlmgwError, StalledError
from llmgw.wire.messages import LogLine, LogsParams

SEARCHED = 2000
"""Commits of the state branch that are looked through for one serial."""


@click.command(cls=Looking, short_help="Show what runs where, and how it is.")
@click.option("--json", "json_wanted", is_flag=True, help="Print it as JSON.")
@fleet_options
@click.pass_obj
def status(asked: Asked, *, json_wanted: bool) -> int:
    """Show every replica: where it runs, what it computes on, since when, and what went wrong last.

    Asks the nodes; one that does not answer is shown as such.

    \b
    llmgw status
    """  # noqa: D301 - click wants the character itself
    return run(_status(asked, json_wanted=json_wanted))


async def _status(asked: Asked, *, json_wanted: bool) -> int:
    async with fleet_of(asked) as (opened, links):
        known = await applied(opened.fleet, remembered=True)
        links.fleet = known.record.fleet if known.stored.record else None
        observed = await observe(known.desired.nodes, known.stored.record, links, clock=opened.fleet.clock)
        now = opened.fleet.clock.now()
        newest = await _newest(opened, known)
    if json_wanted:
        output.say(json.dumps(status_json(known, observed, now, newest), indent=2, ensure_ascii=False))
    else:
        output.say(status_text(known, observed, now, newest))
    for doubt in known.doubt:
        output.note(f"Note: {doubt}")
    return output.DONE


async def _newest(opened: Opened, known: Applied) -> Newest | None:
    """Out of the mirror alone, which has read that commit already."""
    if known.newest is None:
        return None
    info = await opened.mirror.info(known.newest)
    return Newest(
        commit=known.newest,
        branch=await opened.mirror.branch(),
        author=info.author,
        subject=info.subject,
        partly=known.record.partial == known.newest,
        problems=known.refused,
    )


@click.command(cls=Looking, short_help="Show what was changed, when and by whom.")
@click.argument("serial", required=False, type=Whole(0, example=12))
@click.option(
    "-n",
    "limit",
    default=20,
    show_default=True,
    type=Whole(1, 2000, example=50),
    help="How many, newest first.",
)
@click.option("--json", "json_wanted", is_flag=True, help="Print it as JSON.")
@fleet_options
@click.pass_obj
def history(asked: Asked, *, serial: int | None, limit: int, json_wanted: bool) -> int:
    """Show the changes that were made, newest first; with SERIAL, everything about one of them.

    It is all in Git: `git log llmgw/state` tells the same.

    \b
    llmgw history
    llmgw history 12
    """  # noqa: D301 - click wants the character itself
    return run(_history(asked, serial=serial, limit=limit, json_wanted=json_wanted))


async def _history(asked: Asked, *, serial: int | None, limit: int, json_wanted: bool) -> int:
    async with fleet_of(asked) as (opened, _):
        if serial is None:
            entries: Sequence[HistoryEntry] = (await opened.store.history(limit=4 * limit))[:]
        else:
            entries = await of_serial(opened, serial)
    if json_wanted:
        output.say(
            json.dumps(
                [_entry_json(it) for it in entries[: limit if serial is None else None]],
                indent=2,
                ensure_ascii=False,
            )
        )
    elif serial is not None:
        output.say("\n".join(_entry_text(it) for it in reversed(entries)))
    elif not entries:
        output.say("Nothing was applied yet.")
    else:
        output.say(history_rows(entries, limit))
    return output.DONE


async def of_serial(opened: Opened, serial: int) -> Sequence[HistoryEntry]:
    """What the state branch tells of one serial, newest first. StalledError when that is nothing."""
    entries = [it for it in await opened.store.history(limit=SEARCHED) if _serial(it) == str(serial)]
    if not entries:
        raise StalledError(
            f"the state branch tells nothing of serial {serial}: `llmgw history` lists what there is"
        )
    return entries


def _serial(entry: HistoryEntry) -> str:
    return dict(entry.trailers).get("Llmgw-Serial", "")


def _entry_text(entry: HistoryEntry) -> str:
    trailers = [f"{name.removeprefix('Llmgw-')}: {value}" for name, value in entry.trailers]
    blocks = [f"{entry.at}  {entry.version[:10]}\n{entry.subject}", entry.body, "\n".join(trailers)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _entry_json(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "version": entry.version,
        "at": entry.at,
        "subject": entry.subject,
        "body": entry.body,
        "trailers": {name.removeprefix("Llmgw-").lower(): value for name, value in entry.trailers},
    }


@click.command(cls=Looking, short_help="Print what a replica's engine wrote.")
@click.argument("name")
@click.option(
    "-n",
    "lines",
    default=100,
    show_default=True,
    type=Whole(0, 10_000, example=200),
    help="Last lines to begin with.",
)
@click.option("-f", "follow", is_flag=True, help="Go on as it writes.")
@fleet_options
@click.pass_obj
def logs(asked: Asked, *, name: str, lines: int, follow: bool) -> int:
    """Print the output of the engine called NAME: a model, a replica or a shard, by any name that is printed of it.

    \b
    llmgw logs chat -f
    llmgw logs model/chat/0
    llmgw logs chat-1f0c9a2b-0.1-r0 -n 20
    """  # noqa: D301 - click wants the character itself
    try:
        return run(_logs(asked, name, lines=lines, follow=follow))
    except KeyboardInterrupt:
        return output.DONE


async def _logs(asked: Asked, name: str, *, lines: int, follow: bool) -> int:
    async with fleet_of(asked) as (opened, links):
        found = await find(opened.fleet, links, name)
        several = len(found) > 1
        ended = await asyncio.gather(
            *(
                _print(
                    links,
                    shard,
                    LogsParams(shard=shard.shard, lines=lines, follow=follow),
                    several=several,
                )
                for shard in found
            ),
            return_exceptions=True,
        )
    problems = [it for it in ended if isinstance(it, LlmgwError)]
    for other in ended:
        if isinstance(other, BaseException) and not isinstance(other, LlmgwError):
            raise other
    if problems and len(problems) == len(found):
        raise problems[0]
    for problem in problems:
        output.explain(problem)
    return output.PART if problems else output.DONE


async def _print(links: Links, shard: Found, params: LogsParams, *, several: bool) -> None:
    link = await links.to(shard.node)
    async for line in link.stream("logs", params, LogLine):
        before = f"{shard.shard} | " if several else ""
        process = f"[{line.process}] " if line.process else ""
        output.say(f"{before}{process}{line.text}")


@click.command(cls=Looking, short_help="Print the URL and key of every ready replica.")
@click.argument("model", required=False)
@click.option(
    "--env", "env_wanted", is_flag=True, help="Print shell lines for OpenAI clients, to use with eval."
)
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON (schemas/endpoints.schema.json).")
@click.option("--format", "form", type=click.Choice(places.FORMATS), help="Print it for another program.")
@click.option(
    "--write",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Into this file (mode 0600) instead.",
)
@fleet_options
@click.pass_obj
def endpoints(
    asked: Asked,
    *,
    model: str | None,
    env_wanted: bool,
    json_wanted: bool,
    form: str | None,
    file: Path | None,
) -> int:
    """Print where each replica answers and the key that opens it. MODEL is a name, served name or alias, or a replica.

    Comes from the record; asks no node. The keys are secrets.

    \b
    eval "$(llmgw endpoints --env)"
    llmgw endpoints --format litellm --write litellm.yaml
    """  # noqa: D301 - click wants the character itself
    if sum((env_wanted, json_wanted, form is not None)) > 1:
        raise click.UsageError("--env, --json and --format are three ways to print the same: choose one")
    kind = "env" if env_wanted else "json" if json_wanted else form or "table"
    return run(_endpoints(asked, model, kind=kind, file=file))


async def _endpoints(asked: Asked, model: str | None, *, kind: str, file: Path | None) -> int:
    async with fleet_of(asked) as (opened, _):
        record = (await opened.store.read()).record
        if record is None:
            raise StalledError("nothing was applied yet, so nothing serves: llmgw apply")
        found = places.reachable(record, keyring(opened.fleet, record), model)
    match kind:
        case "env":
            text = places.as_env(found)
        case "json":
            text = places.as_json(found, record)
        case "table":
            text = places.as_table(found)
        case _:
            text = places.as_format(found, kind)
    if file is None:
        output.say(text)
    else:
        places.write(text, file)
        output.note(f"Wrote {len(found)} endpoint{'s' * (len(found) != 1)} to {file} (mode 0600)")
    return output.DONE
