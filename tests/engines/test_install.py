"""What engines come from: packages, or an archive that has nothing to do with packages."""

import pytest

from llmgw.core.adapter import NodeContext
from llmgw.engines.registry import ADAPTERS
from llmgw.model.launch import InstallSpec
from llmgw.model.manifest import Engine, NodeSpec, Pip
from tests.engines.cases import LLAMA, SHA, model, profile
from tests.engines.test_validate import problems

ARCHIVE = Engine(name="llamacpp", version="b11434", url="https://mirror.example.org/llama.tar.gz", sha256=SHA)


def installed(engine: Engine, *, python: str | None = None, pip: Pip | None = None) -> InstallSpec:
    node = NodeContext(name="n1", spec=NodeSpec(python=python), facts=None)
    spec = ADAPTERS[engine.name].install(model(profile(engine)), node, pip or Pip())
    assert spec is not None
    return spec


def test_an_archive_is_fetched_by_its_address_and_its_program_found() -> None:
    spec = installed(ARCHIVE)
    assert (spec.url, spec.sha256, spec.version) == (ARCHIVE.url, SHA, "b11434")
    assert spec.finds == ("llama-server",)
    assert (spec.requirements, spec.programs, spec.index_url, spec.python) == ((), (), None, None)
    assert spec.job == f"install-{spec.digest[:8]}"


def test_an_archive_is_the_same_wherever_it_comes_from_and_whatever_python_is_there() -> None:
    first = installed(ARCHIVE)
    mirrored = Engine(name="llamacpp", version="b11434", url="https://other.example.org/x.zip", sha256=SHA)
    pip = Pip(index_url="https://pypi.example.org/simple")
    assert installed(mirrored, python="/usr/bin/python3.12", pip=pip).digest == first.digest
    changed = Engine(name="llamacpp", version="b11434", url=ARCHIVE.url, sha256="cd" * 32)
    assert installed(changed).digest != first.digest
    assert installed(LLAMA).digest != first.digest


def test_llamacpp_takes_an_archive_under_any_name_of_a_version() -> None:
    assert problems(model(profile(ARCHIVE))) == []


@pytest.mark.parametrize("name", sorted(set(ADAPTERS) - {"llamacpp", "custom"}))
def test_other_engines_do_not_come_as_archives(name: str) -> None:
    engine = Engine(name=name, version="1.0", url=ARCHIVE.url, sha256=SHA)  # type: ignore[arg-type] # one of the registry
    found = [problem.what for problem in ADAPTERS[name].validate(model(profile(engine)))]
    assert any(what.startswith("spec.engine.url") for what in found), found
