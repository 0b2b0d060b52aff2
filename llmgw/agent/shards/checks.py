"""What a plan took for granted of this node, checked again just before exec; and the real NodeChecks."""

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path

import psutil

from llmgw.agent.jobs.onnode import first_barred, user
from llmgw.agent.seams import Gpus, JobGate, NodeChecks, Spawner
from llmgw.agent.shards import lorafile
from llmgw.agent.shards.computing import IDLE_MEMORY
from llmgw.model.claims import GpuClaim
from llmgw.model.facts import Gpu
from llmgw.model.launch import Expect, LaunchSpec, LoraAdapter

INFINIBAND = Path("/sys/class/infiniband")


async def mismatch(
    spec: LaunchSpec, *, gpus: Gpus, node: NodeChecks, jobs: JobGate, spawner: Spawner
) -> str | None:
    """The first thing that is not as the plan expected it, or None."""
    expect = spec.expect
    return (
        await _engine_and_weights(spec, node, jobs)
        or await _adapters(spec, node, jobs)
        or (await _gpus(spec, await gpus.sample()) if expect.gpus or spec.claims.gpus else None)
        or await _network(expect, node)
        or await _ports(spec, node, spawner)
    )


async def held(port: int, found: tuple[int, str | None], spawner: Spawner) -> str:
    """Who is in the way, as ``Spawner.listener`` has found it."""
    pid, shard = found
    if pid == 0:
        return f"port {port} is held by a process of another user"
    whose = f" of shard {shard}" if shard else ", which is not ours"
    return f"port {port} is held by {await spawner.describe((pid,))}{whose}"


async def _engine_and_weights(spec: LaunchSpec, node: NodeChecks, jobs: JobGate) -> str | None:
    if spec.expect.engine and jobs.engine_path(spec.expect.engine) is None:
        return f"engine {spec.expect.engine[:8]} is not installed here"
    if unknown := _unknown_flags(spec.expect, jobs):
        return f"engine {spec.expect.engine[:8] if spec.expect.engine else ''} does not know {', '.join(unknown)}, by its own help"
    if spec.expect.weights and jobs.weights_path(spec.expect.weights) is None:
        return f"weights {spec.expect.weights[:8]} are not here"
    for what, path in (("engine", engine_of(spec, jobs)), ("weights", weights_of(spec, jobs))):
        if path is not None and not await node.path_exists(path):
            return f"{what} should be at {path}, where nothing is: is its disk mounted?"
    weights = weights_of(spec, jobs)
    if weights is not None and (barred := await node.barred(weights)):
        return f"the engine may not read {barred}: chmod o+rX it and the folders above it"
    return None


def _unknown_flags(expect: Expect, jobs: JobGate) -> tuple[str, ...]:
    known = jobs.engine_flags(expect.engine) if expect.engine else None
    return tuple(flag for flag in expect.flags if flag not in known) if known is not None else ()


def engine_of(spec: LaunchSpec, jobs: JobGate) -> str | None:
    """What ``${engine}`` stands for."""
    return spec.engine_path or (jobs.engine_path(spec.engine) if spec.engine else None)


def weights_of(spec: LaunchSpec, jobs: JobGate) -> str | None:
    """What ``${weights}`` stands for."""
    return spec.weights_path or (jobs.weights_path(spec.weights) if spec.weights else None)


def adapter_path(adapter: LoraAdapter, jobs: JobGate) -> str | None:
    """Where a LoRA adapter lies; None: it is not here."""
    return adapter.path or jobs.weights_path(adapter.digest)


def adapter_paths(spec: LaunchSpec, jobs: JobGate) -> Mapping[str, str]:
    """What ``${adapter:NAME}`` stands for."""
    adapters = spec.lora.adapters if spec.lora is not None else ()
    found = ((adapter.name, adapter_path(adapter, jobs)) for adapter in adapters)
    return {name: path for name, path in found if path is not None}


async def unusable_adapter(adapter: LoraAdapter, path: str, form: str, node: NodeChecks) -> str | None:
    """Why the engine can't load it from there, or None."""
    if form and not await node.path_exists(path):
        return f"it should be at {path}, where nothing is: copy it there"
    if form and (barred := await node.barred(path)):
        return f"the engine may not read {barred}: chmod o+rX it and the folders above it"
    return await node.adapter_problem(path, form, adapter.rank)


