"""What all shards of a node share: the seams and where things lie."""

import os
import pwd
from pathlib import Path

from llmgw.agent.seams import (
    ANYTHING,
    Gpus,
    JobGate,
    NodeChecks,
    Probe,
    Rules,
    Running,
    ShardEvents,
    Spawner,
)
from llmgw.agent.shards import statusfiles
from llmgw.agent.shards.autopsy import NOTHING_SEEN, Evidence
from llmgw.agent.shards.logs import LogBook
from llmgw.agent.shards.orders import Orders
from llmgw.agent.shards.witness import Death, Witness
from llmgw.clock import Clock
from llmgw.model.launch import LaunchSpec, Process
from llmgw.model.report import Exit
from llmgw.model.struct import Struct


class ShardSettings(Struct):
    """``boot_id`` of this machine as it runs; ``engine_user`` None: engines run as the agent's own user.
    ``housekeeping``: seconds between looks at the size of logs; 0: never."""

    work: Path
    boot_id: str
    engine_user: str | None = None
    housekeeping: float = 10

    @property
    def home(self) -> str:
        """The engine user's home, relative to the work directory; each shard has its own below it."""
        return f"home/{self.engine_user or _own_user()}"


def _own_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid-{os.geteuid()}"


class Surroundings(Struct):
    """Handed to every shard. Without a ``witness`` nobody else is asked how a process died."""

    settings: ShardSettings
    clock: Clock
    spawner: Spawner
    probe: Probe
    orders: Orders
    gpus: Gpus
    jobs: JobGate
    node: NodeChecks
    logs: LogBook
    events: ShardEvents
    witness: Witness | None = None
    rules: Rules = ANYTHING

    def status_file(self, shard: str, process: Process | str) -> str:
        name = process if isinstance(process, str) else process.name
        return str(self.settings.work / "status" / f"{shard}.{name}.json")

    def home(self, shard: str) -> str:
        """A shard's own home, relative to the work directory: nobody else's files, gone with the shard."""
        return f"{self.settings.home}/{shard}"

    async def evidence(self, exit_: Exit, running: Running, spec: LaunchSpec) -> Evidence:
        """What others saw of a process's end."""
        if self.witness is None:
            return NOTHING_SEEN
        status = statusfiles.read(Path(self.status_file(running.shard, running.process)))
        death = Death(
            running=running,
            exit=exit_,
            now=self.clock.now(),
            cgroup=Path(status.cgroup) if status is not None and status.cgroup else None,
            gpus=tuple(claim.uuid for claim in spec.claims.gpus),
        )
        return await self.witness.evidence(death)
