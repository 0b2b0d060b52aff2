"""What commands print, and the exit code they end with.

Answers go to standard output, everything about the work itself to standard error. Errors go through one redaction.
Light on purpose: ``llmgw --help`` imports it.
"""

import sys
from functools import cache
from time import gmtime
from typing import TYPE_CHECKING, TextIO

import click

from llmgw.model import exitcode
from llmgw.model.problems import InvalidError, LlmgwError

if TYPE_CHECKING:
    import logging

    from llmgw.redaction import Redactor

DONE, ERROR, CHANGES, STALE = exitcode.DONE, exitcode.ERROR, exitcode.CHANGES, exitcode.STALE
HELD, PART, BLOCKED, USAGE = exitcode.HELD, exitcode.PART, exitcode.BLOCKED, exitcode.USAGE

FORMAT_VERSION = 1
"""Of what commands print as JSON where no schema of its own says otherwise."""

_COLOURS = {"+": "green", "-": "red", "~": "yellow", "!": "magenta", ">": "cyan"}


def exit_code(error: BaseException) -> int:
    return USAGE if isinstance(error, click.UsageError) else exitcode.of(error)


@cache
def redactor() -> "Redactor":
    """The one that this process's messages go through; whoever reads a secret teaches it."""
    from llmgw.redaction import Redactor  # noqa: PLC0415 - `--help` needs none of it

    return Redactor()


def say(text: str) -> None:
    """An answer."""
    click.echo(text, nl=not text.endswith("\n"))


def note(text: str) -> None:
    """About the work, not its answer."""
    click.echo(redactor()(text), err=True)


@cache
def tell_logs() -> None:
    """From now on what libraries warn of is told like everything else: through the one redaction."""
    import logging  # noqa: PLC0415 - `--help` needs none of it

    handler = _telling("%(name)s: %(message)s")
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)


def _telling(form: str) -> "logging.Handler":
    import logging  # noqa: PLC0415 - see tell_logs

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(self.format(record))

    formatter = logging.Formatter(form, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = gmtime
    handler = Told()
    handler.setFormatter(formatter)
    return handler


def tell_of(name: str, level: int) -> None:
    """From now on what this part of llmgw logs is told from ``level`` on, one line each, with the time of day where nobody
    else writes it down."""
    import logging  # noqa: PLC0415 - see tell_logs

    from llmgw.cli.environment import environment  # noqa: PLC0415 - see redactor

    moment = "" if environment().get("JOURNAL_STREAM") else "%(asctime)s.%(msecs)03dZ "
    logger = logging.getLogger(name)
    logger.addHandler(_telling(f"{moment}%(levelname)s %(message)s"))
    logger.setLevel(level)
    logger.propagate = False


def note_if(text: str) -> None:
    """A note, where there is something to note."""
    if text:
        note(text)


def complain(text: str) -> None:
    """An error, in one message."""
    head = click.style("Error:", fg="red", bold=True) if coloured(sys.stderr) else "Error:"
    click.echo(f"{head} {redactor()(text)}", err=True)


class OnlyLookedError(InvalidError):
    """Problems that a command met which does nothing anyway."""


def explain(error: LlmgwError) -> None:
    """An error as people read it: problems one a line, so that editors can jump to them."""
    if isinstance(error, InvalidError):
        for problem in error.problems:
            click.echo(redactor()(str(problem)), err=True)
        count = len(error.problems)
        rest = "" if isinstance(error, OnlyLookedError) else ": nothing was done"
        complain(f"{count} problem{'s' * (count != 1)}{rest}")
        return
    complain(str(error))


def is_terminal(stream: TextIO) -> bool:
    """Where colour and moving lines make sense. ``NO_COLOR`` is honoured by whoever asks for colour."""
    try:
        return stream.isatty()
    except (ValueError, AttributeError):
        return False


def coloured(stream: TextIO) -> bool:
    from llmgw.cli.environment import environment  # noqa: PLC0415 - see redactor

    asked = environment()
    return is_terminal(stream) and not asked.get("NO_COLOR") and asked.get("TERM") != "dumb"


def paint(text: str, sign: str) -> str:
    """A line in the colour of its sign, on a terminal that wants colour."""
    colour = _COLOURS.get(sign[:1])
    return click.style(text, fg=colour) if colour and coloured(sys.stdout) else text
