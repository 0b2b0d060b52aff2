"""Seeded histories: crashes, partitions, broken engines and changed minds, and nothing that must not be is ever so."""

import pytest

from tests.sim.history import adapted, make, play
from tests.sim.seeds import SEEDS


def test_a_history_keeps_every_promise_and_settles(sim_seed: int) -> None:
    ran = play(make(sim_seed))
    if ran.violations:
        pytest.fail(ran.story(), pytrace=False)


@pytest.mark.parametrize("seed", range(2, 6))
def test_a_fleet_with_adapters_keeps_every_promise_and_ends_with_those_it_asks_for(seed: int) -> None:
    ran = play(adapted(make(seed)))
    if ran.violations:
        pytest.fail(ran.story(), pytrace=False)


@pytest.mark.parametrize("name", SEEDS)
def test_what_went_wrong_once_does_not_again(name: str) -> None:
    ran = play(make(SEEDS[name]))
    if ran.violations:
        pytest.fail(ran.story(), pytrace=False)
