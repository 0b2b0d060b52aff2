"""What a real engine computes on, by the real agent over NVML's real binding and a library that is made up: its process is
found among those that hold memory, and what was seen outlives the agent and the driver."""

from pathlib import Path

import psutil
import pytest

from llmgw.model.claims import Claims, GpuClaim
from llmgw.model.launch import Process
from llmgw.model.report import ComputesOn
from llmgw.model.struct import replace
from tests.agent.agents import FLEET
from tests.agent.discovery.nvml import build, h100, write
from tests.agent.processes import Machine, engine_spec, free_port, on_machine

pytestmark = pytest.mark.slow

GIB = 1024**3


def test_what_an_engine_computes_on_is_told_and_outlives_agent_and_driver(tmp_path: Path) -> None:
    told = tmp_path / "gpus.txt"
    library = build(tmp_path / "lib", f'-DTOLD="{told}"')
    write(told, {"0": h100(0), "1": h100(1)})
    port = free_port()
    spec = engine_spec(port)
    [engine] = spec.processes
    spec = replace(
        spec,
        processes=(Process(name=engine.name, argv=engine.argv, env={"SEES": "${gpu.indices}"}),),
        claims=Claims(gpus=(GpuClaim(uuid=h100(1)["uuid"]),), ports=(port,)),
    )

    async def main(machine: Machine) -> None:
        node = machine.node(env={"LD_LIBRARY_PATH": str(library)})
        await machine.transport.bootstrap(node, fleet=FLEET)
        await machine.start(node, spec)
        ready = await machine.shard_when(node, lambda shard: shard.state == "ready" and shard.computes_on)
        assert ready.computes_on == ComputesOn(), "it holds no memory of a GPU yet"
        assert psutil.Process(ready.pid).environ()["SEES"] == "1"
        write(told, {"0": h100(0), "1": h100(1, processes=f"{ready.pid}:{7 * GIB} 1:{GIB}")})
        on = ComputesOn(gpus={h100(1)["uuid"]: 7 * GIB})
        # Facts may be as old as a report allows: a few seconds.
        await machine.shard_when(node, lambda shard: shard.computes_on == on)
        machine.kill_agent(node)
        write(told, {}, init="!18")
        await machine.transport.bootstrap(node, fleet=FLEET)
        after = await machine.report(node)
        assert after.facts.gpus == ()
        assert after.facts.problems
        assert [(shard.pid, shard.computes_on) for shard in after.shards] == [(ready.pid, on)]
        write(told, {"0": h100(0), "1": h100(1)})
        await machine.stop(node, spec.shard)
        stopped = await machine.shard_when(node, lambda shard: shard.state == "stopped")
        assert stopped.computes_on is None

    on_machine(tmp_path, main)
