"""GPUs as the drivers tell them, with all their odd values; a driver that hangs or fails is a problem, not a failure."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.discovery import gpus as module
from llmgw.agent.discovery.commands import AskError, NoAnswerError, ask_program
from llmgw.agent.discovery.gpus import GpuDiscovery, GpuSample
from llmgw.agent.discovery.readings import Look
from llmgw.agent.sampling import Sampler
from llmgw.model.facts import Facts

MIB = 1024**2


def fake_smi(folder: Path, script: str) -> dict[str, str]:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def sample(discovery: GpuDiscovery, times: int = 1) -> GpuSample:
    async def main() -> GpuSample:
        found = GpuSample()
        for _ in range(times):
            found = await discovery.sample()
        return found

    return asyncio.run(main())


def test_a_machine_without_nvidia_smi_has_no_problem_whatever_lies_on_its_path(tmp_path: Path) -> None:
    """A folder on PATH that this user may not search was told as a failing nvidia-smi on machines without a GPU."""
    env = fake_smi(tmp_path, "exit 1")
    (tmp_path / "nvidia-smi").chmod(0o644)
    found = sample(GpuDiscovery(env=env))
    assert (found.source, found.problems) == ("none", ())


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo Failed to initialize NVML >&2; exit 9", "ended with 9: Failed to initialize NVML"),
        ("sleep 600", "no answer within"),
        ("exec yes", "bytes of output"),
    ],
)
def test_a_driver_that_fails_hangs_or_babbles_is_a_problem(tmp_path: Path, script: str, problem: str) -> None:
    found = sample(GpuDiscovery(env=fake_smi(tmp_path, script), deadline=2.0))
    assert (found.source, found.gpus) == ("none", ())
    assert problem in " ".join(found.problems)


def test_a_machine_without_gpus_is_no_problem_and_is_not_asked_again_at_once(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    discovery = GpuDiscovery(env={"PATH": str(tmp_path)})

    async def main() -> None:
        assert await discovery.sample() == GpuSample()
        fake_smi(tmp_path, f"echo x >> {asked}")
        assert await discovery.sample() == GpuSample()

    asyncio.run(main())
    assert not asked.exists()


class Unkillable:
    """A child in a call of a driver that never comes back."""

    pid = 4711
    returncode: int | None = None


def test_a_child_that_cannot_be_killed_is_not_joined_by_another(tmp_path: Path) -> None:
    """One would be added with every look, for as long as the machine runs."""
    child = Unkillable()
    asked = []

    class Hanging(GpuDiscovery):
        async def _by_nvml(self) -> Look:
            asked.append("nvml")
            raise NoAnswerError("no answer within 10 s", child)  # type: ignore[arg-type] # as far as it is looked at

    async def main() -> None:
        discovery = Hanging(env={"PATH": str(tmp_path)})
        assert (await discovery.sample()).problems == ("asking for GPUs by nvml: no answer within 10 s",)
        for _ in range(3):
            stuck = await discovery.sample()
            assert stuck.problems == ("asking for GPUs: pid 4711 still hangs in the driver",)
        assert asked == ["nvml"]
        child.returncode = -9
        await discovery.sample()
        assert asked == ["nvml"] * 2

    asyncio.run(main())


def test_the_child_imports_nothing_of_llmgw() -> None:
    assert "import llmgw" not in module.CHILD.read_text()
    assert "from llmgw" not in module.CHILD.read_text()


def test_a_program_that_is_not_there_is_told_apart_from_one_that_fails() -> None:
    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            await ask_program(["no-such-program"], env={"PATH": "/bin"}, deadline=5)
        with pytest.raises(AskError, match="ended with 3"):
            await ask_program([sys.executable, "-c", "raise SystemExit(3)"], env={}, deadline=20)
        out = await ask_program([sys.executable, "-c", "print(1)"], env={}, deadline=20)
        assert json.loads(out) == 1

    asyncio.run(main())


# ---- sampling --------------------------------------------------------------------------------------------


def sampling(test: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(test(), timeout=20))


def test_however_many_ask_the_node_is_looked_at_once() -> None:
    looks = 0

    async def look() -> Facts:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0.01)
        return Facts(hostname=str(looks))

    async def main() -> None:
        sampler = Sampler(look)
        told = await asyncio.gather(*(sampler.facts(max_age=5) for _ in range(5)))
        assert {facts.hostname for facts in told} == {"1"}
        assert (await sampler.facts(max_age=60)).hostname == "1"
        assert (await sampler.facts(max_age=-1)).hostname == "2"
        await sampler.close()

    sampling(main)


def test_a_look_that_hangs_does_not_hold_up_a_report_and_is_told() -> None:
    hang = asyncio.Event()

    async def look() -> Facts:
        await hang.wait()
        return Facts(hostname="late")

    async def main() -> None:
        sampler = Sampler(look, patience=0.05)
        facts = await sampler.facts(max_age=5)
        assert facts.hostname == ""
        assert "takes longer than" in facts.problems[0]
        hang.set()
        assert (await sampler.facts(max_age=5)).hostname == "late"
        await sampler.close()

    sampling(main)


@pytest.mark.parametrize("what", ["looking", "hearing of it"])
def test_a_look_that_breaks_costs_no_report_and_not_the_next_look(what: str) -> None:
    """An error beside the work made a node look as if nobody answered there."""
    trouble = [RuntimeError("a bug")]

    def break_once(at: str) -> None:
        if at == what and trouble:
            raise trouble.pop()

    async def look() -> Facts:
        break_once("looking")
        return Facts(hostname="gpu01")

    async def told(_: Facts) -> None:
        break_once("hearing of it")

    async def main() -> None:
        sampler = Sampler(look, told=told)
        facts = await sampler.facts(max_age=0)
        assert facts.problems[-1] == "looking at the node: RuntimeError: a bug"
        again = await sampler.facts(max_age=0)
        assert (again.hostname, again.problems) == ("gpu01", ())
        await sampler.close()

    sampling(main)


def test_facts_are_kept_fresh_by_themselves() -> None:
    seen = asyncio.Event()
    looks = 0

    async def look() -> Facts:
        nonlocal looks
        looks += 1
        if looks == 3:
            seen.set()
        return Facts()

    async def main() -> None:
        sampler = Sampler(look, every=0.001)
        sampler.start()
        await asyncio.wait_for(seen.wait(), timeout=10)
        await sampler.close()

    sampling(main)
