"""Standing orders on disk: ``shards/<id>.json`` says how a shard runs and where its life is, written before anything
starts; ``secrets/<id>.json`` holds what must never be shown. Both 0600."""

import re
from collections.abc import Callable, Iterable, Mapping

from llmgw.agent.seams import ANYTHING_STORED, Disk, Running
from llmgw.agent.shards import late
from llmgw.agent.shards.computing import Computing
from llmgw.core.life import Life
from llmgw.model.ids import Fence, ShardId
from llmgw.model.launch import ENGINE, MAX_PROCESSES, LaunchSpec, LoraAdapter, Process
from llmgw.model.report import ByHand, ComputesOn
from llmgw.model.struct import Struct, field, replace
from llmgw.wire import codec

FOLDER = "shards"
SECRETS = "secrets"
ASIDE = "unreadable"
FORMAT = 1
SAFE_SHARD = re.compile(r"[a-z0-9][a-z0-9.-]{0,190}\Z")
"""What may become part of a file's name: no slash, no dot in front."""
SAFE_PROCESS = re.compile(r"[a-z0-9][a-z0-9-]{0,30}\Z")
SAFE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
MAX_SPEC = 2 * 1024 * 1024


class StoredOrder(Struct):
    """One shard as the next agent finds it. ``boot_id`` tells whether its processes can still be there."""

    spec: LaunchSpec
    life: Life
    fence: Fence | None
    boot_id: str
    processes: tuple[Running, ...] = ()
    by_hand: ByHand | None = None
    computing: Computing | None = None
    format: int = FORMAT

    @property
    def computes_on(self) -> ComputesOn | None:
        """As it was seen last."""
        return self.computing.on if self.computing is not None else None


class StoredSecrets(Struct):
    values: Mapping[str, str] = field(default_factory=dict)


class Found(Struct):
    """Everything that an earlier agent left. ``unreadable``: shard -> why; its file is kept aside."""

    orders: tuple[StoredOrder, ...]
    unreadable: Mapping[str, str]


def nobody_told(_: str) -> None:
    """For those whose log nobody reads."""


class Orders:
    """Reads and writes them. ``learn`` is told every secret that passes, so that no log shows it."""

    def __init__(self, disk: Disk, *, learn: Callable[[str], None] = nobody_told) -> None:
        self._disk = disk
        self._learn = learn

    async def save(self, order: StoredOrder, *, lasting: bool = True) -> None:
        """Raises StalledError naming the file when the disk refuses. ``lasting``: over a power failure too."""
        await self._disk.write(_order_of(order.spec.shard), codec.dumps_readable(order), lasting=lasting)

    async def save_first(self, order: StoredOrder, secrets: Mapping[str, str]) -> None:
        """An order that has just come, over a power failure too. Its secrets before it, or none of an earlier one of its name."""
        shard = order.spec.shard
        self._learn_all(secrets)
        if not secrets:
            await self._disk.remove(_secrets_of(shard))
        kept = {_secrets_of(shard): _stored(secrets)} if secrets else {}
        await self._disk.write_all({**kept, _order_of(shard): codec.dumps_readable(order)})

    async def save_secrets(self, shard: ShardId, values: Mapping[str, str]) -> None:
        self._learn_all(values)
        await self._disk.write(_secrets_of(shard), _stored(values))

    async def secrets(self, shard: ShardId) -> Mapping[str, str]:
        """Raises CodecError when they can't be read; the message names no value."""
        data = await self._disk.read(_secrets_of(shard))
        if data is None:
            return {}
        try:
            values = codec.loads(StoredSecrets, data, strict=False).values
        except codec.CodecError:
            # The cause may quote what it could not read.
            raise codec.CodecError(
                f"the secrets of shard {shard} can't be read: send its key again"
            ) from None
        self._learn_all(values)
        return values

    def _learn_all(self, values: Mapping[str, str]) -> None:
        for value in values.values():
            self._learn(value)

    async def remove(self, shard: ShardId, processes: tuple[str, ...], *, home: str) -> None:
        """The order goes last: as long as it is there, forgetting is not done."""
        await self._disk.remove(_secrets_of(shard))
        for process in processes:
            for ending in ("json", "json.lock", "json.end", "json.new", "json.restored"):
                await self._disk.remove(f"status/{shard}.{process}.{ending}")
        await self._disk.remove_folder(f"logs/{shard}")
        await self._disk.remove_folder(home)
        await self._disk.remove(_order_of(shard))

    async def load(self) -> Found:
        """Never raises for a file's sake: one broken order must not hide the others."""
        orders: list[StoredOrder] = []
        unreadable: dict[str, str] = {}
        for name, data in sorted((await self._disk.read_all(FOLDER)).items()):
            shard = name.removesuffix(".json")
            try:
                orders.append(read_order(shard, data))
            except codec.CodecError as wrong:
                unreadable[shard] = str(wrong)
                await self._disk.move(f"{FOLDER}/{name}", f"{FOLDER}/{ASIDE}/{name}")
        for name in await self._disk.read_all(f"{FOLDER}/{ASIDE}"):
            unreadable.setdefault(name.removesuffix(".json"), f"kept in {FOLDER}/{ASIDE}/{name}")
        return Found(orders=tuple(orders), unreadable=unreadable)

    async def discard_unreadable(self, shard: str) -> None:
        await self._disk.remove(f"{FOLDER}/{ASIDE}/{shard}.json")


