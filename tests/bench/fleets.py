"""Fleets of any size for measuring: manifests as people write them, in Git, and the record they would have led to."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from llmgw.clock import SystemClock
from llmgw.controller.opening import Opened, opened
from llmgw.controller.settings import load_settings
from llmgw.core import planner
from llmgw.core.planner import PlanOptions
from llmgw.core.record import recording
from llmgw.engines.registry import ADAPTERS
from llmgw.model.facts import Facts, Gpu
from llmgw.model.ids import key_id
from llmgw.model.plan import AWAITS, Plan, StepKind, StepOutcome, StepResult
from llmgw.model.record import Outcome, Record, ReplicaPhase
from llmgw.model.report import ShardReport
from llmgw.model.struct import replace
from llmgw.redaction import Redactor
from tests.core.builders import NodeState, a_pass, empty_record, observed, shard_report

GIB = 1024**3
REPLICAS_PER_MODEL = 10
PROFILE = "vllm-two"
"""Two GPUs a replica, with the engine that most fleets run. Its memory is stated: nobody can look at these weights."""


def node_facts(name: str, *, gpus: int = 8) -> Facts:
    """A pretended machine of ``gpus`` H100."""
    return Facts(
        hostname=name,
        boot_id=f"boot-{name}",
        arch="x86_64",
        cpus=128,
        memory_total=2048 * GIB,
        gpu_source="pretended",
        gpus=tuple(
            Gpu(
                uuid=f"GPU-{name}-{index}",
                index=index,
                name="NVIDIA H100 80GB HBM3",
                gpu_class="h100-80g",
                memory_total=80 * GIB,
                compute_capability="9.0",
            )
            for index in range(gpus)
        ),
    )


def write_fleet(folder: Path, *, nodes: int, models: int, replicas: int = REPLICAS_PER_MODEL) -> int:
    """One file a node and a model, as a team would keep them. Returns how many documents were written."""
    manifests = folder / "manifests"
    (manifests / "nodes").mkdir(parents=True)
    (manifests / "models").mkdir()
    for number in range(nodes):
        name = f"gpu{number:04d}"
        (manifests / "nodes" / f"{name}.yaml").write_text(
            "apiVersion: llmgw/v1\nkind: Node\n"
            f"metadata:\n  name: {name}\n  labels: {{rack: r{number % 40}}}\n"
            "spec:\n  transport: local\n"
            f"  local:\n    workDir: /srv/llmgw/{name}\n"
            f"  address: 127.{number // 62500 + 1}.{number // 250 % 250}.{number % 250 + 1}\n"
            "  expect: {gpus: 8, class: h100-80g}\n"
        )
    (manifests / "profile.yaml").write_text(
        f"apiVersion: llmgw/v1\nkind: Profile\nmetadata: {{name: {PROFILE}}}\nspec:\n"
        '  engine: {name: vllm, version: "0.11.0"}\n  gpus: {perNode: 2, class: h100-80g}\n'
        "  parallel: {tensor: 2}\n  maxModelLen: 32768\n  memory: 60GiB\n"
        '  args: ["--enable-prefix-caching"]\n'
    )
    for number in range(models):
        name = f"model{number:03d}"
        (manifests / "models" / f"{name}.yaml").write_text(
            f"apiVersion: llmgw/v1\nkind: Model\nmetadata:\n  name: {name}\n"
            f"spec:\n  source: {{path: /models/{name}}}\n  profile: {PROFILE}\n  replicas: {replicas}\n"
            "  rollout:\n    maxSurge: 1\n    drainTimeout: 2m\n"
        )
    return nodes + models + 1


def write_manifests(folder: Path, count: int) -> int:
    """``count`` documents of every kind but Fleet, about half a kilobyte each."""
    models = count // 3
    return write_fleet(folder, nodes=count - models - 1, models=models)


def change(folder: Path, models: int) -> None:
    """Another flag for the first so many models, committed: each of their replicas is to be replaced."""
    for file in sorted((folder / "manifests" / "models").iterdir())[:models]:
        text, _, _ = file.read_text().partition("  args:")
        file.write_text(f"{text}  args: [--seed, '{models}']\n")
    commit(folder, f"Change {models} models")


def commit(folder: Path, message: str) -> None:
    """Everything in the folder, as the next commit of its repository."""
    if not (folder / ".git").exists():
        subprocess.run(["git", "init", "--quiet", "--initial-branch", "main", str(folder)], check=True)
    git = ["git", "-C", str(folder), "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", message], check=True)


async def record_fleet(folder: Path, environ: Mapping[str, str]) -> int:
    """Write the record that applying the fleet would have led to, every replica serving; returns how many. The planner
    and the record's own code make it, so that it is what an apply leaves behind."""
    settings = load_settings(flags={}, environ=environ, cwd=folder)
    async with opened(settings, environ, redactor=Redactor()) as fleet:
        record = await _applied(fleet)
        await fleet.store.write(record, after=None, message="Serve everything")
    return len(record.replicas)


async def _applied(open_fleet: Opened) -> Record:
    source, now = open_fleet.fleet.source, SystemClock().now()
    key = key_id(open_fleet.fleet.secret.make())
    desired = await source.desired(await source.newest(), key_id=key)
    assert desired.commit is not None
    states = {name: NodeState(name, node_facts(name)) for name in desired.nodes}
    for state in states.values():
        state.fleet = str(empty_record().fleet)
    before = replace(empty_record(), key_id=key)
    plan = planner.plan(
        desired, before, observed(*states.values()), ADAPTERS, now=now, options=PlanOptions(key_id=key)
    )
    passed = replace(a_pass(now=now), commit=desired.commit)
    record = recording.begin(before, desired, plan, observed(*states.values()), pass_record=passed)
    for node, shard in _ready_shards(plan):
        states[node].shards[str(shard.shard)] = shard
    done = {step.id: StepResult(outcome=StepOutcome.DONE) for step in plan.steps if step.kind not in AWAITS}
    record = recording.end(record, plan, done, observed(*states.values()), now=now)
    record = recording.observe(record, observed(*states.values()), now, grace=300)
    assert all(replica.phase is ReplicaPhase.SERVING for replica in record.replicas.values())
    assert record.last_pass is not None
    return replace(record, last_pass=replace(record.last_pass, outcome=Outcome.DONE, ended=now))


def _ready_shards(plan: Plan) -> list[tuple[str, ShardReport]]:
    return [
        (step.node, shard_report(step.launch, "ready"))
        for step in plan.steps
        if step.kind is StepKind.START and step.launch is not None and step.node is not None
    ]
