"""The whole node in one look: host, GPUs, adapters, network. A part that fails is a problem in the facts, and the others
are told all the same. A node that pretends shows what its file says instead."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from llmgw.agent.discovery.gpus import GpuDiscovery, GpuSample
from llmgw.agent.discovery.host import host_facts
from llmgw.agent.discovery.infiniband import ROOT, infiniband_ports
from llmgw.agent.discovery.network import interfaces, listening
from llmgw.agent.settings import Layout, read_pretended
from llmgw.model.facts import Facts, Gpu
from llmgw.model.manifest import PortRange
from llmgw.model.problems import LlmgwError
from llmgw.model.struct import Struct, replace

T = TypeVar("T")


class Survey(Struct):
    """Looks at this machine. ``owner`` tells the shard that a process provably belongs to. ``xids`` adds the
    errors that the driver has told of them, and may take milliseconds. ``pretends``: the GPUs, adapters and whatever else ``pretended.json`` names come from there."""

    places: Layout
    ports: PortRange
    gpus: GpuDiscovery
    owner: Callable[[int], Awaitable[str | None]]
    pretends: bool = False
    sysfs: Path = ROOT
    xids: Callable[[tuple[Gpu, ...]], tuple[Gpu, ...]] = lambda gpus: gpus

    async def sample(self) -> tuple[Gpu, ...]:
        """The seam Gpus: as they are right now."""
        if self.pretends:
            return (await asyncio.to_thread(read_pretended, self.places)).gpus
        return await self._with_owners((await self.gpus.sample()).gpus)

    async def look(self) -> Facts:
        problems: list[str] = []
        folders = sorted({self.places.work, self.places.weights, self.places.engines})
        facts = await asyncio.to_thread(
            _attempt, "the machine", lambda: host_facts(folders), Facts(), problems
        )
        found = await asyncio.to_thread(_attempt, "interfaces", interfaces, (), problems)
        busy = await asyncio.to_thread(_attempt, "ports", lambda: listening(self.ports), (), problems)
        facts = replace(facts, interfaces=found, listening=busy)
        if self.pretends:
            pretended = await asyncio.to_thread(
                _attempt, "pretended facts", lambda: read_pretended(self.places), Facts(), problems
            )
            facts = facts.pretending(pretended)
        else:
            sample = await self._real_gpus()
            hcas = await asyncio.to_thread(
                _attempt, "InfiniBand", lambda: infiniband_ports(self.sysfs), (), problems
            )
            problems += sample.problems
            gpus = await asyncio.to_thread(
                _attempt, "errors of GPUs", lambda: self.xids(sample.gpus), sample.gpus, problems
            )
            facts = replace(
                facts,
                gpus=await self._with_owners(gpus),
                gpu_source=sample.source,
                driver=sample.driver,
                hca_ports=hcas,
            )
        return replace(facts, problems=(*facts.problems, *problems))

    async def _real_gpus(self) -> GpuSample:
        try:
            return await self.gpus.sample()
        except Exception as wrong:  # noqa: BLE001 - failing discovery is reported, never fatal
            return GpuSample(problems=(f"looking at GPUs: {type(wrong).__name__}: {wrong}",))

    async def _with_owners(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """Whose memory it is: what isn't provably a shard's is foreign."""
        return tuple([await self._with_owner(gpu) for gpu in gpus])

    async def _with_owner(self, gpu: Gpu) -> Gpu:
        named = [replace(process, shard=await self.owner(process.pid)) for process in gpu.processes]
        return replace(gpu, processes=tuple(named))


def _attempt(what: str, look: Callable[[], T], otherwise: T, problems: list[str]) -> T:
    try:
        return look()
    except LlmgwError as wrong:
        problems.append(str(wrong))
    except Exception as wrong:  # noqa: BLE001 - failing discovery is reported, never fatal
        problems.append(f"looking at {what}: {type(wrong).__name__}: {wrong}")
    return otherwise
