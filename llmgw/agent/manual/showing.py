"""``llmgw-agent status``, ``inventory``, ``logs`` and ``doctor``: what a person on the node wants to see, from the agent where
one answers, else from what it left."""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from llmgw.agent.manual.door import open_door
from llmgw.agent.manual.inventory import inventory_text
from llmgw.agent.manual.standin import Node, node_at
from llmgw.agent.shards.jobs import progress
from llmgw.model.checkup import Checkup, Level, lines, worst
from llmgw.model.facts import Facts
from llmgw.model.ids import ShardId
from llmgw.model.problems import NoAgentError
from llmgw.model.report import Report, ShardReport
from llmgw.wire import codec
from llmgw.wire.messages import DoctorParams, LogLine, LogsParams, ReportParams

FORMAT_VERSION = 1
ENDED = frozenset({"stopped", "failed"})


async def status(work: Path, own_env: Mapping[str, str], *, as_json: bool) -> str:
    try:
        async with open_door(work) as door:
            data = await door.ask_plain("report", ReportParams())
    except NoAgentError as nobody:
        node = _past(work, own_env, nobody)
        shards = await node.shards()
        if as_json:
            return _json({"agent": None, "node": node.settings.node, "shards": codec.to_json(shards)})
        return "\n".join([f"node {node.settings.node}   {nobody}", *_shards(shards)]) + "\n"
    return _json(data) if as_json else status_text(codec.from_json(Report, data, strict=False))


async def inventory(work: Path, own_env: Mapping[str, str], *, as_json: bool) -> str:
    facts, shards = await _seen(work, own_env)
    if as_json:
        told = {"facts": codec.to_json(facts), "shards": codec.to_json(shards)}
        return _json({"formatVersion": FORMAT_VERSION, **told})
    return inventory_text(facts, shards)


async def doctor(work: Path, own_env: Mapping[str, str], *, as_json: bool) -> tuple[str, bool]:
    """What to print, and whether nothing has failed."""
    checkup = await _checkup(work, own_env)
    well = worst(checkup.checks) is not Level.FAIL
    if as_json:
        return _json({"formatVersion": FORMAT_VERSION, **codec.to_json(checkup)}), well
    return "\n".join(lines(checkup.checks)) + "\n", well


async def logs(
    work: Path,
    own_env: Mapping[str, str],
    shard: str,
    *,
    count: int,
    follow: bool,
    say: Callable[[str], None],
) -> None:
    params = LogsParams(shard=ShardId(shard), lines=count, follow=follow)
    try:
        async with open_door(work) as door, aclosing(door.stream("logs", params, LogLine)) as found:
            async for line in found:
                say(_line(line))
    except NoAgentError as nobody:
        async for line in _past(work, own_env, nobody).logs(shard, count, follow=follow):
            say(_line(line))


def status_text(report: Report) -> str:
    """A few lines a person can read at a glance."""
    agent = report.agent
    told = [
        f"node {agent.node}   fleet {agent.fleet or '(none yet)'}",
        f"agent {agent.version}, pid {agent.pid}, since {agent.started:%Y-%m-%d %H:%M:%S} UTC",
    ]
    if report.fence is not None:
        told.append(f"last commanded by serial {report.fence.serial}, intent {report.fence.intent[:8]}")
    told += [
        f"gpu {gpu.index} {gpu.gpu_class} {gpu.uuid}  {'; '.join(gpu.health) or 'healthy'}"
        for gpu in report.facts.gpus
    ]
    told += _shards(report.shards)
    told += [
        f"job {job.job}  {job.state}  {progress(job)}  {job.error or job.last_line}".rstrip()
        for job in report.jobs
    ]
    told += [f"problem: {problem}" for problem in (*report.problems, *report.facts.problems)]
    return "\n".join(told) + "\n"


def _shards(shards: Iterable[ShardReport]) -> list[str]:
    return [
        f"shard {shard.shard}  {shard.state}  pid {shard.pid or '-'}  port {shard.port or '-'}  {shard.reason}{_by_hand(shard)}".rstrip()
        for shard in shards
    ]


def _by_hand(shard: ShardReport) -> str:
    hand = shard.by_hand
    return (
        f"  ({hand.verb} by hand by {hand.by} at {hand.at:%Y-%m-%d %H:%M:%S} UTC)" if hand is not None else ""
    )


async def _seen(work: Path, own_env: Mapping[str, str]) -> tuple[Facts, tuple[ShardReport, ...]]:
    try:
        async with open_door(work) as door:
            report = await door.ask("report", ReportParams(), Report)
    except NoAgentError as nobody:
        node = _past(work, own_env, nobody)
        facts = await node.facts()
        return facts, await node.shards()
    return report.facts, report.shards


async def _checkup(work: Path, own_env: Mapping[str, str]) -> Checkup:
    try:
        async with open_door(work) as door:
            return await door.ask("doctor", DoctorParams(), Checkup)
    except NoAgentError as nobody:
        node = _past(work, own_env, nobody)
        facts = await node.facts()
        ordered = frozenset(
            str(one.spec.shard) for one in await node.orders() if one.life.state.value not in ENDED
        )
        silence = nobody.__cause__
        why = silence.strerror if isinstance(silence, OSError) and silence.strerror else str(nobody)
        return await node.examiner().without_agent(facts, ordered=ordered, silence=why)


def _past(work: Path, own_env: Mapping[str, str], nobody: NoAgentError) -> Node:
    """The node without its agent; one that runs, and that this user may not talk to, is no reason to go past it."""
    if isinstance(nobody.__cause__, PermissionError):
        raise nobody
    return node_at(work, own_env)


def _line(line: LogLine) -> str:
    return f"[{line.process}] {line.text}" if line.process else line.text


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
