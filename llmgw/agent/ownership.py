"""Who may command this node: the one fleet that owns it, and of that fleet the newest controller. Kept on disk before a
command is carried out, so that a controller which slept through its lease can do no harm, over restarts too."""

import asyncio

from llmgw.agent.journal import Journal
from llmgw.agent.seams import Disk
from llmgw.model.ids import Fence, FleetId
from llmgw.model.problems import AgentError, StalledError
from llmgw.model.struct import Struct, replace
from llmgw.wire import codec
from llmgw.wire.messages import FENCED, NO_SPACE, WRONG_FLEET

FOLDER = "state"
FILE = "owner.json"


class Owner(Struct):
    """What is kept. ``fence`` is the highest that has commanded."""

    fleet: FleetId | None = None
    fence: Fence | None = None


class Ownership:
    """Decides by fleet id and fence; nothing else about a command is looked at here."""

    def __init__(self, *, disk: Disk, journal: Journal, fleet: FleetId | None) -> None:
        self._disk = disk
        self._journal = journal
        self._owner = Owner(fleet=fleet)
        self._deciding = asyncio.Lock()

    @property
    def fleet(self) -> FleetId | None:
        return self._owner.fleet

    @property
    def fence(self) -> Fence | None:
        return self._owner.fence

    async def load(self) -> None:
        """Raises StalledError when the file is there and can't be read: a lost fence must not let a stale controller in.

        The settings' fleet wins: bootstrap by another fleet, with the rights to the node, is how a node changes hands."""
        data = await self._disk.read(f"{FOLDER}/{FILE}")
        if data is None:
            return
        try:
            kept = codec.loads(Owner, data, strict=False)
        except codec.CodecError as wrong:
            raise StalledError(
                f"reading {FOLDER}/{FILE}: {wrong}: remove the file only when no other controller is at work"
            ) from wrong
        if self._owner.fleet in (None, kept.fleet):
            self._owner = kept

    async def greet(self, fleet: FleetId | None) -> None:
        """The first fleet that names itself owns the node."""
        async with self._deciding:
            self._require_owner(fleet or self.fleet)
            if fleet is not None and self.fleet is None:
                await self._keep(replace(self._owner, fleet=fleet))

    async def admit(self, fence: Fence) -> None:
        """Returns when the command may be carried out, with its fence on disk."""
        async with self._deciding:
            self._require_owner(fence.fleet)
            known = self._owner.fence
            if known is not None and (
                fence.serial < known.serial or (fence.serial == known.serial and fence.intent != known.intent)
            ):
                text = (
                    f"refused a command of serial {fence.serial} (intent {fence.intent[:8]}): serial {known.serial}"
                    f" (intent {known.intent[:8]}) has commanded this node since: read the record and plan again"
                )
                self._journal.append("fence", fence.fleet, text)
                raise AgentError(text, code=FENCED, data={"fence": codec.to_json(known)})
            if known != fence:
                await self._keep(Owner(fleet=fence.fleet, fence=fence))

    def _require_owner(self, fleet: FleetId | None) -> None:
        if self.fleet is not None and fleet != self.fleet:
            raise AgentError(
                f"this node belongs to fleet {self.fleet}, not to {fleet}: remove it from one of the two, or take it over:"
                " `llmgw node adopt NAME --take-over`",
                code=WRONG_FLEET,
                data={"fleet": self.fleet},
            )

    async def _keep(self, owner: Owner) -> None:
        try:
            await self._disk.write(f"{FOLDER}/{FILE}", codec.dumps_readable(owner))
        except StalledError as wrong:
            raise AgentError(f"the command was not carried out: {wrong}", code=NO_SPACE) from wrong
        self._owner = owner
