"""Commands for single nodes, in one group: each has a module of its own."""

import click

from llmgw.cli.nodes.add import add
from llmgw.cli.nodes.bootstrap import adopt, bootstrap
from llmgw.cli.nodes.doctor import doctor
from llmgw.cli.nodes.gc import gc
from llmgw.cli.nodes.look import list_nodes, show
from llmgw.cli.nodes.remove import remove
from llmgw.cli.nodes.stop import stop_agent


@click.group(short_help="Add, look at, set up and remove nodes.")
def node() -> None:
    """Add, look at, set up and remove nodes.

    \b
    llmgw node add root@10.0.0.11 --identity ~/.ssh/id_ed25519
    llmgw node list
    llmgw node show gpu01
    """  # noqa: D301 - click wants the character itself


for command in (add, list_nodes, show, doctor, gc, bootstrap, adopt, remove, stop_agent):
    node.add_command(command)
