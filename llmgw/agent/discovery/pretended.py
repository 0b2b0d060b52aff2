"""What a launch asks of a node that pretends: adapters, memory and interfaces as its file says, the rest as it is."""

import asyncio

from llmgw.agent.seams import NodeChecks
from llmgw.agent.settings import Layout, read_pretended
from llmgw.model.facts import Facts
from llmgw.model.struct import Struct


class PretendedChecks(Struct):
    """``real`` answers what the file does not name."""

    places: Layout
    real: NodeChecks

    async def _facts(self) -> Facts:
        return await asyncio.to_thread(read_pretended, self.places)

    async def addresses(self) -> frozenset[str]:
        """Both: engines of a pretended node really listen on this machine."""
        named = {address for one in (await self._facts()).interfaces for address in one.addresses}
        return await self.real.addresses() | named

    async def gid(self, device: str, port: int, index: int) -> str | None:
        wanted = (device, port, index)
        return next(
            (
                gid.gid
                for hca in (await self._facts()).hca_ports
                for gid in hca.gids
                if (hca.device, hca.port, gid.index) == wanted
            ),
            None,
        )

    async def port_free(self, host: str, port: int) -> bool:
        return await self.real.port_free(host, port)

    async def path_exists(self, path: str) -> bool:
        return await self.real.path_exists(path)

    async def barred(self, path: str) -> str | None:
        return await self.real.barred(path)

    async def adapter_problem(self, path: str, form: str, rank: int) -> str | None:
        return await self.real.adapter_problem(path, form, rank)

    async def memory_total(self) -> int:
        return (await self._facts()).memory_total or await self.real.memory_total()
