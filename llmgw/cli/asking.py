"""Questions to whoever sits at the terminal: asked when all that was named is known and shown, and only where somebody can answer."""

import sys

import click

from llmgw.cli import output


def agree(question: str, *, otherwise: str = "give --yes") -> None:
    """Goes on where the answer is yes, and ends the command with nothing done where it is no. ``otherwise``: what to do where nobody
    can be asked, which is a wrong use of the command."""
    if not (output.is_terminal(sys.stdin) and output.is_terminal(sys.stdout)):
        raise click.UsageError(f"there is no terminal to ask on: {otherwise}")
    click.confirm(question, abort=True, err=True)
