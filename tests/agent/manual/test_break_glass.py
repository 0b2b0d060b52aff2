"""What a person types on the node, against real agents and engines, and past an agent that is dead."""

import asyncio
import json
import os
import pwd
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmgw.agent.__main__ import USUAL_WORK, own_work
from llmgw.agent.lock import only_agent
from llmgw.agent.manual.commands import who
from llmgw.model.desired import DesiredNode
from llmgw.model.problems import AgentError
from llmgw.model.struct import Struct
from llmgw.wire.messages import POLICY
from llmgw.wire.setup import Holder
from tests.agent.agents import FLEET
from tests.agent.processes import Machine, engine_spec, free_port, on_machine

SHARD = "chat-1f0c9a2b-0.1-r0"


class Ran(Struct, kw_only=False):
    code: int | None
    out: str
    err: str


async def type_in(work: Path, *words: str, **environ: str) -> Ran:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "llmgw.agent", words[0], "--work", str(work), *words[1:]),
        env={"PATH": os.defpath, "SUDO_USER": "ann", **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), timeout=60)
    return Ran(process.returncode, out.decode(), err.decode())


async def parsed(work: Path, *words: str) -> Any:
    return json.loads((await type_in(work, *words, "--json")).out)


@pytest.mark.slow
def test_a_shard_is_stopped_and_started_by_hand_until_the_controller_commands_it(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        work = machine.work(node)
        await machine.transport.bootstrap(node, fleet=FLEET)
        await machine.start(node, engine_spec(free_port()))
        await machine.shard_when(node, lambda shard: shard.state == "ready")

        stopped = await type_in(work, "stop", SHARD)
        assert stopped.code == 0, stopped
        assert stopped.out.splitlines()[-1].startswith(f"{SHARD}: stopped (stop asked: by hand by ann")
        assert "ready" not in stopped.out  # that is how it was before
        shard = await machine.shard_when(node, lambda shard: shard.state == "stopped")
        assert shard.by_hand is not None
        assert (shard.by_hand.verb, shard.by_hand.by) == ("stopped", "ann")
        assert "stopped by hand by ann at" in (await type_in(work, "status")).out

        machine.kill_agent(node)
        await machine.transport.bootstrap(node, fleet=FLEET)
        shard = await machine.shard_when(node, lambda _: True)
        assert (shard.state, shard.by_hand and shard.by_hand.verb) == ("stopped", "stopped")

        started = await type_in(work, "start", SHARD)
        assert started.code == 0, started
        assert f"{SHARD}: ready" in started.out
        again = await type_in(work, "start", SHARD)
        assert (again.code, "it is ready" in again.err) == (1, True)
        journal = (await machine.report(node)).journal
        assert [entry.text for entry in journal if entry.kind == "manual"] == [
            "stopped by hand by ann",
            "started by hand by ann",
        ]
        await machine.start(node, engine_spec(shard.port or 0), name="again")
        assert (await machine.report(node)).shards[0].by_hand is None

    on_machine(tmp_path, main)


@pytest.mark.slow
def test_without_an_agent_everything_is_done_past_it(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        work = machine.work(node)
        await machine.transport.bootstrap(node, fleet=FLEET)
        await machine.start(node, engine_spec(free_port()))
        ready = await machine.shard_when(node, lambda shard: shard.state == "ready")
        assert ready.pid is not None
        machine.kill_agent(node)

        status = await type_in(work, "status")
        assert status.code == 0, status
        assert f"its engine runs, pid {ready.pid}" in status.out
        assert (await parsed(work, "inventory"))["shards"][0]["pid"] == ready.pid
        assert "engine is up" in (await type_in(work, "logs", SHARD, "-n", "5")).out

        stopped = await type_in(work, "stop", SHARD)
        assert stopped.code == 0, stopped
        assert "No agent runs here" in stopped.out
        assert not psutil.pid_exists(ready.pid)
        started = await type_in(work, "start", SHARD)
        assert started.code == 0, started
        (shard,) = (await parsed(work, "status"))["shards"]
        assert psutil.pid_exists(shard["pid"])

        await machine.transport.bootstrap(node, fleet=FLEET)
        adopted = await machine.shard_when(node, lambda shard: shard.state == "ready")
        assert adopted.pid == shard["pid"]
        assert adopted.by_hand is not None
        assert (adopted.by_hand.verb, adopted.by_hand.by) == ("started", "ann")

        machine.kill_agent(node)
        (work / "shards" / f"{SHARD}.json").write_text('{"spec": ')
        (shard,) = (await parsed(work, "status"))["shards"]
        assert (shard["pid"], shard["reason"][:17]) == (adopted.pid, "its order is gone")
        assert f"stop {SHARD}` ends what still runs" in (await type_in(work, "doctor")).out
        stopped = await type_in(work, "stop", SHARD)
        assert stopped.code == 0, stopped
        assert not psutil.pid_exists(shard["pid"])

    on_machine(tmp_path, main)


@pytest.mark.slow
def test_the_doctor_tells_whether_an_agent_runs_and_ends_with_1_when_something_fails(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        work = machine.work(node)
        await machine.transport.bootstrap(node, fleet=FLEET)
        with_agent = await type_in(work, "doctor")
        assert "\nok    agent" in "\n" + with_agent.out, with_agent
        (work / "logs").chmod(0o777)
        (work / "shards" / "unreadable" / f"{SHARD}.json").write_text("{")
        checks = (await parsed(work, "doctor"))["checks"]
        told = {(check["name"], check["level"]): check for check in checks}
        assert told["directories", "warn"]["do"] == f"`chmod 700 {work / 'logs'}`"
        assert SHARD in told["orders", "fail"]["text"]
        machine.kill_agent(node)
        without = await type_in(work, "doctor")
        assert without.code == 1
        assert "fail  agent" in without.out
        with only_agent(work, Holder(pid=4711, start=1, version="1", settings="")):
            refused = await type_in(work, "stop", SHARD)
        assert refused.code == 1
        assert "an agent runs as pid 4711" in refused.err
        assert "end it (engines run on)" in refused.err

    on_machine(tmp_path, main)


@pytest.mark.slow
def test_a_policy_forbids_what_it_says_and_leaves_what_runs_alone(tmp_path: Path) -> None:
    policy = tmp_path / "policy" / "agent.yaml"

    async def main(machine: Machine) -> None:
        node = machine.node()
        work = machine.work(node)
        await machine.transport.bootstrap(node, fleet=FLEET)
        await machine.start(node, engine_spec(free_port()))
        ready = await machine.shard_when(node, lambda shard: shard.state == "ready")
        policy.write_text("engines: [vllm]\n")
        report = await machine.report(node)
        assert report.facts.policy is not None
        assert report.facts.policy.engines == ("vllm",)
        refused = await machine_refuses(machine, node)
        assert f"{policy}:1: the machine's policy allows vllm" in refused
        by_hand = await type_in(work, "stop", SHARD)
        assert by_hand.code == 0, by_hand
        assert "policy allows vllm" in (await type_in(work, "start", SHARD)).err
        policy.write_text("engines: vllm\n")
        assert "can't be used" in (await machine.report(node)).problems[0]
        assert "can't be used" in await machine_refuses(machine, node)
        policy.unlink()
        started = await type_in(work, "start", SHARD)
        assert started.code == 0, started
        assert ready.pid is not None

    policy.parent.mkdir()
    policy.parent.chmod(0o755)
    environ = {"PATH": os.defpath, "HOME": str(tmp_path), "LLMGW_AGENT_POLICY": str(policy)}
    on_machine(tmp_path, main, environ=environ)


async def machine_refuses(machine: Machine, node: DesiredNode) -> str:
    with pytest.raises(AgentError) as caught:
        await machine.start(
            node, engine_spec(free_port(), replica="other-1f0c9a2b-0.1"), name=os.urandom(4).hex()
        )
    assert caught.value.code == POLICY
    assert caught.value.after is None
    return str(caught.value)


def test_whom_root_is_typed_for_is_told(tmp_path: Path) -> None:
    own = pwd.getpwuid(os.geteuid()).pw_name
    assert who({"SUDO_USER": "ann"}) == "ann"
    assert who({}, Path("/nowhere")) == own
    login = tmp_path / "loginuid"
    login.write_text("4294967295")
    assert who({}, login) == own
    login.write_text("0\n")
    assert who({}, login) == "root"
    login.write_text("3999999999")
    assert who({}, login) == "uid-3999999999"


def test_what_is_not_there_is_said_with_what_to_do(tmp_path: Path) -> None:
    ran = asyncio.run(type_in(tmp_path, "status"))
    assert ran.code == 1
    assert "agent.json" in ran.err
    assert own_work() == USUAL_WORK
