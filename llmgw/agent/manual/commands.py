"""From what was typed to what is done: the commands of a person on the node."""

import argparse
import asyncio
import os
import pwd
import sys
from collections.abc import Mapping
from pathlib import Path

from llmgw.agent.manual import acting, showing
from llmgw.model.ids import ShardId
from llmgw.wire.messages import ManualParams

NOBODY = 4294967295
"""Of /proc/self/loginuid: nobody has logged in to come here."""


def act(chosen: argparse.Namespace, work: Path, own_env: Mapping[str, str]) -> int:
    params = ManualParams(
        verb=chosen.command,
        shard=ShardId(chosen.shard),
        by=who(own_env),
        timeout=getattr(chosen, "timeout", 0.0),
    )
    report = asyncio.run(acting.act(work, own_env, params, wait=not chosen.no_wait, say=_say))
    return 1 if report.state in ("failed", "backoff") else 0


def show(chosen: argparse.Namespace, work: Path, own_env: Mapping[str, str]) -> int:
    match chosen.command:
        case "logs":
            asyncio.run(
                showing.logs(
                    work, own_env, chosen.shard, count=max(chosen.lines, 0), follow=chosen.follow, say=_say
                )
            )
            return 0
        case "doctor":
            text, well = asyncio.run(showing.doctor(work, own_env, as_json=chosen.json))
            sys.stdout.write(text)
            return 0 if well else 1
        case "inventory":
            sys.stdout.write(asyncio.run(showing.inventory(work, own_env, as_json=chosen.json)))
            return 0
        case _:
            sys.stdout.write(asyncio.run(showing.status(work, own_env, as_json=chosen.json)))
            return 0


def who(own_env: Mapping[str, str], loginuid: Path = Path("/proc/self/loginuid")) -> str:
    """The person behind root: who called sudo, or who has logged in; else the user itself."""
    if name := own_env.get("SUDO_USER"):
        return name
    try:
        number = int(loginuid.read_text())
    except (OSError, ValueError):
        number = NOBODY
    number = os.geteuid() if number == NOBODY else number
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid-{number}"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
