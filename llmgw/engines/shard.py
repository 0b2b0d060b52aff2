"""From an engine's process to a whole launch spec: claims, needs, expectations, restarts and times are the same for
every engine that serves HTTP from rank 0."""

from functools import lru_cache
from ipaddress import ip_address

from llmgw.core.adapter import Placed, RankNetwork
from llmgw.engines.lora import fetches
from llmgw.model.claims import Claims
from llmgw.model.ids import shard_id
from llmgw.model.launch import (
    Expect,
    FetchSpec,
    InstallSpec,
    LaunchSpec,
    LoraOrder,
    Probes,
    Process,
    RestartPolicy,
    ShardTimeouts,
)
from llmgw.model.record import RankPlacement
from llmgw.model.struct import replace


def launch_spec(
    placed: Placed,
    rank: RankPlacement,
    *,
    processes: tuple[Process, ...],
    probes: Probes,
    install: InstallSpec | None,
    fetch: FetchSpec | None,
    weights_path: str | None = None,
    stop: float | None = None,
) -> LaunchSpec:
    """One shard's standing order. ``install`` and ``fetch`` are the jobs it stands on; None: nothing to do. The last of
    ``processes`` is the engine; ``stop`` is the time to end where the profile's makes no sense."""
    model, leader = placed.model, placed.ranks[0]
    network = placed.network.get(rank.rank, RankNetwork())
    return LaunchSpec(
        shard=shard_id(placed.replica, rank.rank),
        replica=placed.replica,
        rank=rank.rank,
        ranks=len(placed.ranks),
        model=model.name,
        profile=model.profile_name,
        served_name=model.served_name,
        spec_digest=model.spec_digest,
        address=rank.address,
        leader_address=host_port(leader.address, leader.ports[0]),
        processes=processes,
        probes=probes if model.profile.token_probe else replace(probes, token=None),
        claims=Claims(gpus=rank.gpus, memory=rank.memory, ports=rank.ports),
        needs=tuple(job.job for job in (install, fetch) if job is not None),
        engine=install.digest if install else None,
        engine_path=None if install else model.profile.engine.path,
        weights=fetch.digest if fetch else None,
        weights_path=weights_path,
        secrets=_secret_names(processes),
        expect=Expect(
            gpus=tuple(gpu.uuid for gpu in rank.gpus),
            interface_address=network.interface_address or _on_an_interface(rank.address),
            gids=network.gids,
            ports_free=rank.ports,
            engine=install.digest if install else None,
            weights=fetch.digest if fetch else None,
        ),
        restart=_restart(placed),
        timeouts=_timeouts(placed, stop),
    )


def with_adapters(spec: LaunchSpec, lora: LoraOrder | None, placed: Placed) -> LaunchSpec:
    """The order with the replica's LoRA adapters. It only waits for those that are loaded at the start."""
    if lora is None:
        return spec
    brought = fetches(placed.model, placed.pip) if lora.calls is None else ()
    return replace(spec, lora=lora, needs=(*spec.needs, *(fetch.job for fetch in brought)))


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _secret_names(processes: tuple[Process, ...]) -> tuple[str, ...]:
    every = (variable for process in processes for variable in process.env.items())
    return tuple(sorted({name for name, value in every if value == f"${{secret:{name}}}"}))


ADDRESSES = 4096
"""Addresses of which it is kept what they are: each replica of a node asks."""


@lru_cache(maxsize=ADDRESSES)
def _on_an_interface(address: str) -> str | None:
    """The address that must be there; a name is resolved by the engine, and loopback is always there."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    return None if parsed.is_loopback else address


def _restart(placed: Placed) -> RestartPolicy:
    asked = placed.model.profile.restart
    return RestartPolicy(
        local=len(placed.ranks) == 1,
        backoff=asked.backoff,
        max_backoff=asked.max_backoff,
        give_up_after=asked.give_up_after,
        reset_after=asked.reset_after,
    )


def _timeouts(placed: Placed, stop: float | None) -> ShardTimeouts:
    profile = placed.model.profile
    return ShardTimeouts(
        startup=profile.startup_timeout,
        stop=profile.timeouts.stop if stop is None else stop,
        kill=profile.timeouts.kill,
        rendezvous=profile.timeouts.rendezvous,
        alive_grace=profile.timeouts.alive_grace,
        health=profile.timeouts.health,
        health_request=profile.timeouts.health_request,
        adopt_ready=profile.timeouts.adopt_ready,
        drain=placed.model.spec.rollout.drain_timeout,
    )
