"""Bootstrap on a machine that systemd runs: a real one, in namespaces of its own."""

import asyncio
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from llmgw.model.ids import ShardId
from llmgw.model.problems import AgentError, LlmgwError
from llmgw.wire.messages import Accepted, LogLine, LogsParams, StopParams, WatchEvent, WatchParams
from tests.agent.agents import command
from tests.controller.nodes.bareagent import report, shard_when, start_engine, stop_engine
from tests.controller.nodes.barehost import (
    FLEET,
    WORK,
    BareHost,
    bare_host,
    bootstrap,
    bundles,
    link,
    node,
    why_not,
)

NOT_PROVED = "not proved that systemd runs the agent and leaves engines alone"
RESTART_WITHIN = 2.0
pytestmark = [pytest.mark.slow, pytest.mark.long(f"a systemd of its own boots for each; {NOT_PROVED}")]


def unified() -> Path | None:
    """Where control groups of version 2 are mounted."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            return Path(before.split()[4])
    return None


@pytest.fixture
def host(tmp_path: Path) -> Iterator[BareHost]:
    groups = unified()
    if why := why_not():
        pytest.skip(why)
    if groups is None or not Path("/lib/systemd/systemd").exists() or shutil.which("systemctl") is None:
        pytest.skip(f"needs systemd and control groups of version 2: {NOT_PROVED}")
    group = groups / f"llmgw-bare-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        group.mkdir()
        group.rmdir()
    except OSError as wrong:
        pytest.skip(f"no control group can be made ({wrong.strerror}): {NOT_PROVED}")
    with bare_host(tmp_path / "host", group=group) as made:
        asyncio.run(_running(made))
        yield made


async def _running(host: BareHost) -> None:
    end = asyncio.get_running_loop().time() + 60
    while True:
        asked = [*host.prefix, "systemctl", "is-system-running"]
        state = await asyncio.to_thread(subprocess.run, asked, capture_output=True, text=True, check=False)
        if state.stdout.strip() in ("running", "degraded"):
            return
        assert asyncio.get_running_loop().time() < end, f"systemd does not come up: {state}"
        await asyncio.sleep(0.1)


def test_systemd_runs_the_agent_and_engines_outlive_it(host: BareHost, tmp_path: Path) -> None:
    async def main() -> None:
        tool = bootstrap(bundles(tmp_path / "controller"))
        done = await tool.install(host.shell, node(), fleet=FLEET)
        assert (done.changed, done.notes) == (True, ())
        assert not (await tool.install(host.shell, node(), fleet=FLEET)).changed
        assert host.run("systemctl", "is-enabled", "llmgw-agent") == "enabled\n"
        first = _main_pid(host)
        assert host.pids("main.py daemon") == [first]
        engine = await start_engine(host)

        host.run("kill", "-9", str(first))
        await _another_agent(host, first)
        after = await shard_when(host, lambda shard: shard.state == "ready")
        assert (after.pid, after.attempts) == (engine.pid, engine.attempts)

        heard = {of: asyncio.Event() for of in ("", engine.shard)}
        watching = [asyncio.ensure_future(_listen(host, of, told)) for of, told in heard.items()]
        await _until_heard(host, engine.shard, *heard.values())
        second = _main_pid(host)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.to_thread(host.run, "systemctl", "restart", "llmgw-agent")
        assert loop.time() - begun <= RESTART_WITHIN
        await asyncio.wait_for(asyncio.gather(*watching), 20)
        await _another_agent(host, second)
        after = await shard_when(host, lambda shard: shard.state == "ready")
        assert (after.pid, after.attempts) == (engine.pid, engine.attempts)

        await _hangs_and_is_replaced(host)
        after = await shard_when(host, lambda shard: shard.state == "ready")
        assert (after.pid, after.attempts) == (engine.pid, engine.attempts)

        host.run("systemctl", "stop", "llmgw-agent")  # bootstrap starts what a person has stopped
        assert (await tool.install(host.shell, node(), fleet=FLEET)).changed
        await stop_engine(host, engine.shard)
        await tool.uninstall(host.shell, node(), fleet=FLEET)
        assert host.pids("main.py daemon") == []
        assert (
            host.run("sh", "-c", "systemctl list-unit-files --no-legend 'llmgw*'; find /etc -name '*llmgw*'")
            == ""
        )

    asyncio.run(main())


def test_an_agent_that_can_not_run_is_explained_and_one_started_by_hand_gives_way(
    host: BareHost, tmp_path: Path
) -> None:
    async def main() -> None:
        tool = bootstrap(bundles(tmp_path / "controller"))
        host.run("mkdir", "-p", f"{WORK}/state")
        host.run("sh", "-c", f"echo nonsense >{WORK}/state/owner.json")
        with pytest.raises(LlmgwError, match=r"(?s)systemd had to restart it: .*owner\.json"):
            await tool.install(host.shell, node(), fleet=FLEET)
        host.run("rm", f"{WORK}/state/owner.json")
        host.run("systemctl", "stop", "llmgw-agent")
        by_hand = f"{WORK}/current/bin/llmgw-agent daemon --work {WORK} </dev/null >/dev/null 2>&1 &"
        host.run("setsid", "sh", "-c", by_hand)
        await _another_agent(host, 0)
        await tool.install(host.shell, node(), fleet=FLEET)
        assert host.pids("main.py daemon") == [_main_pid(host)]

    asyncio.run(main())


async def _hangs_and_is_replaced(host: BareHost) -> None:
    """Systemd hears nothing more from one whose loop hangs; here it loses its patience sooner."""
    folder = "/etc/systemd/system/llmgw-agent.service.d"
    lines = "[Service]\\nWatchdogSec=2\\nTimeoutAbortSec=1\\n"
    host.run("sh", "-c", f"mkdir {folder} && printf '{lines}' >{folder}/patience.conf")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", "llmgw-agent")
    hanging = _main_pid(host)
    await asyncio.sleep(3)
    assert _main_pid(host) == hanging, "it has told that it goes on"
    host.run("kill", "-STOP", str(hanging))
    await _another_agent(host, hanging)
    host.run("rm", "-r", folder)
    host.run("systemctl", "daemon-reload")


def _main_pid(host: BareHost) -> int:
    return int(host.run("systemctl", "show", "--property=MainPID", "--value", "llmgw-agent"))


async def _another_agent(host: BareHost, first: int) -> None:
    end = asyncio.get_running_loop().time() + 30
    while True:
        with suppress(OSError, LlmgwError):
            if (await report(host)).agent.pid not in (0, first):
                return
        assert asyncio.get_running_loop().time() < end, "systemd does not start it again"
        await asyncio.sleep(0.1)


async def _listen(host: BareHost, shard: str, heard: asyncio.Event) -> None:
    """A reader that stays until the agent goes: of everything, or of a shard's log, whose first line is there already."""
    connection = await link(host)
    told: AsyncIterator[WatchEvent | LogLine]
    if shard:
        told = connection.stream("logs", LogsParams(shard=ShardId(shard), follow=True), LogLine)
    else:
        told = connection.stream("watch", WatchParams(), WatchEvent)
    with suppress(LlmgwError):
        async for _ in told:
            heard.set()
    await connection.close()


async def _until_heard(host: BareHost, shard: str, *heard: asyncio.Event) -> None:
    """What an agent refuses, such as the word of a controller that has been overtaken, is told to those who watch."""
    connection = await link(host)
    stale = command("stale", serial=0, intent="2" * 40)
    end = asyncio.get_running_loop().time() + 20
    while not all(event.is_set() for event in heard):
        with pytest.raises(AgentError, match="serial 0"):
            await connection.request(
                "stop", StopParams(command=stale, shard=ShardId(shard)), Accepted, timeout=20
            )
        assert asyncio.get_running_loop().time() < end, "who watches and who follows the log hear nothing"
        await asyncio.sleep(0.05)
    await connection.close()
