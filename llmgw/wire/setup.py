"""What bootstrap and agent agree on beside the protocol: the settings file, the names in the work directory, and how a
running agent says which settings it has."""

import hashlib
from collections.abc import Mapping

from llmgw.model.ids import FleetId
from llmgw.model.manifest import PortRange, Reserve
from llmgw.model.struct import Struct, field, replace
from llmgw.wire import codec

SETTINGS_FORMAT = 1
SETTINGS = "agent.json"
PRETENDED = "pretended.json"
LOCK = "agent.lock"
LOG = "agent.log"


class AgentSettings(Struct):
    """What an agent is told when it is set up. ``env`` is for its jobs (a proxy, say); it may hold secrets, and engines
    get none of it: theirs is in the launch spec."""

    node: str
    fleet: FleetId | None = None
    ports: PortRange = PortRange()
    reserve: Reserve = Reserve()
    pretends: bool = False
    python: str | None = None  # makes the engines' environments; None: the agent's own
    engine_user: str | None = None
    weights: str | None = None
    engines: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    build: str = ""  # of the files that it is made of; empty: it runs where they lie
    format: int = SETTINGS_FORMAT

    def digest(self, pretended: bytes = b"") -> str:
        """Tells whether a running agent has the settings that it should have. A hash, because ``env`` holds secrets. Without
        ``build``, which the bundle's own name tells."""
        return hashlib.sha256(codec.dumps(replace(self, build="")) + b"\0" + pretended).hexdigest()


class Holder(Struct):
    """The agent that holds a work directory's lock, as it writes itself into the lock file. ``start`` is field 22 of its
    /proc/PID/stat; ``settings`` the digest of what it was started with."""

    pid: int
    start: int
    version: str
    settings: str
