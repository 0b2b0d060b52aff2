"""Values that manifests only point to: what a plan says of those that aren't found where it is made."""

from pathlib import Path

import pytest

from llmgw.controller.passes.keys import missing
from llmgw.core.planner import PlanOptions, plan
from llmgw.core.resolving.resolve import resolve
from llmgw.engines.registry import ADAPTERS
from llmgw.manifests.load import load
from llmgw.model.manifest import GIB
from llmgw.model.report import Reach
from tests.core.builders import KEY, NOW, NodeState, empty_record, facts, observed

FLEET = """\
apiVersion: llmgw/v1
kind: Node
metadata: {name: node1}
spec:
  ssh: {host: 10.0.0.1, hostKeys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExampl]}
  env: {PROXY: {fromEnv: OF_NODE}, HIDDEN: {fromEnv: OVERRULED}}
---
apiVersion: llmgw/v1
kind: Profile
metadata: {name: any}
spec:
  engine: {name: sim, version: "1"}
  gpus: {perNode: 0}
  memory: 1GiB
  env: {OTHER: {fromEnv: OF_PROFILE}, HIDDEN: {fromEnv: OF_PROFILE}}
---
apiVersion: llmgw/v1
kind: Model
metadata: {name: chat}
spec:
  source: {huggingFace: a/b, revision: "a123456789012345678901234567890123456789", token: {fromEnv: OF_HUB}}
  profile: any
  replicas: 2
  env: {X: {fromFile: /PLACE}}
"""
GIVEN = {"OF_NODE": "canary", "OF_PROFILE": "canary", "OF_HUB": "canary"}


def told(file: Path, environment: dict[str, str], *, reach: Reach = Reach.OK) -> list[str]:
    text = FLEET.replace("/PLACE", str(file))
    manifests = load({"manifests/fleet.yaml": text.encode()}, commit=None, links={}, path="manifests")
    wanted = resolve(manifests, key_id=KEY, adapters=ADAPTERS)
    seen = observed(NodeState("node1", facts("node1", gpus=0, memory=8 * GIB), reach=reach))
    record = empty_record()
    made = plan(wanted, record, seen, ADAPTERS, now=NOW, options=PlanOptions(key_id=KEY))
    return list(missing(made, record, wanted, environment))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "value").write_text("canary\n")
    return tmp_path / "value"


def test_nothing_is_said_of_what_is_there(file: Path) -> None:
    assert told(file, GIVEN) == []
    assert told(file, {**GIVEN, "OVERRULED": "unused"}, reach=Reach.NO_AGENT) == []


@pytest.mark.parametrize(
    ("variable", "needs"),
    [
        ("OF_PROFILE", ["model/chat needs the secret HIDDEN", "model/chat needs the secret OTHER"]),
        ("OF_HUB", ["model/chat needs the secret token"]),
    ],
)
def test_a_variable_that_is_not_set_is_told_once_with_who_needs_it(
    variable: str, needs: list[str], file: Path
) -> None:
    lines = told(file, {**GIVEN, variable: ""})
    assert [line.partition(" where")[0] for line in lines] == needs
    for line in lines:
        assert line.endswith(f"fromEnv: {variable}: the variable is empty: set it where llmgw runs")
        assert "canary" not in line


def test_a_file_that_is_not_there_is_told(file: Path) -> None:
    file.unlink()
    (line,) = told(file, GIVEN)
    assert line.startswith("model/chat needs the secret X where apply runs, and it is not found here")
    assert f"fromFile: {file}" in line


def test_what_an_agent_is_set_up_with_is_told_of_its_node(file: Path) -> None:
    (line,) = told(file, GIVEN, reach=Reach.NO_AGENT)
    assert line == (
        "node/node1 needs the secret HIDDEN where apply runs, and it is not found here: looking up fromEnv: OVERRULED: the "
        "variable is not set: set it where llmgw runs"
    )
