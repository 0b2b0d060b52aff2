"""One job a target, orders that outlive the agent, ends that are told."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.fakes import FakeDoer, FakeTargets
from llmgw.agent.jobs.runner import KEPT, Jobs
from llmgw.agent.journal import Journal, MemoryJournalStore
from llmgw.clock import FakeClock
from llmgw.model.ids import JobId
from llmgw.model.problems import AgentError, RetryError, StalledError
from llmgw.model.report import JobReport
from llmgw.wire.messages import INVALID_PARAMS, NO_SPACE, NOT_FOUND
from tests.agent.agents import NOON, MemoryDisk, fetch_spec, install_spec, until

INSTALL = JobId("install-abababab")


class World:
    """A disk and targets that outlive the jobs."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.disk = MemoryDisk()
        self.targets = FakeTargets()
        self.doer = FakeDoer(self.targets, seconds=seconds)
        self.store = MemoryJournalStore()
        self.told: list[JobReport] = []

    def jobs(
        self,
        learn: Callable[[str], None] = lambda _: None,
        *,
        later: timedelta = timedelta(),
        boot: str = "b1",
    ) -> Jobs:
        return Jobs(
            clock=FakeClock(NOON + later),
            disk=self.disk,
            journal=Journal(store=self.store, clock=FakeClock(NOON)),
            install=self.doer,
            fetch=self.doer,
            targets=self.targets,
            changed=self.told.append,
            learn=learn,
            boot_id=boot,
        )


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), timeout=20))


def test_a_job_runs_to_its_end_and_tells_so() -> None:
    world = World()

    async def main() -> None:
        jobs = world.jobs()
        first = await jobs.install(install_spec())
        assert first.state == "queued"
        await jobs.wait((INSTALL,))
        assert jobs.engine_path(install_spec().digest) == "/pretended/engines/abababab"
        assert [report.state for report in world.told] == ["running", "done"]
        assert world.told[-1].done_bytes == world.told[-1].total_bytes == 1_000_000

    run(main)


def test_however_many_ask_there_is_one_job_a_target() -> None:
    world = World(seconds=0.05)

    async def main() -> None:
        jobs = world.jobs()
        await asyncio.gather(*(jobs.install(install_spec()) for _ in range(10)))
        await jobs.wait((INSTALL,))
        assert (await jobs.install(install_spec())).state == "done"
        assert world.doer.runs == ["install-abababab"]

    run(main)


def test_a_failed_job_tells_why_and_is_tried_again_when_ordered_again() -> None:
    world = World()
    world.doer.errors = [StalledError("no such version")]

    async def main() -> None:
        jobs = world.jobs()
        await jobs.install(install_spec())
        with pytest.raises(StalledError, match=r"install-abababab \(sim 1\) failed: no such version"):
            await jobs.wait((INSTALL,))
        await jobs.install(install_spec())
        await jobs.wait((INSTALL,))

    run(main)


def test_an_error_that_may_pass_is_tried_again_by_itself() -> None:
    world = World()
    world.doer.errors = [RetryError("the line is down", after=timedelta(0))] * 2

    async def main() -> None:
        jobs = world.jobs()
        await jobs.fetch(fetch_spec())
        await jobs.wait((JobId("fetch-abababab"),))
        assert len(world.doer.runs) == 3

    run(main)


def test_an_unforeseen_error_fails_the_job_and_not_the_agent() -> None:
    world = World()
    world.doer.errors = [ZeroDivisionError("oops")]

    async def main() -> None:
        jobs = world.jobs()
        await jobs.install(install_spec())
        with pytest.raises(StalledError, match="ZeroDivisionError: oops"):
            await jobs.wait((INSTALL,))

    run(main)


def test_a_job_that_takes_too_long_fails() -> None:
    world = World(seconds=60)

    async def main() -> None:
        jobs = world.jobs()
        await jobs.install(install_spec(timeout=0.05))
        with pytest.raises(StalledError, match="not done within"):
            await jobs.wait((INSTALL,))

    run(main)


def test_a_cancelled_job_ends_and_the_shards_that_wait_are_told() -> None:
    world = World(seconds=60)

    async def main() -> None:
        jobs = world.jobs()
        await jobs.install(install_spec())
        waiting = asyncio.ensure_future(jobs.wait((INSTALL,)))
        assert (await jobs.cancel(INSTALL)).state == "cancelled"
        with pytest.raises(StalledError, match="cancelled"):
            await waiting
        assert (await jobs.cancel(INSTALL)).state == "cancelled"

    run(main)


