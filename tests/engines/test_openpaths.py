"""What engines leave open is known for every engine there is, and the doctor never asks what could set something off."""

import pytest

from llmgw.engines.openpaths import GUARDED, OPEN_PATHS
from llmgw.engines.registry import ADAPTERS


def test_every_engine_has_its_paths_and_no_other_is_listed() -> None:
    assert OPEN_PATHS.keys() == ADAPTERS.keys()


@pytest.mark.parametrize("name", OPEN_PATHS)
def test_paths_are_paths_each_once_and_what_is_guarded_is_not_among_them(name: str) -> None:
    paths = [one.path for one in OPEN_PATHS[name]]
    assert len(set(paths)) == len(paths)
    assert all(path.startswith("/") and " " not in path for path in paths)
    assert GUARDED not in paths
    assert all(one.gives for one in OPEN_PATHS[name])


def test_what_gives_the_use_of_a_model_is_called_harmful() -> None:
    assert {one.path for one in OPEN_PATHS["vllm"] if one.harmful} >= {
        "/invocations",
        "/tokenize",
        "/adapters",
    }
    assert not any(one.harmful for name in ("sim", "llamacpp", "sglang") for one in OPEN_PATHS[name])
