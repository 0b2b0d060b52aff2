"""Options of the whole test run."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--sim-seeds", type=int, default=50, help="how many seeded histories to play")
    group.addoption("--sim-start", type=int, default=0, help="the first seed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sim_seed" in metafunc.fixturenames:
        start: int = metafunc.config.getoption("--sim-start")
        count: int = metafunc.config.getoption("--sim-seeds")
        metafunc.parametrize("sim_seed", range(start, start + count))
