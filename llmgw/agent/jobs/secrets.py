"""What a job needs and nobody may see: ``jobsecrets/<job>.json``, 0600, from the order until the job has ended."""

from collections.abc import Callable, Mapping

from llmgw.agent.seams import Disk
from llmgw.model.struct import Struct, field
from llmgw.wire import codec

FOLDER = "jobsecrets"


class StoredSecrets(Struct):
    values: Mapping[str, str] = field(default_factory=dict)


class JobSecrets:
    """``learn`` is told every value that passes, so that no log shows it."""

    def __init__(self, disk: Disk, *, learn: Callable[[str], None]) -> None:
        self._disk = disk
        self._learn = learn

    async def keep(self, job: str, values: Mapping[str, str]) -> None:
        """Raises StalledError when the disk refuses."""
        self._learn_all(values)
        if values:
            await self._disk.write(f"{FOLDER}/{job}.json", codec.dumps(StoredSecrets(values=values)))

    async def of(self, job: str) -> Mapping[str, str]:
        """Empty also where they can't be read: what needs them says so by itself, and names the secret."""
        data = await self._disk.read(f"{FOLDER}/{job}.json")
        if data is None:
            return {}
        try:
            values = codec.loads(StoredSecrets, data, strict=False).values
        except codec.CodecError:
            return {}
        self._learn_all(values)
        return values

    async def drop(self, job: str) -> None:
        await self._disk.remove(f"{FOLDER}/{job}.json")

    async def keep_only(self, jobs: frozenset[str]) -> None:
        for name in await self._disk.read_all(FOLDER):
            if name.removesuffix(".json") not in jobs:
                await self._disk.remove(f"{FOLDER}/{name}")

    def _learn_all(self, values: Mapping[str, str]) -> None:
        for value in values.values():
            self._learn(value)
