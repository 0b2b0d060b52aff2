"""The machine room: three hosts with two GPUs each, what Git asks of them, and one shard that only its agent knows."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.agent.shards.orders import StoredOrder
from llmgw.model.ids import ReplicaId, ShardId
from llmgw.model.launch import LaunchSpec
from llmgw.model.problems import LlmgwError
from llmgw.model.report import Report
from llmgw.model.struct import replace
from llmgw.wire import codec
from tests.chaos.excuses import Excuses
from tests.chaos.gpus import add_gpus
from tests.chaos.line import WORK, Line, orders
from tests.chaos.seen import Eyes, networks
from tests.chaos.story import Story
from tests.chaos.versions import Versions
from tests.chaos.watcher import Watcher
from tests.e2e.sshroad import SshRoad
from tests.rig.host import Host, wait_for
from tests.rig.options import Options
from tests.rig.rig import Rig

HOSTS: Final = 3
GPUS: Final = 2
DISK: Final = "1536m"
"""More than an agent wants to be free before it installs anything. It lies in memory, and takes none while it is empty."""
RESTART: Final = {"backoff": "1s", "maxBackoff": "2s", "giveUpAfter": 1000}
SIDE: Final = "side-1f0c9a2b-0.1-r0"
SIDE_PORTS: Final = (18990, 18991)
UP_WITHIN: Final = 120.0
"""Seconds; a machine that others use too may be many times slower than one that has nothing else to do."""
Desired = dict[str, int]


@dataclass(slots=True)
class Room:
    """Everything that a chaotic hour needs. ``desired`` counts replicas by model."""

    rig: Rig
    road: SshRoad
    versions: Versions
    excuses: Excuses
    story: Story
    watcher: Watcher
    desired: Desired
    side: LaunchSpec | None = None

    def host(self, name: str) -> Host:
        return next(host for host in self.rig.hosts if host.name == name)

    @property
    def side_host(self) -> Host:
        return self.rig.hosts[-1]

    def newer(self) -> str:
        """From now on the controller is of a newer version, and wants its agents to be."""
        version = self.versions.another()
        self.road.variables = {"PYTHONPATH": str(self.versions.newest)}
        return version

    def report(self, host: Host, *, within: float = 20) -> Report | None:
        """None: nobody answers."""
        with suppress(OSError, LlmgwError), Line(host.init, within=within) as line:
            return line.report()
        return None

    # ---- the shard that Git knows nothing of ---------------------------------------------------------

    def start_side(self) -> None:
        """Repeating it is harmless: it is a standing order."""
        host = self.side_host
        if self.side is None:
            self.side = self._side_spec(host)
        with Line(host.init) as line:
            accepted = line.start(self.side, f"side {os.urandom(8).hex()}")
        self.story.tell(f"{host.name}: {SIDE} is ordered: {accepted.detail or 'new'}")

    def stop_side(self) -> None:
        with Line(self.side_host.init) as line:
            line.stop(ShardId(SIDE), f"stop side {os.urandom(8).hex()}")

    def _side_spec(self, host: Host) -> LaunchSpec:
        """Like a shard of ``chat``, with a sidecar and without claims on a GPU."""
        spec = next(
            order.spec
            for file in orders(Path(f"/proc/{host.init}/root"))
            if (order := codec.loads(StoredOrder, file.read_bytes(), strict=False)).spec.model == "stubborn"
        )
        port, other = SIDE_PORTS
        (engine,) = spec.processes
        words = (engine.argv[0], "--host", host.address)
        plain = replace(engine, env={**engine.env, "SIM_API_KEY": ""})
        return replace(
            spec,
            shard=ShardId(SIDE),
            replica=ReplicaId(SIDE.rpartition("-")[0]),
            model="side",
            served_name="side",
            leader_address=f"{host.address}:{port}",
            processes=(
                replace(
                    plain, name="sidecar", argv=(*words, "--port", str(other), "--served-name", "sidecar")
                ),
                replace(plain, argv=(*words, "--port", str(port), "--served-name", "side")),
            ),
            probes=replace(
                spec.probes,
                port=port,
                ready=tuple(replace(probe, authorized=False, contains=None) for probe in spec.probes.ready),
                token=None,
                in_flight=None,
            ),
            claims=replace(spec.claims, ports=SIDE_PORTS),
            expect=replace(spec.expect, ports_free=SIDE_PORTS),
        )


@contextmanager
def opened(folder: Path, *, story: Story) -> Iterator[Room]:
    """Everything serves; nothing of it is left afterwards."""
    with Rig(folder, hosts=[Options(disk=DISK)] * HOSTS) as rig:
        for host in rig.hosts:
            add_gpus(host, GPUS)
        room = _room(folder, rig, story)
        try:
            room.watcher.start()
            story.tell("the first apply: agents on bare machines, then everything that Git asks for")
            room.road.llmgw("apply", "--yes", within=UP_WITHIN * 2)
            room.start_side()
            wait_for("the shard with a sidecar", lambda: _side_ready(room), within=UP_WITHIN)
            yield room
        finally:
            room.road.close()
            for host in rig.hosts:
                host.thaw()
            room.watcher.close()


def _room(folder: Path, rig: Rig, story: Story) -> Room:
    road = SshRoad(rig, folder / "road")
    versions = Versions(folder / "versions")
    excuses = Excuses()
    eyes = Eyes(networks({host.name: host.namespace for host in rig.hosts}))
    room = Room(
        rig=rig,
        road=road,
        versions=versions,
        excuses=excuses,
        story=story,
        watcher=Watcher(eyes.look, excuses, story),
        desired=_write_fleet(road),
    )
    room.newer()
    road.commit("Serve everything")
    return room


def _write_fleet(road: SshRoad) -> Desired:
    """What Git asks for. Engines that hold a GPU, one over two hosts, some that will not go, one that will not stay."""
    one = {"gpus": {"perNode": 1}, "timeouts": {"stop": "3s"}, "restart": RESTART}
    road.write_profile("one", **one, args=["--load-seconds", "0.3"])
    road.write_profile("two", **one, nodes=2)
    none = {**one, "gpus": {"perNode": 0}}
    hide = ["--ignore-sigterm", "--wipe-environment", "--leave-children", "2", "--child-style", "setsid"]
    road.write_profile("stubborn", **none, args=hide)
    road.write_profile("flaky", **none, args=["--exit-after", "8"])
    road.write_profile()
    models = {
        "chat": ("one", 2),
        "gang": ("two", 1),
        "stubborn": ("stubborn", 3),
        "flaky": ("flaky", 1),
    }
    for model, (profile, replicas) in models.items():
        road.write_model(
            model,
            profile=profile,
            replicas=replicas,
            placement={"spread": "node"},
            rollout={"drainTimeout": "1s"},
        )
    return {model: replicas for model, (_, replicas) in models.items()}


def _side_ready(room: Room) -> bool:
    report = room.report(room.side_host)
    return report is not None and any(
        shard.shard == SIDE and shard.state == "ready" for shard in report.shards
    )


def state_files(host: Host) -> list[Path]:
    """What an agent keeps of shards, jobs, owner and journal, and what shims tell; by this machine's way there."""
    root = Path(f"/proc/{host.init}/root{WORK}")
    folders = ("shards", "secrets", "status", "state", "jobs", "journal")
    found = [file for name in folders for file in sorted((root / name).glob("*.json*"))]
    return [file for file in found if stat.S_ISREG(file.lstat().st_mode) and file.stat().st_size]
