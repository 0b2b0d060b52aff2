"""Questions to whoever sits at the terminal: asked when all that was named is known and shown, and only where somebody can answer."""

import sys

import click

from llmgw.cli import output


def agree(question: str, *, otherwise: str = "give --yes") -> None:
    """Goes on where the answer is yes, and ends the command with nothing done where it is no."""
    can_answer(otherwise)
    click.confirm(question, abort=True, err=True)


def can_answer(otherwise: str = "give --yes") -> None:
    """Where nobody can be asked, the command is used wrongly; ``otherwise`` says how to use it there. Looked at beforehand by commands
    that name nothing and ask only where there is something to do: they end the same way at every time."""
    if not output.is_terminal(sys.stdin):
        raise click.UsageError(f"there is no terminal to ask on: {otherwise}")
