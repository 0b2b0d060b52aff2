"""``why``: the line of Git, the commit and the name behind anything that runs."""

import json

import click

from llmgw.cli import output
from llmgw.cli.main import Asked, Looking, fleet_options
from llmgw.cli.output import FORMAT_VERSION
from llmgw.cli.session import fleet_of, run
from llmgw.controller.passes.explain import Explainer
from llmgw.core.show.why import why_text
from llmgw.wire.codec import to_json


@click.command(cls=Looking, short_help="Say which line of Git, commit and person something is there for.")
@click.argument("name", metavar="NAME|NODE:PID|NODE:GPU")
@click.option("--json", "json_wanted", is_flag=True, help="Print it as JSON.")
@fleet_options
@click.pass_obj
def why(asked: Asked, *, name: str, json_wanted: bool) -> int:
    """Say why something is there: the manifest's file and line, the commit that changed it last and its author, the pass that
    started it and who set that off, why it was placed there, what failed, and what touched it since.

    NAME is a model, a replica, a shard or node/NAME; NODE:PID any process on a node, also one far below an engine; NODE:GPU-...
    a GPU by its UUID.

    \b
    llmgw why model/chat/0
    llmgw why gpu01:4711
    llmgw why gpu01:GPU-8d3f2a10
    """  # noqa: D301 - click wants the character itself
    return run(_why(asked, name, json_wanted=json_wanted))


async def _why(asked: Asked, name: str, *, json_wanted: bool) -> int:
    async with fleet_of(asked) as (opened, links):
        answer = await Explainer(opened, links).explain(name)
    if json_wanted:
        output.say(
            json.dumps({"formatVersion": FORMAT_VERSION, **to_json(answer)}, indent=2, ensure_ascii=False)
        )
    else:
        output.say(why_text(answer))
    return output.DONE
