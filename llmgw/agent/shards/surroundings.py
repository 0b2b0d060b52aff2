"""What all shards of a node share: the seams and where things lie."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from llmgw.agent.seams import Gpus, JobGate, NodeChecks, Probe, ShardEvents, Spawner
from llmgw.agent.shards.logs import LogBook
from llmgw.agent.shards.orders import Orders
from llmgw.clock import Clock
from llmgw.model.launch import Process


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Handed to every shard."""

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

    def status_file(self, shard: str, process: Process | str) -> str:
        name = process if isinstance(process, str) else process.name
        return str(self.settings.work / "status" / f"{shard}.{name}.json")

    def home(self, shard: str) -> str:
        """A shard's own home, relative to the work directory: nobody else's files, gone with the shard."""
        return f"{self.settings.home}/{shard}"
