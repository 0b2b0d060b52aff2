"""``llmgw-agent``: the agent and what people and controllers call on the node. The one place of the agent that reads
the process environment."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmgw import __version__

ERROR = 1
USAGE = 64
NO_AGENT = 69
INTERRUPTED = 130
USUAL_WORK = Path("/var/lib/llmgw-agent")
MANUAL = ("stop", "start", "drain")
SHARD = "chat-1f0c9a2b-0.1-r0"
COMMANDS = (
    ("daemon", "run the agent in the foreground", "--work /srv/llmgw"),
    ("bridge", "connect standard input and output to the agent's socket", "--work /srv/llmgw"),
    ("status", "what the agent says of this node", "--json"),
    ("inventory", "what this node is made of, and who holds it", ""),
    ("doctor", "what is wrong with this node, and what to do about it", ""),
    ("logs", "what a shard's processes wrote", f"{SHARD} -n 20 -f"),
    ("stop", "stop a shard by hand", SHARD),
    ("start", "start a shard again by hand, as it was ordered last", SHARD),
    ("drain", "let a shard finish what it works on, then stop it, by hand", f"{SHARD} --timeout 60"),
)
"""Each with what it does and the words of an example."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0, 1 with a message, 64 for usage, 69 when no agent is there and none can be done without."""
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
        return _run(chosen, work, dict(os.environ))  # noqa: TID251 - the agent's one look at its environment
    except LlmgwError as wrong:
        sys.stderr.write(f"llmgw-agent {chosen.command}: {wrong}\n")
        return NO_AGENT if isinstance(wrong, NoAgentError) else ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever reads has seen enough; nothing more is written at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(chosen: argparse.Namespace, work: Path, own_env: Mapping[str, str]) -> int:
    if chosen.command == "daemon":
        from llmgw.agent.daemon import daemon  # noqa: PLC0415 - see above

        return daemon(work, own_env)
    from llmgw.agent.manual import commands  # noqa: PLC0415 - see above

    if chosen.command in MANUAL:
        return commands.act(chosen, work, own_env)
    return commands.show(chosen, work, own_env)


def own_work() -> Path:
    """The work directory that this agent lies in, as bootstrap lays it (``agents/DIGEST/lib/llmgw/agent``); else the usual one."""
    here = Path(__file__).resolve().parents
    return here[5] if len(here) > 5 and here[4].name == "agents" else USUAL_WORK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llmgw-agent",
        description="The node's side of llmgw: look at the node and break glass, without the controller.",
        epilog="`llmgw-agent status` lists the shards of this node; `llmgw-agent COMMAND --help` has an example of each.",
    )
    parser.add_argument("--version", action="version", version=f"llmgw-agent {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, told, words in COMMANDS:
        command = commands.add_parser(
            name,
            help=told,
            description=told,
            epilog=f"Example: llmgw-agent {name} {words}",
        )
        command.add_argument(
            "--work",
            default=own_work(),
            metavar="DIR",
            help="the agent's work directory; of a local node its local.workDir (default: %(default)s)",
        )
        _options(command, name)
    return parser


def _options(command: argparse.ArgumentParser, name: str) -> None:
    if name in ("status", "inventory", "doctor"):
        command.add_argument("--json", action="store_true", help="all of it as JSON")
    if name == "logs":
        command.add_argument(
            "-n", "--lines", type=int, default=100, help="of each process (default: %(default)s)"
        )
        command.add_argument("-f", "--follow", action="store_true", help="go on as they come")
    if name in MANUAL:
        command.add_argument("--no-wait", action="store_true", help="return when the agent has taken it")
    if name == "drain":
        command.add_argument(
            "--timeout",
            type=float,
            default=120.0,
            metavar="SECONDS",
            help="for what is in flight (default: %(default)g)",
        )
    if name == "logs" or name in MANUAL:
        command.add_argument("shard", metavar="SHARD", help="as `llmgw-agent status` lists it")


if __name__ == "__main__":
    sys.exit(main())