def _order_of(shard: str) -> str:
    return f"{FOLDER}/{shard}.json"


def _secrets_of(shard: str) -> str:
    return f"{SECRETS}/{shard}.json"


def _stored(secrets: Mapping[str, str]) -> bytes:
    return codec.dumps(StoredSecrets(values=secrets))


def needed(specs: Iterable[LaunchSpec], unreadable: Iterable[str]) -> Mapping[str, tuple[ShardId, ...]]:
    """Digests of engines, weights and adapters that orders refer to; see ShardKeeper.needs."""
    found: dict[str, tuple[ShardId, ...]] = {}
    for spec in specs:
        adapters = spec.lora.adapters if spec.lora is not None else ()
        fetched = {adapter.digest for adapter in adapters if adapter.path is None}
        for digest in {spec.engine, spec.weights, spec.expect.engine, spec.expect.weights, *fetched} - {None}:
            found[str(digest)] = (*found.get(str(digest), ()), spec.shard)
    if broken := tuple(ShardId(shard) for shard in unreadable):
        found[ANYTHING_STORED] = broken
    return found


def read_order(shard: str, data: bytes) -> StoredOrder:
    """Raises CodecError when it is none, or not this shard's."""
    order = codec.loads(StoredOrder, data, strict=False)
    if order.format != FORMAT:
        raise codec.CodecError(f"its format is {order.format}, this agent reads {FORMAT}")
    if order.spec.shard != shard:
        raise codec.CodecError(f"it is the order of {order.spec.shard}")
    return order


def refused(spec: LaunchSpec, secrets: Mapping[str, str]) -> str | None:
    """Why a start can't be taken as it is, or None. What the controller computed is only checked, never mended."""
    return (
        _refused_shape(spec)
        or _refused_late(spec, secrets)
        or next((why for process in spec.processes if (why := _refused_process(process))), None)
    )


def with_adapters(spec: LaunchSpec, adapters: tuple[LoraAdapter, ...]) -> LaunchSpec:
    return replace(spec, lora=replace(spec.lora, adapters=adapters)) if spec.lora is not None else spec


def refused_adapters(spec: LaunchSpec, adapters: tuple[LoraAdapter, ...]) -> str | None:
    """Why a shard can't be given these while it runs, or None."""
    calls = spec.lora.calls if spec.lora is not None else None
    if calls is None:
        return "its engine loads adapters only when it starts: plan the model anew"
    if len(adapters) > calls.most:
        return f"{len(adapters)} are more than the {calls.most} that its engine was started for"
    if len({adapter.name for adapter in adapters}) != len(adapters):
        return "two of them have one name"
    high = next((adapter for adapter in adapters if adapter.rank > calls.highest_rank), None)
    if high is not None:
        return f"rank {high.rank} of {high.name[:200]} is above the {calls.highest_rank} that its engine was started for"
    return None


def _refused_shape(spec: LaunchSpec) -> str | None:
    if not SAFE_SHARD.match(spec.shard):
        return f"shard id {spec.shard!r} can't name a file"
    names = [process.name for process in spec.processes]
    if not 1 <= len(names) <= MAX_PROCESSES:
        return f"{len(names)} processes; 1 to {MAX_PROCESSES} are possible"
    if names[-1] != ENGINE or len(set(names)) != len(names):
        return f"processes {', '.join(names)}: each needs its own name, and the last must be {ENGINE!r}"
    if len(codec.dumps(spec)) > MAX_SPEC:
        return f"longer than {MAX_SPEC} bytes"
    return None


def _refused_late(spec: LaunchSpec, secrets: Mapping[str, str]) -> str | None:
    if unknown := late.unknown(spec):
        return f"unknown late value ${{{unknown[0]}}}"
    if missing := sorted(late.secrets_used(spec) - set(secrets)):
        return f"no value came for {', '.join(missing)}"
    return None


def _refused_process(process: Process) -> str | None:
    if not SAFE_PROCESS.match(process.name):
        return f"process name {process.name!r}: lower-case letters, digits and - only"
    if not process.argv:
        return f"process {process.name} has no command"
    if any("\0" in text for text in (*process.argv, *process.env.values())):
        return f"process {process.name}: a NUL in its command or environment"
    if bad := next((name for name in process.env if not SAFE_NAME.match(name)), None):
        return f"process {process.name}: {bad!r} can't name an environment variable"
    for file in process.files:
        if file.path.startswith("/") or ".." in file.path.split("/") or not file.path or "\0" in file.path:
            return f"process {process.name}: file {file.path!r} must lie below the shard's home"
    return None
