"""One contract, two stores: in memory and on a branch of a real repository."""

import asyncio
import os
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from llmgw.clock import FakeClock
from llmgw.controller.repo.git import Git, GitEnvironment
from llmgw.controller.repo.objects import ObjectStore
from llmgw.controller.repo.records import LostRaceError, MemoryRecordStore, RecordStore
from llmgw.controller.repo.remote import remote_of
from llmgw.controller.repo.state_branch import GitRecordStore
from llmgw.model.claims import GpuClaim
from llmgw.model.facts import Facts, Gpu, Interface
from llmgw.model.ids import Commit, FleetId, ReplicaId, digest, replica_id
from llmgw.model.manifest import Engine, ModelSpec, ProfileSpec, Secret, Source
from llmgw.model.plan import Basis, Plan, Step, StepKind
from llmgw.model.problems import Where
from llmgw.model.record import (
    Endpoint,
    Held,
    ModelRecord,
    NodeRecord,
    Origin,
    Outcome,
    PassRecord,
    RankPlacement,
    Record,
    ReplicaPhase,
    ReplicaRecord,
    ReplicaSpec,
)
from llmgw.model.report import Exit
from llmgw.model.struct import replace
from llmgw.model.weights import CacheGroup, Measured, Weights

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=timezone.utc)
OpenStore = Callable[[], RecordStore]
"""Each call gives the store of another controller: they share nothing but what is stored."""

MESSAGE = "Start chat on gpu01\n\nIt was asked for.\n\nLlmgw-Serial: 1\nLlmgw-Actor: ann\n"


def git(*arguments: str) -> None:
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    subprocess.run(["git", *who, *arguments], check=True, env=env, capture_output=True)


def make_repository(path: Path, *, bare: bool) -> None:
    git("init", "--quiet", "--initial-branch=main", *(["--bare"] if bare else []), str(path))
    if not bare:
        (path / "a.yaml").write_text("a: 1\n")
        git("-C", str(path), "add", "a.yaml")
        git("-C", str(path), "commit", "--quiet", "--message", "First")


