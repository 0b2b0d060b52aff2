"""Agents on this machine: bootstrap does what is needed and no more, and never takes what is another's."""

import asyncio
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import llmgw
from llmgw.controller.nodes.agentprocess import AgentProcess
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts, Gpu
from llmgw.model.manifest import Local, NodeSpec, PortRange, Secret
from llmgw.model.problems import NoAgentError, RetryError, StalledError
from llmgw.model.struct import replace
from llmgw.wire import codec
from llmgw.wire.setup import SETTINGS, AgentSettings
from tests.agent.agents import FLEET, until
from tests.agent.processes import Machine, engine_spec, free_port, on_machine

GPU = Gpu(uuid="GPU-1", index=0, name="H100", gpu_class="h100-80g", memory_total=80 * 2**30)


def test_a_machine_without_an_agent_says_so(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        with pytest.raises(NoAgentError, match="the next `llmgw apply` starts it"):
            await machine.transport.connect(machine.node(), fleet=FLEET)

    on_machine(tmp_path, main)


def test_the_probe_tells_what_the_machine_is_and_changes_nothing(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        facts = await machine.transport.probe(machine.node())
        assert facts.hostname == os.uname().nodename
        assert facts.memory_total == psutil.virtual_memory().total
        assert facts.boot_id
        assert os.listdir(tmp_path) == []  # noqa: PTH208 - one look

    on_machine(tmp_path, main)


def test_probe_and_agent_agree_on_a_node_that_pretends(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node(pretended=Facts(gpus=(GPU,), memory_total=2**41, cpus=128))
        probed = await machine.transport.probe(node)
        await machine.transport.bootstrap(node, fleet=FLEET)
        told = (await machine.report(node)).facts
        for facts in (probed, told):
            assert (facts.gpus, facts.gpu_source) == ((GPU,), "pretended")
            assert (facts.memory_total, facts.memory_available, facts.cpus) == (2**41, 2**41, 128)
            assert facts.problems == ()
        assert probed.boot_id == told.boot_id

    on_machine(tmp_path, main)


def test_a_second_bootstrap_does_nothing(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        first = machine.holder(node)
        await machine.transport.bootstrap(node, fleet=FLEET)
        assert machine.holder(node) == first

    on_machine(tmp_path, main)


def test_an_agent_comes_up_again_without_writing_what_is_there_already(tmp_path: Path) -> None:
    """On a full disk its settings could not be written anew, and the engines there stayed without an agent."""

    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        settings = machine.transport.work(node) / SETTINGS
        before = settings.stat()
        await machine.transport.stop_agent(node)
        await machine.transport.bootstrap(node, fleet=FLEET)
        assert settings.stat().st_ino == before.st_ino

    on_machine(tmp_path, main)


@pytest.mark.parametrize("change", ["ports", "pretended", "version"])
def test_other_settings_or_an_older_version_restart_the_agent_and_not_its_engines(
    tmp_path: Path, change: str
) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node(pretended=Facts(gpus=(GPU,)))
        await machine.transport.bootstrap(node, fleet=FLEET)
        await machine.start(node, engine_spec(free_port()))
        before = await machine.shard_when(node, lambda shard: shard.state == "ready")
        first = machine.holder(node)
        changed = node
        if change == "ports":
            changed = replace(node, spec=replace(node.spec, ports=PortRange(from_port=1025, to_port=65535)))
        elif change == "pretended":
            changed = replace(node, pretended=Facts(gpus=(GPU,), cpus=7))
        else:
            lock = machine.work(node) / "agent.lock"
            lock.write_bytes(codec.dumps(replace(first, version="0.0.9")))
        await machine.transport.bootstrap(changed, fleet=FLEET)
        assert machine.holder(node).pid != first.pid
        after = await machine.shard_when(node, lambda shard: shard.state == "ready")
        assert after.pid == before.pid
        await machine.stop(node, after.shard)
        await machine.shard_when(node, lambda shard: shard.state == "stopped")

    on_machine(tmp_path, main)


def test_a_newer_agent_is_never_replaced_by_an_older_one(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        first = machine.holder(node)
        newer = replace(first, version="99.0")
        (machine.work(node) / "agent.lock").write_bytes(codec.dumps(newer))
        await machine.transport.bootstrap(node, fleet=FLEET)
        changed = replace(node, spec=replace(node.spec, ports=PortRange(from_port=1025, to_port=65535)))
        with pytest.raises(StalledError, match="newer than this llmgw"):
            await machine.transport.bootstrap(changed, fleet=FLEET)
        assert psutil.pid_exists(first.pid)

    on_machine(tmp_path, main)


def test_another_fleets_directory_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        await machine.transport.stop_agent(node)
        before = (machine.work(node) / "agent.json").read_bytes()
        with pytest.raises(StalledError, match="of fleet fleet-1, this is fleet other"):
            await machine.transport.bootstrap(node, fleet="other")
        assert (machine.work(node) / "agent.json").read_bytes() == before

    on_machine(tmp_path, main)


def test_another_nodes_directory_is_refused_unless_it_was_called_so_before(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node("n1")
        await machine.transport.bootstrap(node, fleet=FLEET)
        with pytest.raises(StalledError, match=r"work directory of node n1"):
            await machine.transport.bootstrap(machine.node("n2", work="~/n1"), fleet=FLEET)
        renamed = replace(machine.node("n2", work="~/n1"), formerly=("n1",))
        first = machine.holder(renamed)
        await machine.transport.bootstrap(renamed, fleet=FLEET)
        assert machine.holder(renamed).pid != first.pid

    on_machine(tmp_path, main)


def test_connecting_as_another_fleet_is_refused_for_good(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        with pytest.raises(StalledError, match="belongs to fleet fleet-1"):
            await machine.transport.connect(node, fleet="other")

    on_machine(tmp_path, main)


def test_stopping_an_agent_twice_or_one_that_never_ran_is_no_error(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.stop_agent(node)
        await machine.transport.bootstrap(node, fleet=FLEET)
        pid = machine.holder(node).pid
        await machine.transport.stop_agent(node)
        await machine.transport.stop_agent(node)
        assert not psutil.pid_exists(pid)

    on_machine(tmp_path, main)


def test_what_a_stopped_agent_kept_is_deleted_and_what_is_not_its_own_is_told(tmp_path: Path) -> None:
    """``node remove --everything`` left all of it on a local node."""

    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        await machine.transport.stop_agent(node)
        work = machine.transport.work(node)
        (work / "mine.txt").write_text("a person's")
        assert await machine.transport.clear(node) == ("mine.txt",)
        assert [path.name for path in work.iterdir()] == ["mine.txt"]

    on_machine(tmp_path, main)


def test_an_error_holds_only_what_this_start_has_written(tmp_path: Path) -> None:
    """The third failed start told the lines of all three."""

    async def main(machine: Machine) -> None:
        node = machine.node()
        work = machine.transport.work(node)
        work.mkdir(parents=True, exist_ok=True)
        (work / "state").write_text("in the way of a folder")
        told = []
        for _ in range(2):
            with pytest.raises(StalledError) as failed:
                await machine.transport.bootstrap(node, fleet=FLEET)
            told.append(str(failed.value))
        assert told[0].count("\n") == told[1].count("\n")

    on_machine(tmp_path, main)


async def _answers(machine: Machine, node: DesiredNode) -> bool:
    try:
        async with machine.link(node):
            return True
    except (NoAgentError, RetryError):
        return False


def test_an_agent_that_another_command_started_has_ended_when_it_is_called_stopped(tmp_path: Path) -> None:
    """Its lock was gone and its process was not: a directory removed right then was written into once more."""

    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        await machine.transport.stop_agent(node)
        daemon = [sys.executable, "-m", "llmgw.agent", "daemon", "--work", str(machine.work(node))]
        # A shell in between that ends at once: the agent is nobody's child here, as in real life.
        await asyncio.to_thread(
            subprocess.run,
            ["sh", "-c", 'setsid "$@" >/dev/null 2>&1 &', "sh", *daemon],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(llmgw.__file__).parents[1])},
            check=True,
        )
        async with asyncio.timeout(30):
            while not await _answers(machine, node):  # noqa: ASYNC110 - another process: there is no event
                await asyncio.sleep(0.05)
        pid = machine.holder(node).pid
        await machine.transport.stop_agent(node)
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

    on_machine(tmp_path, main)


def test_a_lock_file_with_another_processs_number_never_gets_that_process_killed(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        real = machine.holder(node)
        lock = machine.work(node) / "agent.lock"
        lock.write_bytes(codec.dumps(replace(real, pid=os.getpid())))
        process = AgentProcess(work=machine.work(node), python="python", environ={})
        assert process.holder() == replace(real, pid=os.getpid())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await process.stop()  # we live to tell
        lock.write_bytes(codec.dumps(real))

    on_machine(tmp_path, main)


def test_the_fleets_secret_is_not_in_the_agents_environment_and_the_nodes_own_is_resolved(
    tmp_path: Path,
) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node(env={"HF_TOKEN": Secret(from_env="TOKEN"), "PLAIN": "x"})
        await machine.transport.bootstrap(node, fleet=FLEET)
        kept = codec.loads(AgentSettings, (machine.work(node) / "agent.json").read_bytes(), strict=True)
        assert kept.env == {"HF_TOKEN": "canary-1", "PLAIN": "x"}
        environ = Path(f"/proc/{machine.holder(node).pid}/environ").read_bytes()  # noqa: ASYNC240 - a test may
        assert b"canary" not in environ
        assert b"PIP_INDEX_URL=u" in environ

    given = {
        "TOKEN": "canary-1",
        "LLMGW_SECRET": "canary-2",
        "PATH": os.defpath,
        "PIP_INDEX_URL": "u",
    }
    on_machine(tmp_path, main, environ=given)


def test_a_secret_that_is_nowhere_is_named_and_nothing_is_begun(tmp_path: Path) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node(env={"HF_TOKEN": Secret(from_env="TOKEN")})
        with pytest.raises(StalledError, match="TOKEN"):
            await machine.transport.bootstrap(node, fleet=FLEET)
        assert os.listdir(tmp_path) == []  # noqa: PTH208 - one look

    on_machine(tmp_path, main)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def main(machine: Machine) -> None:
        node = machine.node(work="~/file/below")
        machine.nodes.clear()
        with pytest.raises((StalledError, NoAgentError), match="file"):
            await machine.transport.bootstrap(node, fleet=FLEET)

    on_machine(tmp_path, main)


@pytest.mark.parametrize(
    ("written", "meant"), [("~", "/home/x"), ("~/a", "/home/x/a"), ("/srv/a", "/srv/a"), (None, None)]
)
def test_the_home_directory_is_the_given_one(tmp_path: Path, written: str | None, meant: str | None) -> None:
    async def main(machine: Machine) -> None:
        node = machine.node(work=written or "~")
        machine.nodes.clear()
        transport = replace(machine.transport, home=Path("/home/x"))
        if written is None:
            default = replace(node, spec=NodeSpec(transport="local"))
            assert transport.work(default) == Path("/home/x") / Local().work_dir.removeprefix("~/")
        else:
            assert str(transport.work(node)) == meant
        with pytest.raises(StalledError, match="relative"):
            transport.work(replace(node, spec=NodeSpec(transport="local", local=Local(work_dir="a/b"))))

    on_machine(tmp_path, main)


def test_an_agent_that_was_killed_while_its_lock_is_still_held_is_started_anew(tmp_path: Path) -> None:
    """A child that it had just forked held the lock a moment longer, and the dead agent was waited for in vain."""

    async def main(machine: Machine) -> None:
        node = machine.node()
        await machine.transport.bootstrap(node, fleet=FLEET)
        dead = machine.holder(node)
        machine.kill_agent(node)
        with (machine.work(node) / "agent.lock").open("rb") as forked:
            await until(lambda: _locked(forked.fileno()))
            asyncio.get_running_loop().call_later(0.3, fcntl.flock, forked.fileno(), fcntl.LOCK_UN)
            await machine.transport.bootstrap(node, fleet=FLEET)
        assert machine.holder(node).pid != dead.pid

    on_machine(tmp_path, main)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