async def _adapters(spec: LaunchSpec, node: NodeChecks, jobs: JobGate) -> str | None:
    """Only of those that the engine is started with: without the others it serves."""
    if spec.lora is None or spec.lora.calls is not None:
        return None
    for adapter in spec.lora.adapters:
        path = adapter_path(adapter, jobs)
        if path is None:
            return f"adapter {adapter.name} ({adapter.digest[:8]}) is not here"
        if why := await unusable_adapter(adapter, path, spec.lora.form, node):
            return f"adapter {adapter.name}: {why}"
    return None


async def _gpus(spec: LaunchSpec, present: tuple[Gpu, ...]) -> str | None:
    by_uuid = {gpu.uuid: gpu for gpu in present}
    claims = {claim.uuid: claim for claim in spec.claims.gpus}
    for uuid in dict.fromkeys((*spec.expect.gpus, *claims)):
        gpu = by_uuid.get(uuid)
        if gpu is None:
            return f"GPU {uuid} is not there; {len(present)} others are"
        if any(one.parent == uuid for one in present):  # by its number CUDA would take the first of them
            return f"GPU {uuid} is split into MIG instances by now"
        if gpu.health:
            return f"GPU {uuid} is not healthy: {'; '.join(gpu.health)}"
        if uuid in spec.expect.gpus and (held := _held(gpu, claims.get(uuid), spec.shard)):
            return held
    return None


def _held(gpu: Gpu, claim: GpuClaim | None, shard: str) -> str | None:
    """Memory in the way: anybody's on a GPU claimed as a whole, too much of it where a share is claimed."""
    strangers = [process for process in gpu.processes if process.shard is None or process.shard == shard]
    unnamed = not gpu.processes and gpu.memory_used > IDLE_MEMORY
    if not strangers and not unnamed:
        return None
    if claim is not None and claim.memory is not None and (gpu.memory_free or 0) >= claim.memory:
        return None
    if unnamed:
        used = f"{gpu.memory_used / 1024**3:.1f} GiB"
        return f"GPU {gpu.uuid}: {used} of it are used by processes that the driver does not name, as those of other containers"
    worst = max(strangers, key=lambda process: process.memory or 0)
    amount = f"{worst.memory / 1024**3:.1f} GiB" if worst.memory is not None else "memory"
    whose = "left of this shard" if worst.shard == shard else f"of user {worst.user or '?'}"
    return f"GPU {gpu.uuid}: pid {worst.pid} {whose} holds {amount} of it"


async def _network(expect: Expect, node: NodeChecks) -> str | None:
    if expect.interface_address and expect.interface_address not in await node.addresses():
        return f"no interface of this node holds the address {expect.interface_address}"
    for place, gid in expect.gids.items():
        device, port, index = place.split(":")
        if (found := await node.gid(device, int(port), int(index))) != gid:
            return f"GID {index} of {device} port {port} is {found or 'gone'}, not {gid}"
    return None


async def _ports(spec: LaunchSpec, node: NodeChecks, spawner: Spawner) -> str | None:
    """Whoever listens there would be taken for the engine, or keep it from listening."""
    own = () if spec.probes.port is None else (spec.probes.port,)
    for port in dict.fromkeys((*spec.expect.ports_free, *own)):
        if not await node.port_free(spec.address, port):
            found = await spawner.listener(port)
            return await held(port, found, spawner) if found else f"port {port} is taken"
    return None


class SystemChecks:
    """The machine that the agent runs on."""

    def __init__(self, *, infiniband: Path = INFINIBAND, engine_user: str | None = None) -> None:
        self._infiniband = infiniband
        self._engine_user = engine_user

    async def addresses(self) -> frozenset[str]:
        families = (socket.AF_INET, socket.AF_INET6)
        return frozenset(
            entry.address.partition("%")[0]
            for entries in psutil.net_if_addrs().values()
            for entry in entries
            if entry.family in families
        )

    async def gid(self, device: str, port: int, index: int) -> str | None:
        return _text(self._infiniband / device / "ports" / str(port) / "gids" / str(index))

    async def port_free(self, host: str, port: int) -> bool:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As engines do: connections that linger after an earlier engine are no obstacle, a listener is.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return False
        return True

    async def barred(self, path: str) -> str | None:
        found = await asyncio.to_thread(lambda: first_barred(Path(path), user(self._engine_user)))
        return str(found) if found is not None else None

    async def adapter_problem(self, path: str, form: str, rank: int) -> str | None:
        return await asyncio.to_thread(lorafile.problem, path, form, rank) or None

    async def path_exists(self, path: str) -> bool:
        return _exists(path)

    async def memory_total(self) -> int:
        return int(psutil.virtual_memory().total)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:
        return False


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
