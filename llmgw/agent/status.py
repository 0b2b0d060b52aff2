"""``llmgw-agent status``: what the agent of a work directory says, for people on the node."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmgw import __version__
from llmgw.agent.dialing import dial
from llmgw.model.problems import NoAgentError, RetryError
from llmgw.model.report import Report
from llmgw.wire import codec, rpc
from llmgw.wire.messages import PROTOCOL, HelloParams, ReportParams, Request, Response

DEADLINE = 30.0
CHUNK = 64 * 1024


async def ask_report(work: Path) -> Any:
    """The report as JSON types. Raises NoAgentError when nobody listens."""
    try:
        connection = dial(work)
    except OSError as wrong:
        raise NoAgentError(
            f"asking the agent in {work}: {wrong.strerror}: start it with `llmgw-agent daemon --work {work}`"
        ) from wrong
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        hello = HelloParams(protocol=PROTOCOL, tool_version=__version__)
        await asyncio.wait_for(_ask(reader, writer, 1, "hello", codec.to_json(hello)), timeout=DEADLINE)
        report = _ask(reader, writer, 2, "report", codec.to_json(ReportParams()))
        return await asyncio.wait_for(report, timeout=DEADLINE)
    except asyncio.TimeoutError:
        raise RetryError(f"asking the agent in {work}: no answer within {DEADLINE:.0f} s") from None
    finally:
        writer.close()


async def _ask(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    number: int,
    method: str,
    params: Mapping[str, Any],
) -> Any:
    writer.write(rpc.encode(Request(method=method, id=number, params=params)))
    lines = rpc.Lines()
    while data := await reader.read(CHUNK):
        for line in lines.feed(data):
            answer = rpc.read_answer(line)
            if isinstance(answer, Response):
                if answer.error is not None:
                    raise rpc.refusal(answer.error)
                return answer.result
    raise RetryError(f"asking the agent for its {method}: it closed the connection: see agent.log")


def render(report: Report) -> str:
    """A few lines a person can read at a glance."""
    agent = report.agent
    lines = [
        f"node {agent.node}   fleet {agent.fleet or '(none yet)'}",
        f"agent {agent.version}, pid {agent.pid}, since {agent.started:%Y-%m-%d %H:%M:%S} UTC",
    ]
    if report.fence is not None:
        lines.append(f"last commanded by serial {report.fence.serial}, intent {report.fence.intent[:8]}")
    lines += [
        f"gpu {gpu.index} {gpu.gpu_class} {gpu.uuid}  {'; '.join(gpu.health) or 'healthy'}"
        for gpu in report.facts.gpus
    ]
    lines += [
        f"shard {shard.shard}  {shard.state}  pid {shard.pid or '-'}  port {shard.port or '-'}  {shard.reason}"
        for shard in report.shards
    ]
    lines += [
        f"job {job.job}  {job.state}  {job.description}  {job.error or job.last_line}" for job in report.jobs
    ]
    lines += [f"problem: {problem}" for problem in (*report.problems, *report.facts.problems)]
    return "\n".join(lines) + "\n"


def status(work: Path, *, as_json: bool) -> str:
    """What to print."""
    data = asyncio.run(ask_report(work))
    if as_json:
        return json.dumps(data, indent=2) + "\n"
    return render(codec.from_json(Report, data, strict=False))
