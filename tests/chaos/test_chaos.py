"""Real faults on real processes: a short run of it in every test run. ``make chaos`` does the long ones."""

from pathlib import Path

import pytest

from tests.chaos.faults import DECK, Kind, drawn
from tests.chaos.main import chaos, report
from tests.chaos.story import Story
from tests.rig.rig import require_rig

SEED, FAULTS = 1392, 10
"""Ten kinds of faults, each once."""


def test_a_seed_draws_the_same_faults_again_and_a_longer_draw_begins_the_same() -> None:
    assert drawn(7, 60) == drawn(7, 60)
    assert drawn(7, 60)[:20] == drawn(7, 20)
    assert drawn(7, 20) != drawn(8, 20)
    assert {fault.kind for fault in drawn(7, len(DECK))} == set(Kind)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_is_killed_cut_filled_or_broken_nothing_is_held_twice_lost_or_left_over(
    tmp_path: Path,
) -> None:
    require_rig("that a fleet holds through random faults of processes, machines, disks and the network")
    story = Story()
    outcome = chaos(tmp_path, seed=SEED, faults=FAULTS, story=story)
    assert not outcome.broken, report(SEED, outcome, story)
