"""``llmgw-agent``: the agent and what people and controllers call on the node. The one place of the agent that reads
the process environment."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from llmgw import __version__

ERROR = 1
USAGE = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0, 1 with a message, 64 for usage, 69 when no agent is there."""
    parser = _parser()
    try:
        chosen = parser.parse_args(arguments)
    except SystemExit as ended:
        return USAGE if ended.code else 0
    work = Path(chosen.work).expanduser().absolute()
    if chosen.command == "bridge":
        from llmgw.agent.bridge import bridge  # noqa: PLC0415 - it starts with every connection, and the rest takes its time

        return bridge(work)
    from llmgw.model.problems import LlmgwError, NoAgentError  # noqa: PLC0415 - see above

    try:
        return _run(chosen, work)
    except LlmgwError as wrong:
        sys.stderr.write(f"llmgw-agent {chosen.command}: {wrong}\n")
        return 69 if isinstance(wrong, NoAgentError) else ERROR


def _run(chosen: argparse.Namespace, work: Path) -> int:
    if chosen.command == "status":
        from llmgw.agent.status import status  # noqa: PLC0415 - see above

        sys.stdout.write(status(work, as_json=chosen.json))
        return 0
    from llmgw.agent.daemon import daemon  # noqa: PLC0415 - see above

    return daemon(work, dict(os.environ))  # noqa: TID251 - the agent's one look at its environment


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llmgw-agent", description="The node's side of llmgw.")
    parser.add_argument("--version", action="version", version=f"llmgw-agent {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, told in (
        ("daemon", "run the agent in the foreground"),
        ("bridge", "connect standard input and output to the agent's socket"),
        ("status", "what the agent says of this node"),
    ):
        command = commands.add_parser(name, help=told, description=told)
        command.add_argument("--work", required=True, metavar="DIR", help="the agent's work directory")
        if name == "status":
            command.add_argument("--json", action="store_true", help="the whole report as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
