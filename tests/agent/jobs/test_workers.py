"""A job's work lives in a process of its own: found again, followed, explained and ended, with real processes."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.assembly import RUNTIME
from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.files import NoSpaceError
from llmgw.agent.jobs.orders import ROOM, Result, Told, read, result_of, write_over
from llmgw.agent.jobs.setup import WorkPlace, workers
from llmgw.agent.jobs.targets import DiskTargets
from llmgw.agent.jobs.workers import Workers
from llmgw.agent.settings import layout, make_folders
from llmgw.clock import SystemClock
from llmgw.model.launch import FetchSpec
from llmgw.model.problems import RetryError, StalledError
from llmgw.wire.setup import AgentSettings
from tests.agent.agents import DIGEST, fetch_spec, until
from tests.agent.jobs.test_fetch import SHA256, WEIGHTS
from tests.agent.jobs.test_hub import told
from tests.agent.jobs.test_install import ENV, marked

JOB = f"fetch-{DIGEST[:8]}"
CANARY = "canary-2718"


def doer(folder: Path, *, reserve: int = 0, env: Mapping[str, str] = ENV) -> Workers:
    """A new agent's, each time."""
    settings = AgentSettings(node="n1")
    places = layout(folder / "work", settings)
    make_folders(places)
    targets = DiskTargets(engines_folder=places.engines, weights_folder=places.weights)
    place = WorkPlace(
        places=places, runtime=RUNTIME, settings=settings, env=env, targets=targets, reserve=reserve
    )
    return workers(place, clock=SystemClock())[1]


