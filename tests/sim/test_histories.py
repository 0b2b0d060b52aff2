"""Seeded histories: crashes, partitions, broken engines and changed minds, and nothing that must not be is ever so."""

from pathlib import Path

import pytest

from tests.sim.gitstore import git_stores
from tests.sim.history import History, play
from tests.sim.kept import load
from tests.sim.making import adapted, make
from tests.sim.seeds import DRAWS, FOUND

GIT_SEEDS = 20
"""Histories that are played in real Git repositories as well: each takes seconds."""


def plays_well(history: History, *, again: str, draw: int = 0) -> None:
    ran = play(history, draw=draw)
    if ran.violations:
        pytest.fail(f"again: {again}\n\n{ran.story()}", pytrace=False)


def test_a_history_keeps_every_promise_and_settles(sim_seed: int) -> None:
    plays_well(make(sim_seed), again=f"python -m tests.sim.main --replay {sim_seed}")


@pytest.mark.parametrize("seed", range(2, 6))
def test_a_fleet_with_adapters_keeps_every_promise_and_ends_with_those_it_asks_for(seed: int) -> None:
    plays_well(adapted(make(seed)), again="this test")


@pytest.mark.parametrize("seed", range(GIT_SEEDS))
def test_a_history_in_git_goes_the_way_it_goes_in_memory_and_is_all_there(seed: int, tmp_path: Path) -> None:
    with git_stores(tmp_path) as stores:
        ran = play(make(seed), opened=stores)
        commits = stores.versions()
    if ran.violations:
        pytest.fail(ran.story(), pytrace=False)
    assert commits == tuple(reversed(ran.versions))
    assert ran.calls == play(make(seed)).calls


@pytest.mark.parametrize("draw", range(DRAWS))
@pytest.mark.parametrize("name", FOUND)
def test_what_went_wrong_once_does_not_again(name: str, draw: int) -> None:
    plays_well(load(name), draw=draw, again="this test")
