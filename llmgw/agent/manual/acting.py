"""``llmgw-agent stop``, ``start`` and ``drain``: what a person orders of a shard, and waiting until it has come to that."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path

from llmgw.agent.lock import read_holder
from llmgw.agent.manual.door import open_door
from llmgw.agent.manual.standin import standing_in
from llmgw.model.problems import HeldError, NoAgentError, RetryError, StalledError
from llmgw.model.report import ShardReport
from llmgw.wire.messages import Accepted, ManualParams, WatchEvent, WatchParams

COME_TO = {
    "stop": frozenset({"stopped", "failed"}),
    "drain": frozenset({"stopped", "failed"}),
    "start": frozenset({"ready", "failed", "backoff", "stopped"}),
}
LOOK_EVERY = 0.2
Say = Callable[[str], None]


async def act(
    work: Path, own_env: Mapping[str, str], params: ManualParams, *, wait: bool, say: Say
) -> ShardReport:
    """What has become of the shard. Raises AgentError for a refusal."""
    try:
        return await _by_agent(work, params, wait=wait, say=say)
    except NoAgentError as nobody:
        if isinstance(nobody.__cause__, PermissionError):
            raise
        say("No agent runs here: doing it without one.")
        try:
            return await _without_agent(work, own_env, params, say=say)
        except HeldError as held:
            holder = read_holder(work)
            named = f" as pid {holder.pid}" if holder is not None else ""
            raise StalledError(
                f"shard {params.shard}: an agent runs{named} in {work} and does not answer: end it (engines run on), then"
                " try again"
            ) from held


async def _by_agent(work: Path, params: ManualParams, *, wait: bool, say: Say) -> ShardReport:
    async with (
        open_door(work) as commands,
        open_door(work) as watching,
        aclosing(watching.stream("watch", WatchParams(), WatchEvent)) as events,
    ):
        await events.__anext__()  # from here on nothing is missed
        report = _begun(await commands.ask("manual", params, Accepted), params, say)
        if not wait or report.state in COME_TO[params.verb]:
            return report
        async for event in events:
            if event.shard is not None and event.shard.shard == params.shard:
                report = _told(report, event.shard, say)
                if report.state in COME_TO[params.verb]:
                    return report
    raise RetryError(f"waiting for shard {params.shard}: the agent says no more: see `llmgw-agent status`")


async def _without_agent(
    work: Path, own_env: Mapping[str, str], params: ManualParams, *, say: Say
) -> ShardReport:
    """Waits in any case: what is begun here is only watched for as long as this takes."""
    async with standing_in(work, own_env, params.shard, starts=params.verb == "start") as shards:
        report = _begun(await shards.manual(params), params, say)
        while report.state not in COME_TO[params.verb]:
            await asyncio.sleep(LOOK_EVERY)
            now = next(one for one in shards.reports() if one.shard == params.shard)
            report = _told(report, now, say)
    return report


def _begun(accepted: Accepted, params: ManualParams, say: Say) -> ShardReport:
    if accepted.shard is None:
        raise RetryError(f"shard {params.shard}: {accepted.detail or 'nothing is told of it'}")
    say(_line(accepted.shard))
    return accepted.shard


def _told(before: ShardReport, now: ShardReport, say: Say) -> ShardReport:
    """What was on its way when the agent took the command says nothing any more."""
    if now.since < before.since:
        return before
    if (now.state, now.reason) != (before.state, before.reason):
        say(_line(now))
    return now


def _line(report: ShardReport) -> str:
    return f"{report.shard}: {report.state}" + (f" ({report.reason})" if report.reason else "")
