"""The command line: which commands there are, and how every one of them ends.

Each command's module is imported only when it is called, so that ``llmgw --help`` is there at once.
"""

import gc
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from llmgw import __version__
from llmgw.cli import output
from llmgw.model.problems import InvalidError, LlmgwError
from llmgw.model.struct import Struct, replace

INTERRUPTED = 130
YOUNG = 50_000
"""Objects that are made before the garbage collector looks at the new ones. A plan makes hundreds of thousands that all stay and
hardly any garbage: looking after every 700, as Python does, is a tenth of the whole."""


class Entry(Struct, kw_only=False):
    """Where a command lives and what ``--help`` says of it."""

    place: str  # module:attribute
    help: str


COMMANDS: dict[str, dict[str, Entry]] = {
    "Manifests": {
        "init": Entry("manifests:init", "Start a fleet: a commented set of manifests and its secret."),
        "validate": Entry("manifests:validate", "Check the manifests of a work tree."),
        "explain": Entry("manifests:explain", "Say what a field means: its type, default and an example."),
        "schema": Entry("manifests:schema", "Print the JSON Schema of a kind."),
    },
    "Edit": {
        "set": Entry("edits:set_", "Set fields of manifests, by a commit."),
        "scale": Entry("edits:scale", "Set a model's replicas, by a commit."),
        "pin": Entry(
            "edits:pin", "Write the exact revision of a model's weights into its manifest, by a commit."
        ),
        "rollback": Entry(
            "rollback:rollback", "Go back to the manifests of an earlier commit, by a new commit."
        ),
        "drain": Entry("edits:drain", "Move what runs on a node elsewhere, by a commit."),
        "cordon": Entry("edits:cordon", "Keep new replicas away from a node, by a commit."),
        "uncordon": Entry("edits:uncordon", "Use a node again that was drained or cordoned, by a commit."),
    },
    "Fleet": {
        "plan": Entry("plan:plan", "Show what applying the newest commit would change."),
        "apply": Entry("apply:apply", "Make the fleet what a commit asks for."),
        "forget": Entry("custody:forget", "Stop managing a replica or a model; what runs runs on."),
        "adopt": Entry("custody:adopt", "Manage a replica that runs and is forgotten or unrecorded."),
        "sync": Entry("unattended:sync", "Make the fleet what the newest commit asks for, from cron."),
        "serve": Entry("unattended:serve", "Follow the branch and the nodes for as long as it runs."),
        "recover": Entry("recover:recover", "Rebuild a lost record from what the agents report."),
        "secret": Entry(
            "secret:secret", "Rotate the secret that keys are made from; show which is in force."
        ),
    },
    "Look": {
        "status": Entry("look:status", "Show what runs where, and how it is."),
        "why": Entry("why:why", "Say which line of Git, commit and person something is there for."),
        "history": Entry("look:history", "Show what was changed, when and by whom."),
        "logs": Entry("look:logs", "Print what a replica's engine wrote."),
        "endpoints": Entry("look:endpoints", "Print the URL and key of every ready replica."),
        "engine-check": Entry(
            "engine_check:engine_check", "Ask the engines on the nodes whether they know every flag."
        ),
    },
    "Nodes": {
        "node": Entry("nodes:node", "Add, look at, set up and remove nodes."),
    },
}


class Commands(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        for section in COMMANDS.values():
            if entry := section.get(name):
                module, _, attribute = entry.place.partition(":")
                command = getattr(import_module(f"llmgw.cli.{module}"), attribute)
                assert isinstance(command, click.Command)
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in (known := self.list_commands(ctx)):
            nearest = _nearest(name, known)
            meant = f" Did you mean {nearest!r}?" if nearest else ""
            raise click.UsageError(f"No such command {name!r}.{meant}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in section.items()])


class Looking(click.Command):
    """A command that changes nothing: that nothing was done goes without saying."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidError as invalid:
            raise output.OnlyLookedError(invalid.problems) from invalid


def _nearest(name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only for a slip of the keyboard

    return next(iter(get_close_matches(name, known, n=1)), "")


class Asked(Struct):
    """The options that belong to every command: which fleet. None: not given, so llmgw.yaml, the environment or
    the default decides."""

    config: Path | None = None
    repo: str | None = None
    branch: str | None = None
    path: str | None = None


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done or nothing to do, 1 error, 2 changes, 3 stale plan, 4 somebody else is applying, "
    "5 done in part, 6 blocked and nothing done, 64 wrong usage.",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.option(
    "--config", type=click.Path(path_type=Path), help="llmgw.yaml to use. [default: beside the fleet]"
)
@click.option("--repo", help="Repository of the manifests. [default: the one around this directory]")
@click.option("--branch", help="Branch to follow. [default: the repository's current one]")
@click.option("--path", help="Folder of the manifests in the repository. [default: manifests, or the top]")
@click.pass_context
def cli(
    ctx: click.Context, config: Path | None, repo: str | None, branch: str | None, path: str | None
) -> None:
    """Run large language models on your own GPU machines from a Git repository.

    \b
    llmgw init fleet && cd fleet     start
    llmgw plan                       what would change
    llmgw apply                      change it
    eval "$(llmgw endpoints --env)"  use it
    """  # noqa: D301 - click wants the character itself
    ctx.obj = Asked(config=config, repo=repo, branch=branch, path=path)


def run(arguments: Sequence[str]) -> int:
    """One command, from its words to its exit code. Every error ends here, as one message."""
    try:
        ended = cli.main(args=list(arguments), prog_name="llmgw", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        output.note("Interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    except Exception as failed:  # noqa: BLE001 - the one place where every error becomes a message
        return _failed(failed)
    return ended if isinstance(ended, int) else output.DONE


def _failed(failed: Exception) -> int:
    match failed:
        case click.exceptions.Exit():
            return failed.exit_code
        case click.Abort():
            output.note("Nothing was done.")
            return output.ERROR
        case click.ClickException():
            failed.show()
            return output.exit_code(failed)
        case _:
            return _told(failed)


def _told(failed: Exception) -> int:
    from llmgw.cli.environment import debugging  # noqa: PLC0415 - only when something failed

    if debugging():
        _print_traceback(failed)
    if isinstance(failed, LlmgwError):
        output.explain(failed)
    else:
        output.complain(
            f"llmgw itself failed: {type(failed).__name__}: {failed}. That is a bug; LLMGW_DEBUG=1 shows where"
        )
    return output.exit_code(failed)


def _print_traceback(failed: Exception) -> None:
    import traceback  # noqa: PLC0415 - only for debugging

    for line in traceback.format_exception(failed):
        output.note(line.rstrip("\n"))


def _reader_left() -> int:
    """Whoever read our output has seen enough (``llmgw history | head``): no error, and no message at exit."""
    import os  # noqa: PLC0415 - only here

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return output.DONE


def main() -> None:
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
    ended = run(sys.argv[1:])
    gc.freeze()  # all memory is given back at once: Python need not look through it for garbage before
    sys.exit(ended)


def fleet_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Lets ``--repo`` and its like stand behind the command too: ``llmgw plan --repo fleet.git``."""
    for name, kind in (("path", str), ("branch", str), ("repo", str), ("config", click.Path(path_type=Path))):
        command = click.option(f"--{name}", type=kind, hidden=True, expose_value=False, callback=_also_here)(
            command
        )
    return command


def _also_here(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    if value is not None:
        assert option.name is not None
        ctx.obj = replace(ctx.obj if isinstance(ctx.obj, Asked) else Asked(), **{option.name: value})


if __name__ == "__main__":
    main()