def test_a_failed_job_that_is_cancelled_is_forgotten_also_by_the_next_agent() -> None:
    world = World()
    world.doer.errors = [ZeroDivisionError("oops")]

    async def main() -> None:
        jobs = world.jobs()
        await jobs.install(install_spec())
        with pytest.raises(StalledError, match="oops"):
            await jobs.wait((INSTALL,))
        assert (await jobs.cancel(INSTALL)).state == "failed"
        assert jobs.reports() == ()
        await jobs.close()
        later = world.jobs()
        await later.adopt()
        assert later.reports() == ()

    run(main)


def test_cancelling_what_nobody_ordered_is_told() -> None:
    async def main() -> None:
        with pytest.raises(AgentError) as caught:
            await World().jobs().cancel("install-00000000")
        assert caught.value.code == NOT_FOUND

    run(main)


def test_a_jobs_secrets_stay_until_it_has_ended_and_are_learnt_by_the_log() -> None:
    world = World(seconds=60)
    learnt: list[str] = []

    async def main() -> None:
        jobs = world.jobs(learnt.append)
        await jobs.fetch(fetch_spec(), secrets={"token": "canary"})
        await until(lambda: world.doer.secrets)
        assert world.doer.secrets == [{"token": "canary"}]
        assert learnt
        assert {name for name, data in world.disk.files.items() if b"canary" in data} == {
            "jobsecrets/fetch-abababab.json"
        }
        await jobs.close()
        second = world.jobs(learnt.append)
        await second.adopt()
        await until(lambda: len(world.doer.secrets) == 2)
        assert world.doer.secrets[1] == {"token": "canary"}
        await second.cancel("fetch-abababab")
        assert not any(b"canary" in data for data in world.disk.files.values())

    run(main)


def test_secrets_of_jobs_that_nobody_knows_any_more_are_removed() -> None:
    world = World()
    world.disk.files["jobsecrets/fetch-00000000.json"] = b'{"values": {"token": "canary"}}'

    async def main() -> None:
        await world.jobs().adopt()
        assert world.disk.files == {}

    run(main)


def test_an_agents_restart_gives_a_job_no_more_time() -> None:
    world = World(seconds=1000)

    async def main() -> None:
        first = world.jobs()
        await first.install(install_spec(timeout=0.3))
        await until(lambda: first.reports()[0].state == "running")
        await first.close()
        second = world.jobs()
        await second.adopt()
        assert second.reports()[0].started == NOON
        with pytest.raises(StalledError, match="not done within 0 s"):
            await second.wait((INSTALL,))
        assert world.doer.stopped == [INSTALL]

    run(main)


def test_a_machine_that_was_off_for_days_has_taken_no_time_from_its_jobs() -> None:
    world = World(seconds=1000)

    async def main() -> None:
        first = world.jobs()
        await first.install(install_spec(timeout=3600))
        await until(lambda: first.reports()[0].state == "running")
        await first.close()
        days = timedelta(days=3)
        same_boot, rebooted = world.jobs(later=days), world.jobs(later=days, boot="b2")
        for jobs, started in ((same_boot, NOON), (rebooted, NOON + days)):
            await jobs.adopt()
            await until(lambda jobs=jobs: jobs.reports()[0].state == "running")  # type: ignore[misc]
            assert jobs.reports()[0].started == started
            await jobs.close()
        assert world.store.lines[-1].count(b"resumed after the machine was rebooted") == 1

    run(main)


def test_a_job_whose_target_was_there_already_is_known_to_the_next_agent_too() -> None:
    world = World()

    async def main() -> None:
        await world.doer.run(install_spec(), Progress())
        assert (await world.jobs().install(install_spec())).state == "done"
        second = world.jobs()
        await second.adopt()
        report = second.state(INSTALL)
        assert report is not None
        assert report.state == "done"
        assert world.doer.runs == [INSTALL]

    run(main)


def test_a_job_whose_target_was_there_already_is_done_on_a_full_disk_too() -> None:
    world = World()

    async def main() -> None:
        await world.doer.run(install_spec(), Progress())
        world.disk.refuses = "No space left on device"
        assert (await world.jobs().install(install_spec())).state == "done"

    run(main)


