"""What an engine warns of is read in the plan, at the line it is about, and holds nothing back."""

from llmgw.core.planner import PlanOptions, plan
from llmgw.core.resolving.resolve import resolve
from llmgw.engines.registry import ADAPTERS
from llmgw.manifests.load import load
from llmgw.model.manifest import GIB
from llmgw.model.plan import Plan
from tests.core.builders import KEY, NOW, NodeState, empty_record, facts, observed

FLEET = """\
apiVersion: llmgw/v1
kind: Node
metadata: {name: node1}
spec: {ssh: {host: 10.0.0.1, hostKeys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExampl]}}
---
apiVersion: llmgw/v1
kind: Profile
metadata: {name: any}
spec:
  engine: {name: custom}
  gpus: {perNode: 0}
  memory: 1GiB
  custom:
    command: ["/opt/serve", "--at", "${host}:${port}", "--key", "${key}"]
---
apiVersion: llmgw/v1
kind: Model
metadata: {name: chat}
spec: {source: {path: /models/chat}, profile: any}
"""


def planned(text: str) -> Plan:
    manifests = load({"manifests/fleet.yaml": text.encode()}, commit=None, links={}, path="manifests")
    wanted = resolve(manifests, key_id=KEY, adapters=ADAPTERS)
    seen = observed(NodeState("node1", facts("node1", gpus=0, memory=8 * GIB)))
    return plan(wanted, empty_record(), seen, ADAPTERS, now=NOW, options=PlanOptions(key_id=KEY))


def test_a_key_on_a_command_line_is_warned_of_where_it_is_written_and_started_all_the_same() -> None:
    made = planned(FLEET)
    (warning,) = [each for each in made.warnings if "can read the key" in each.text]
    assert str(warning.where) == "manifests/fleet.yaml:14:5"
    assert any(step.launch is not None for step in made.steps)


def test_a_key_in_a_variable_is_not() -> None:
    quiet = FLEET.replace(', "--key", "${key}"]', ']\n    env: {KEY: "${key}"}')
    assert not any("key" in each.text for each in planned(quiet).warnings)


def test_a_secret_in_plain_text_is_warned_of_in_the_plan_without_its_value() -> None:
    made = planned(FLEET.replace("profile: any}", "profile: any, env: {HF_TOKEN: hf_abcdefghijklmnop}}"))
    (warning,) = [each for each in made.warnings if "looks like a secret" in each.text]
    assert warning.where is not None
    assert warning.where.line == 19
    assert "hf_" not in warning.text
    assert any(step.launch is not None for step in made.steps)
