"""What jobs have brought is told with its size and who refers to it, and only what nothing refers to goes."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from llmgw.agent.jobs.fakes import FakeDoer
from llmgw.agent.jobs.files import write_marker
from llmgw.agent.jobs.runner import Jobs
from llmgw.agent.jobs.storage import Storage
from llmgw.agent.jobs.targets import ENGINE_MARKER, WEIGHTS_MARKER, DiskTargets
from llmgw.agent.journal import Journal, MemoryJournalStore
from llmgw.agent.seams import ANYTHING_STORED
from llmgw.clock import FakeClock
from llmgw.model.facts import EngineFact, WeightsFact
from llmgw.model.ids import JobId, ShardId
from tests.agent.agents import NOON, MemoryDisk, fetch_spec

SHARD = ShardId("chat-1f0c9a2b-0.1-r0")
A, B, C = "aa" * 32, "bb" * 32, "cc" * 32


class World:
    """Real files, pretended jobs."""

    def __init__(self, folder: Path, seconds: float = 60) -> None:
        self.folder = folder
        (folder / "engines").mkdir(exist_ok=True)
        (folder / "weights").mkdir(exist_ok=True)
        self.targets = DiskTargets(engines_folder=folder / "engines", weights_folder=folder / "weights")
        self.needs: dict[str, tuple[ShardId, ...]] = {}
        clock = FakeClock(NOON)
        doer = FakeDoer(self.targets, seconds=seconds)  # type: ignore[arg-type] # it is only cancelled here
        self.jobs = Jobs(
            clock=clock,
            disk=MemoryDisk(),
            journal=Journal(store=MemoryJournalStore(), clock=clock),
            install=doer,
            fetch=doer,
            targets=self.targets,
            changed=lambda _: None,
        )
        self.storage = Storage(jobs=self.jobs, needs=lambda: self.needs)

    def engine(self, digest: str) -> Path:
        folder = self.folder / "engines" / f"sim-1-{digest[:8]}"
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "sim-engine").write_bytes(b"e" * 1000)
        write_marker(
            EngineFact(name="sim", version="1", digest=digest, path=str(folder)), folder / ENGINE_MARKER
        )
        return folder

    def weights(self, digest: str, path: Path | None = None) -> Path:
        folder = self.folder / "weights" / digest
        folder.mkdir()
        file = path or folder / "m.gguf"
        file.write_bytes(b"w" * 2000)
        fact = WeightsFact(digest=digest, path=str(file), size=2000, description="m.gguf")
        write_marker(fact, folder / WEIGHTS_MARKER)
        return folder


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), timeout=20))


def test_everything_is_told_with_its_size_and_who_holds_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.engine(A)
    world.weights(B)
    (tmp_path / "engines" / "tools" / "huggingface_hub-2.4.0-12345678").mkdir(parents=True)
    (tmp_path / "engines" / ".tmp-install-dddddddd").mkdir()
    (tmp_path / "weights" / ".part-fetch-eeeeeeee").mkdir()
    (tmp_path / "engines" / "sim-1-ffffffff").mkdir()
    world.needs[A] = (SHARD,)

    async def main() -> None:
        stored = {one.name: one for one in await world.storage.stored()}
        assert sorted(stored) == [
            f"engine/{A}",
            "half/fetch-eeeeeeee/.part-fetch-eeeeeeee",
            "half/install-dddddddd/.tmp-install-dddddddd",
            "half/install-ffffffff/sim-1-ffffffff",
            "tool/huggingface_hub-2.4.0-12345678",
            f"weights/{B}",
        ]
        assert stored[f"engine/{A}"].held == f"shard {SHARD} refers to it"
        assert 1000 < stored[f"engine/{A}"].size < 2000
        assert stored[f"weights/{B}"].held == ""
        assert 2000 < stored[f"weights/{B}"].size < 3000

    run(main)


def test_what_a_shard_refers_to_stays_whoever_asks(tmp_path: Path) -> None:
    world = World(tmp_path)
    folder, weights = world.engine(A), world.weights(B)
    world.needs[A] = (SHARD,)

    async def main() -> None:
        removed, kept = await world.storage.collect((f"engine/{A}", f"weights/{B}", f"weights/{C}"))
        assert [one.name for one in removed] == [f"weights/{B}"]
        assert [one.name for one in kept] == [f"engine/{A}"]
        assert folder.exists()
        assert not weights.exists()

    run(main)


def test_what_a_shard_has_come_to_refer_to_while_others_were_removed_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    first, second = world.engine(A), world.weights(B)
    needs = {B: (SHARD,)}
    storage = Storage(jobs=world.jobs, needs=lambda: {} if first.exists() else needs)

    async def main() -> None:
        removed, kept = await storage.collect((f"engine/{A}", f"weights/{B}"))
        assert [one.name for one in removed] == [f"engine/{A}"]
        assert [one.held for one in kept] == [f"shard {SHARD} refers to it"]
        assert second.exists()

    run(main)


def test_an_order_that_cannot_be_read_may_refer_to_anything(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.engine(A)
    world.needs[ANYTHING_STORED] = (SHARD,)

    async def main() -> None:
        removed, (kept,) = await world.storage.collect((f"engine/{A}",))
        assert removed == ()
        assert "can't be read" in kept.held

    run(main)


def test_what_a_job_works_on_stays_and_goes_when_it_was_cancelled(tmp_path: Path) -> None:
    world = World(tmp_path)
    part = tmp_path / "weights" / f".part-fetch-{C[:8]}"
    part.mkdir()
    name = f"half/fetch-{C[:8]}/{part.name}"

    async def main() -> None:
        await world.jobs.fetch(fetch_spec(C))
        await world.storage.collect((name,))
        assert part.exists()
        await world.jobs.cancel(f"fetch-{C[:8]}")
        await world.storage.collect((name,))
        assert not part.exists()

    run(main)


def test_weights_that_somebody_else_has_put_there_are_never_removed(tmp_path: Path) -> None:
    world = World(tmp_path)
    theirs = tmp_path / "theirs.gguf"
    folder = world.weights(B, theirs)

    async def main() -> None:
        (only,) = await world.storage.stored()
        assert only.size < 1000
        await world.storage.collect((only.name,))
        assert theirs.exists()
        assert not folder.exists()

    run(main)


def test_a_name_is_never_a_path(tmp_path: Path) -> None:
    world = World(tmp_path)
    (tmp_path / "precious").mkdir()

    async def main() -> None:
        for name in ("engine/../precious", "tool/../../precious", f"weights/{tmp_path}/precious", ""):
            assert await world.storage.collect((name,)) == ((), ())
        assert (tmp_path / "precious").exists()

    run(main)


def test_a_job_that_was_done_is_not_told_of_any_more_when_its_target_is_gone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.weights(A)

    async def main() -> None:
        assert (await world.jobs.fetch(fetch_spec(A))).state == "done"
        assert [report.job for report in world.jobs.reports()] == [JobId(f"fetch-{A[:8]}")]
        await world.storage.collect((f"weights/{A}",))
        assert world.jobs.reports() == ()
        assert (await world.jobs.fetch(fetch_spec(A))).state == "queued"
        await world.jobs.close()

    run(main)