def test_a_failed_jobs_half_is_kept_for_the_next_order() -> None:
    world = World()
    world.doer.errors = [StalledError("a mirror is down")]

    async def main() -> None:
        jobs = world.jobs()
        await jobs.install(install_spec())
        with pytest.raises(StalledError):
            await jobs.wait((INSTALL,))
        await world.jobs().adopt()
        assert world.doer.kept[0] == frozenset({INSTALL})

    run(main)


def test_waiting_for_what_nobody_ordered_fails_at_once() -> None:
    async def main() -> None:
        with pytest.raises(StalledError, match="nobody ordered it"):
            await World().jobs().wait((INSTALL,))

    run(main)


def test_an_order_is_on_disk_before_work_begins_and_a_disk_that_refuses_means_no_job() -> None:
    world = World()
    world.disk.refuses = "No space left on device"

    async def main() -> None:
        jobs = world.jobs()
        with pytest.raises(AgentError, match="not begun") as caught:
            await jobs.install(install_spec())
        assert caught.value.code == NO_SPACE
        assert world.doer.runs == []
        assert jobs.reports() == ()

    run(main)


def test_a_new_agent_goes_on_with_what_the_last_one_left() -> None:
    world = World(seconds=60)

    async def main() -> None:
        first = world.jobs()
        await first.install(install_spec())
        await asyncio.sleep(0)
        await first.close()
        world.doer.seconds = 0
        second = world.jobs()
        assert await second.adopt() == ()
        await second.wait((INSTALL,))
        assert second.reports()[0].state == "done"
        assert world.doer.cleaned == [frozenset({"install-abababab"}), frozenset()]
        assert world.doer.stopped == []

    run(main)


def test_a_finished_job_is_still_known_to_the_next_agent_and_not_done_again() -> None:
    world = World()

    async def main() -> None:
        first = world.jobs()
        await first.install(install_spec())
        await first.wait((INSTALL,))
        second = world.jobs()
        await second.adopt()
        await second.wait((INSTALL,))
        assert world.doer.runs == ["install-abababab"]

    run(main)


@pytest.mark.parametrize("broken", [b"{", b"", b"\0" * 100, b"[" * 100_000])
def test_an_order_that_cannot_be_read_is_put_aside_and_told_once(broken: bytes) -> None:
    world = World()
    world.disk.files["jobs/install-abababab.json"] = broken

    async def main() -> None:
        jobs = world.jobs()
        assert not await jobs.adopt(), "nothing that a report would have to repeat"
        assert "jobs/install-abababab.json" not in world.disk.files
        assert world.disk.files["jobs/unreadable/install-abababab.json"] == broken
        assert not await world.jobs().adopt()
        (told,) = [line for line in world.store.lines if b"can't be read" in line]
        assert b"kept in jobs/unreadable/install-abababab.json" in told
        await jobs.install(install_spec())
        await jobs.wait((INSTALL,))
        assert "jobs/unreadable/install-abababab.json" not in world.disk.files

    run(main)


def test_an_order_that_cannot_even_be_put_aside_stays_a_problem() -> None:
    world = World()
    world.disk.files["jobs/install-abababab.json"] = b"{"
    world.disk.refuses = "Read-only file system"

    async def main() -> None:
        (problem,) = await world.jobs().adopt()
        assert "the order of job install-abababab can't be read" in problem
        assert "Read-only file system" in problem
        assert "jobs/install-abababab.json" in world.disk.files

    run(main)


@pytest.mark.parametrize("job", ["../../etc/passwd", "install-xyz", "", "other-abababab"])
def test_a_job_is_never_a_path(job: str) -> None:
    async def main() -> None:
        with pytest.raises(AgentError) as caught:
            await World().jobs().install(install_spec(job=JobId(job)))
        assert caught.value.code == INVALID_PARAMS

    run(main)


def test_orders_of_ended_jobs_do_not_pile_up() -> None:
    world = World()

    async def main() -> None:
        jobs = world.jobs()
        for number in range(KEPT + 5):
            digest = f"{number:08x}" * 8
            await jobs.install(install_spec(digest))
            await jobs.wait((JobId(f"install-{digest[:8]}"),))
        assert len(jobs.reports()) <= KEPT
        assert len(world.disk.files) <= KEPT

    run(main)
