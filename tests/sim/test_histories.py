"""Seeded histories: crashes, partitions, broken engines and changed minds, and nothing that must not be is ever so."""

import pytest

from tests.sim.history import History, play
from tests.sim.kept import load
from tests.sim.making import adapted, make
from tests.sim.seeds import DRAWS, FOUND


def plays_well(history: History, *, again: str, draw: int = 0) -> None:
    ran = play(history, draw=draw)
    if ran.violations:
        pytest.fail(f"again: {again}\n\n{ran.story()}", pytrace=False)


def test_a_history_keeps_every_promise_and_settles(sim_seed: int) -> None:
    plays_well(make(sim_seed), again=f"python -m tests.sim.main --replay {sim_seed}")


@pytest.mark.parametrize("seed", range(2, 6))
def test_a_fleet_with_adapters_keeps_every_promise_and_ends_with_those_it_asks_for(seed: int) -> None:
    plays_well(adapted(make(seed)), again="this test")


@pytest.mark.parametrize("draw", range(DRAWS))
@pytest.mark.parametrize("name", FOUND)
def test_what_went_wrong_once_does_not_again(name: str, draw: int) -> None:
    plays_well(load(name), draw=draw, again="this test")
