"""After the last fault: whether everything is as Git asks, explained where it is not, and nothing else is left."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from llmgw.model.report import Report, ShardReport
from tests.chaos.applying import Applying
from tests.chaos.excuses import ALWAYS
from tests.chaos.line import WORK
from tests.chaos.room import SIDE, Room
from tests.chaos.seen import Eyes, Seen, inner_pid, inside, networks
from tests.rig.host import Host

WITHIN: Final = 240.0
"""Seconds for all to serve again: an order that was lost is sent again by the pass after next, and machines may be slow."""
GONE_WITHIN: Final = 120.0


def settled(room: Room, applying: Applying) -> list[str]:
    """What is still not as it should be when time is over; empty when all is well."""
    end = time.monotonic() + WITHIN
    told: list[str] = []
    while True:
        applying.one_pass()
        wrong = _order_side(room) or list(_not_as_asked(room))
        if not wrong or time.monotonic() > end:
            return wrong
        if wrong != told:
            room.story.tell(f"not yet: {'; '.join(wrong)}")
        told = wrong


def _order_side(room: Room) -> list[str]:
    """Whoever has ordered it orders it again, as a controller does in each pass."""
    try:
        room.start_side()
    except Exception as wrong:  # noqa: BLE001 - told, and tried again
        return [f"ordering {SIDE}: {type(wrong).__name__}: {wrong}"]
    return []


def _not_as_asked(room: Room) -> Iterator[str]:
    reports = {host.name: room.report(host) for host in room.rig.hosts}
    for host in room.rig.hosts:
        report = reports[host.name]
        if report is None:
            yield f"the agent of {host.name} does not answer"
        else:
            yield from _host(room, host, report)
    yield from _replicas(room, [report for report in reports.values() if report is not None])


def _replicas(room: Room, reports: list[Report]) -> Iterator[str]:
    """Whether each model has its replicas ready, all of their ranks; those that can't be say why."""
    shards = [shard for report in reports for shard in report.shards]
    for model, wanted in {**room.desired, "side": 1}.items():
        ranks: dict[str, list[str]] = {}
        for shard in shards:
            if shard.model == model and shard.state != "stopped":
                ranks.setdefault(shard.replica, []).append(shard.state)
                if shard.state != "ready" and not shard.reason:
                    yield f"{shard.shard} is {shard.state} and does not say why"
        size = {replica: next(s.ranks for s in shards if s.replica == replica) for replica in ranks}
        ready = [one for one, states in ranks.items() if states == ["ready"] * size[one]]
        if model not in ALWAYS and (len(ready) != wanted or len(ranks) != wanted):
            yield f"{model} has {len(ready)} of {wanted} replicas ready: {_told(shards, model)}"


def _told(shards: list[ShardReport], model: str) -> str:
    return "; ".join(f"{s.shard} {s.state} ({s.reason})" for s in shards if s.model == model) or "none at all"


def _host(room: Room, host: Host, report: Report) -> Iterator[str]:
    """What runs is what the agent says, to the pid."""
    version = f"7.0.{room.versions.made}"
    if report.agent.version != version:
        yield f"the agent of {host.name} is {report.agent.version}, the controller {version}"
    told = {shard.shard: shard.pid for shard in report.shards if shard.pid and shard.model not in ALWAYS}
    living = [one for one in room.watcher.instances().values() if one.first.host == host.name]
    runs = {
        one.shard: inner_pid(one.first.pid)
        for one in living
        if not one.first.sidecar and one.first.pid in one.members and not _flaky(one.shard)
    }
    if runs != told:
        yield f"{host.name}: the agent tells of the engines {told}, what runs is {runs}"
    orphans = [one for one in living if one.shard not in told and not _flaky(one.shard)]
    yield from (f"{host.name}: {one.shard} is left over: pids {sorted(one.members)}" for one in orphans)


def _flaky(shard: str) -> bool:
    return shard.partition("-")[0] in ALWAYS


def gone(room: Room, applying: Applying) -> list[str]:
    """Git asks for nothing any more, and nobody else does: what is left on the hosts but their agents."""
    room.excuses.everything_may_end()
    room.road.remove_models()
    room.road.commit("Serve nothing")
    room.stop_side()
    end = time.monotonic() + GONE_WITHIN
    while True:
        room.road.llmgw("apply", "--yes", "--allow-prune", "--wait", within=GONE_WITHIN)
        left = [told for host in room.rig.hosts for told in _left(room, host)]
        if not left or time.monotonic() > end:
            return left
        room.story.tell(f"not gone yet: {left[0]}")


def _left(room: Room, host: Host) -> Iterator[str]:
    eyes = Eyes(networks({host.name: host.namespace}))
    found = eyes.look()
    if (agents := sum(one.agent for one in found)) != 1:
        yield f"{host.name} has {agents} agents"
    for one in found:
        # What holds the namespaces open is outside of them.
        if not (one.agent or one.pid == host.init or _sshd(one) or not inside(one.pid)):
            yield f"{host.name}: pid {one.pid} is left over: {' '.join(one.words)[:200]}"


def _sshd(one: Seen) -> bool:
    return bool(one.words) and one.words[0].startswith(("sshd:", "/usr/sbin/sshd"))


def tracebacks(room: Room) -> list[str]:
    """What agents have logged of faults of their own."""
    found = []
    for host in room.rig.hosts:
        text = Path(f"/proc/{host.init}/root{WORK}/agent.log").read_text(errors="replace")
        parts = text.split("Traceback (most recent call last)")
        found += [f"{host.name}: {part[:2500]}" for part in parts[1:]]
    return found