@contextmanager
def slow(body: bytes = WEIGHTS) -> Iterator[tuple[str, threading.Event]]:
    """Sends one half, and the other when told."""
    go = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            go.wait(60)
            with suppress(OSError):
                self.wfile.write(body[len(body) // 2 :])

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/model.gguf", go
    finally:
        go.set()
        server.shutdown()
        thread.join()
        server.server_close()


def spec(url: str, **changes: Any) -> FetchSpec:
    return fetch_spec(**{"url": url, "sha256": SHA256, **changes})


def run(folder: Path, main: Coroutine[Any, Any, None]) -> None:
    """Ends with nothing left running."""

    async def whole() -> None:
        try:
            await asyncio.wait_for(main, timeout=60)
        finally:
            await doer(folder).stop(JOB)

    asyncio.run(whole())
    assert marked(folder) == []


async def half_way(folder: Path, url: str, progress: Progress, **secrets: str) -> "asyncio.Task[None]":
    """A task that follows a worker which waits for the second half."""
    task = asyncio.ensure_future(doer(folder).run(spec(url), progress, secrets=secrets))
    await until(lambda: task.done() or progress.total == len(WEIGHTS))
    assert not task.done()
    return task


async def gone(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_worker_goes_on_without_its_agent_and_the_next_one_follows_it(tmp_path: Path) -> None:
    async def main() -> None:
        await gone(await half_way(tmp_path, url, Progress()))
        (worker,) = marked(tmp_path / "work" / "jobruns")
        progress = Progress()
        task = asyncio.ensure_future(doer(tmp_path).run(spec(url), progress))
        await until(lambda: progress.total)
        assert marked(tmp_path / "work" / "jobruns") == [worker]
        go.set()
        await task
        assert progress.done == len(WEIGHTS)
        assert doer(tmp_path).complete(spec(url))

    with slow() as (url, go):
        run(tmp_path, main())


def test_what_came_of_a_worker_that_ended_unwatched_is_told_by_the_next_agent(tmp_path: Path) -> None:
    async def main() -> None:
        await gone(await half_way(tmp_path, url, Progress()))
        go.set()
        await until(lambda: not marked(tmp_path / "work" / "jobruns"))
        with pytest.raises(StalledError, match=f"its SHA-256 is .*, expected {SHA256}"):
            await doer(tmp_path).run(spec(url), Progress())

    with slow(b"x" * len(WEIGHTS)) as (url, go):
        run(tmp_path, main())


def test_a_worker_that_was_killed_is_explained_and_the_next_try_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        task = await half_way(tmp_path, url, Progress())
        (worker,) = marked(tmp_path / "work" / "jobruns")
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(RetryError, match="its worker ended by signal 9: memory may have run out"):
            await task
        go.set()
        await doer(tmp_path).run(spec(url), Progress())

    with slow() as (url, go):
        run(tmp_path, main())


def test_stopping_ends_the_worker_and_forgets_it(tmp_path: Path) -> None:
    async def main() -> None:
        task = await half_way(tmp_path, url, Progress())
        await doer(tmp_path).stop(JOB)
        await gone(task)
        assert marked(tmp_path) == []
        assert [path.name for path in (tmp_path / "work" / "jobruns").rglob("*") if path.is_file()] == []
        await doer(tmp_path).stop(JOB)

    with slow() as (url, _):
        run(tmp_path, main())


def test_taking_the_agent_away_from_a_machine_ends_its_jobs(tmp_path: Path) -> None:
    async def main() -> None:
        task = await half_way(tmp_path, url, Progress())
        await gone(task)
        work = tmp_path / "work"
        told = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(RUNTIME / "nodesetup.py"), "0", "remove"),
            *(str(work), "", "", str(tmp_path / "no-command")),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await told.communicate()
        assert b'"done"' in out, out
        await until(lambda: not marked(tmp_path))

    with slow() as (url, _):
        run(tmp_path, main())


def test_cleaning_ends_what_nobody_goes_on_with_and_keeps_what_may_be_ordered_again(tmp_path: Path) -> None:
    weights = tmp_path / "work" / "weights"

    async def main() -> None:
        await gone(await half_way(tmp_path, url, Progress()))
        for other in ("11111111", "22222222"):
            (weights / f".part-fetch-{other}").mkdir()
        await doer(tmp_path).clean(frozenset({JOB}), kept=frozenset({"fetch-11111111"}))
        assert len(marked(tmp_path / "work" / "jobruns")) == 1
        assert sorted(entry.name for entry in weights.iterdir()) == [
            ".part-fetch-11111111",
            f".part-{JOB}",
        ]
        await doer(tmp_path).clean(frozenset(), kept=frozenset())
        assert marked(tmp_path / "work" / "jobruns") == []
        assert list(weights.iterdir()) == []

    with slow() as (url, _):
        run(tmp_path, main())


def test_secrets_are_on_the_disk_no_longer_than_a_worker_needs_to_read_them(tmp_path: Path) -> None:
    async def main() -> None:
        task = await half_way(tmp_path, url, Progress(), token=CANARY)
        assert not any(CANARY.encode() in text for text in told(tmp_path / "work" / "jobruns"))
        files = [path for path in (tmp_path / "work" / "jobruns").rglob("*") if path.is_file()]
        assert files
        assert not any(CANARY.encode() in path.read_bytes() for path in files)
        await gone(task)

    with slow() as (url, _):
        run(tmp_path, main())


def test_errors_keep_their_kind_on_the_way_to_the_agent(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(RetryError, match="it goes on from there"):
            await doer(tmp_path).run(spec("http://127.0.0.1:1/model.gguf"), Progress())
        with pytest.raises(NoSpaceError, match="free space there"):
            await doer(tmp_path, reserve=2**60).run(spec("http://127.0.0.1:1/model.gguf"), Progress())
        with pytest.raises(StalledError, match="no sha256"):
            await doer(tmp_path).run(spec("http://127.0.0.1:1/x", sha256=None), Progress())

    run(tmp_path, main())


def test_an_end_is_told_in_the_room_that_was_laid_down_for_it(tmp_path: Path) -> None:
    """However long, and in whatever language: on a full disk there is no more."""
    file = tmp_path / "result"
    file.write_bytes(b" " * ROOM)
    result = result_of(StalledError("\U0001f600" * 100_000))
    write_over(file, result)
    assert file.stat().st_size == ROOM
    assert read(Result, file) == result
    file.write_bytes(b'{"kind": "do')
    assert read(Result, file) is None
    assert read(Told, tmp_path / "nothing") is None