@pytest.fixture(params=["memory", "bare", "checked out"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    if request.param == "memory":
        store = MemoryRecordStore()
        return lambda: store
    repository = tmp_path / "fleet"
    make_repository(repository, bare=request.param == "bare")
    numbers = iter(range(100))

    def open_one() -> RecordStore:
        clock = FakeClock(NOW)
        runner = Git(GitEnvironment(path=os.environ["PATH"]))
        objects = ObjectStore(tmp_path / f"state-{next(numbers)}", git=runner, clock=clock, holder="ann@box")
        remote = remote_of(str(repository), base=tmp_path)
        return GitRecordStore(objects, remote, ref="llmgw/state", author="ann@box", clock=clock)

    return open_one


def replica(model: str, ordinal: int) -> ReplicaRecord:
    spec_digest = digest(model)
    return ReplicaRecord(
        id=replica_id(prefix=model, spec_digest=spec_digest, ordinal=ordinal, n=1),
        model=model,
        ordinal=ordinal,
        n=1,
        spec_digest=spec_digest,
        spec=ReplicaSpec(
            model=ModelSpec(
                source=Source(path="/models/x"), profile="small", env={"TOKEN": Secret(from_env="HF")}
            ),
            profile_name="small",
            profile=ProfileSpec(engine=Engine(name="sim"), args=("--slow", "ü")),
            served_name=model,
            key_id="0123abcd",
        ),
        ranks=(
            RankPlacement(
                rank=0,
                node="gpu01",
                address="10.0.0.1",
                gpus=(GpuClaim(uuid="GPU-1", memory=5),),
                ports=(18000, 18001),
            ),
        ),
        phase=ReplicaPhase.STARTING,
        origin=Origin(commit=Commit("a" * 40), where=Where(file="m.yaml", line=3, column=1), serial=1),
        reasons=("gpu01: the first that fits",),
        draining_since=NOW,
        last_exit=Exit(at=NOW, code=1, last_lines=("boom",)),
    )


WEIGHTS = Weights(
    digest="w" * 64,
    description="lab/llama@main",
    format="safetensors",
    size=15 * 1024**3,
    architecture="LlamaForCausalLM",
    layers=32,
    cache=(CacheGroup(layers=32, heads=8, key=128, value=128, window=None),),
)


def record(serial: int = 1, *, models: tuple[str, ...] = ("chat", "embed")) -> Record:
    made = [replica(model, ordinal) for model in models for ordinal in (0, 1)]
    node = NodeRecord(
        name="gpu01",
        address="10.0.0.1",
        facts=Facts(
            hostname="gpu01",
            gpus=(Gpu(uuid="GPU-1", index=0, name="H100", gpu_class="h100-80g", memory_total=80 * 1024**3),),
            interfaces=(Interface(name="eth0", addresses=("10.0.0.1",)),),
            ephemeral_ports=(32768, 60999),
        ),
        unreachable_since=NOW,
    )
    return Record(
        fleet=FleetId("f1"),
        serial=serial,
        commit=Commit("a" * 40),
        key_id="0123abcd",
        tool_version="0.1.0",
        models={name: model_record(name) for name in models},
        replicas={str(one.id): one for one in made},
        nodes={"gpu01": node},
        endpoints=tuple(endpoint(one.id, one.model) for one in made),
        weights={"w" * 64: WEIGHTS},
        measured={
            "m" * 64: Measured(key="m" * 64, about="chat on vllm", values={"kv": ("21.5",)}, replica="chat")
        },
        last_pass=PassRecord(
            serial=serial,
            holder="ann@box",
            trigger="manual",
            actor="ann",
            commit=Commit("a" * 40),
            plan_digest="p",
            started=NOW,
            lease_until=NOW + timedelta(seconds=120),
        ),
        spent_plans=("p0",),
    )


def model_record(name: str) -> ModelRecord:
    held = Held(spec_digest="d", commit=Commit("b" * 40), reason="never got ready", at=NOW, last_lines=("x",))
    return ModelRecord(
        name=name, id_prefix=name, served_name=name, placements={"0": 1}, labels={"tier": "gold"}, held=held
    )


def endpoint(replica_of: ReplicaId, model: str) -> Endpoint:
    return Endpoint(
        model=model,
        served_name=model,
        aliases=("default",),
        replica=replica_of,
        address="10.0.0.1",
        port=18000,
        key_id="0123abcd",
        state="ready",
    )


def plan() -> Plan:
    return Plan(
        basis=Basis(fleet=FleetId("f1"), commit=Commit("a" * 40), serial=0, observed="o"),
        created=NOW,
        steps=(Step(id="stop x", kind=StepKind.STOP, reason="it is not asked for", node="gpu01"),),
    )


def test_a_fleet_without_a_record_has_none(open_store: OpenStore) -> None:
    stored = asyncio.run(open_store().read())
    assert (stored.record, stored.version, stored.pending_plan) == (None, None, None)
    assert asyncio.run(open_store().history()) == ()


def test_what_was_written_is_read_by_another_to_the_last_field(open_store: OpenStore) -> None:
    version = asyncio.run(open_store().write(record(), after=None, message=MESSAGE))
    stored = asyncio.run(open_store().read())
    assert stored.record == record()
    assert stored.version == version
    assert stored.pending_plan is None


def test_a_plan_is_kept_beside_the_intent_and_gone_with_the_outcome(open_store: OpenStore) -> None:
    intent = asyncio.run(open_store().write(record(1), after=None, message=MESSAGE, plan=plan()))
    assert asyncio.run(open_store().read()).pending_plan == plan()
    last = record(1).last_pass
    assert last is not None
    done = replace(record(1), last_pass=replace(last, outcome=Outcome.DONE, ended=NOW))
    asyncio.run(open_store().write(done, after=intent, message=MESSAGE))
    stored = asyncio.run(open_store().read())
    assert stored.pending_plan is None
    assert stored.record == done


def test_who_writes_after_an_old_version_has_lost(open_store: OpenStore) -> None:
    first = asyncio.run(open_store().write(record(1), after=None, message=MESSAGE))
    second = asyncio.run(open_store().write(record(2), after=first, message=MESSAGE))
    with pytest.raises(LostRaceError):
        asyncio.run(open_store().write(record(3), after=first, message=MESSAGE))
    stored = asyncio.run(open_store().read())
    assert stored.record == record(2)
    assert stored.version == second


def test_the_very_first_write_is_won_once(open_store: OpenStore) -> None:
    asyncio.run(open_store().write(record(1), after=None, message=MESSAGE))
    with pytest.raises(LostRaceError):
        asyncio.run(open_store().write(record(2), after=None, message=MESSAGE))
    assert asyncio.run(open_store().read()).record == record(1)


def test_writing_the_very_same_after_the_same_is_won_once(open_store: OpenStore) -> None:
    """Two controllers of one user, in the same second, with the same plan: their commits are the same commit."""
    first = asyncio.run(open_store().write(record(1), after=None, message=MESSAGE))
    asyncio.run(open_store().write(record(2), after=first, message=MESSAGE))
    with pytest.raises(LostRaceError):
        asyncio.run(open_store().write(record(2), after=first, message=MESSAGE))


@pytest.mark.parametrize("founded", [True, False])
def test_of_many_at_once_exactly_one_wins(open_store: OpenStore, *, founded: bool) -> None:
    async def main() -> tuple[list[object], Record | None]:
        after = await open_store().write(record(1), after=None, message=MESSAGE) if founded else None
        writes = [open_store().write(record(10 + n), after=after, message=f"{n}\n") for n in range(5)]
        answers: list[object] = list(await asyncio.gather(*writes, return_exceptions=True))
        return answers, (await open_store().read()).record

    answers, newest = asyncio.run(main())
    won = [n for n, answer in enumerate(answers) if isinstance(answer, str)]
    lost = [answer for answer in answers if isinstance(answer, LostRaceError)]
    assert (len(won), len(lost)) == (1, 4), answers
    assert newest == record(10 + won[0])


def test_what_left_the_record_is_gone_and_what_moved_is_there_once(open_store: OpenStore) -> None:
    first = asyncio.run(open_store().write(record(1), after=None, message=MESSAGE))
    renamed = {
        str(one.id): replace(one, model="talk", phase=ReplicaPhase.SERVING)
        for one in record().replicas.values()
        if one.model == "chat"
    }
    smaller = replace(record(2), replicas=renamed, nodes={}, endpoints=(), models={})
    asyncio.run(open_store().write(smaller, after=first, message=MESSAGE))
    assert asyncio.run(open_store().read()).record == smaller


def test_one_controller_may_write_again_and_again(open_store: OpenStore) -> None:
    store = open_store()
    version: Commit | None = None
    for serial in range(1, 6):
        version = asyncio.run(store.write(record(serial), after=version, message=f"Pass {serial}\n"))
        assert asyncio.run(store.read()).version == version
    assert asyncio.run(open_store().read()).record == record(5)


def test_a_reader_sees_what_another_wrote_since(open_store: OpenStore) -> None:
    reader = open_store()
    first = asyncio.run(open_store().write(record(1), after=None, message=MESSAGE))
    assert asyncio.run(reader.read()).record == record(1)
    asyncio.run(open_store().write(record(2), after=first, message=MESSAGE))
    assert asyncio.run(reader.read()).record == record(2)


def test_the_history_tells_the_newest_first_with_its_trailers(open_store: OpenStore) -> None:
    version: Commit | None = None
    for serial in range(1, 4):
        message = f"Pass {serial}\n\nBecause: of it.\n\nLlmgw-Serial: {serial}\nLlmgw-Outcome: done\n"
        version = asyncio.run(open_store().write(record(serial), after=version, message=message))
    entries = asyncio.run(open_store().history(limit=2))
    assert [entry.subject for entry in entries] == ["Pass 3", "Pass 2"]
    assert entries[0].version == version
    assert entries[0].body == "Because: of it."
    assert entries[0].trailers == (("Llmgw-Serial", "3"), ("Llmgw-Outcome", "done"))
