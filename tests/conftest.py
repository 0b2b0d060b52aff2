"""Options of the whole test run, which tests it leaves out, and how it spreads the others."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings

from tests.units import UnitScheduling, longest_first

# The same examples in every run, however busy the machine: a change that breaks something fails its own run and no other's.
settings.register_profile("llmgw", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile("llmgw")

LEFT_OUT = pytest.StashKey[Counter[str]]()
SENT = "llmgw_left_out"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--sim-seeds", type=int, default=200, help="how many seeded histories to play")
    group.addoption("--sim-start", type=int, default=0, help="the first seed")
    group.addoption("--sim-hours", type=int, default=2, help="how many hours `serve` is simulated for")
    parser.getgroup("llmgw").addoption("--long", action="store_true", help="run the tests marked long too")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "sim_seed" in metafunc.fixturenames:
        start: int = metafunc.config.getoption("--sim-start")
        count: int = metafunc.config.getoption("--sim-seeds")
        metafunc.parametrize("sim_seed", range(start, start + count))


# ---- long tests: left out and told, unless they are asked for ------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        _leave_out(config, items)
    if hasattr(config, "workerinput"):  # one of several workers
        items[:] = longest_first(items, root=config.rootpath)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> UnitScheduling:
    return UnitScheduling(config, log)


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if item.get_closest_marker("long")]
    items[:] = [item for item in items if item not in left_out]
    config.stash[LEFT_OUT].update(_reason(item) for item in left_out)
    config.hook.pytest_deselected(items=left_out)


def _reason(item: pytest.Item) -> str:
    marker = item.get_closest_marker("long")
    assert marker is not None
    if len(marker.args) != 1:
        raise pytest.UsageError(f"{item.nodeid}: say why it is not for every run: pytest.mark.long('…')")
    return str(marker.args[0])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells the process that started it, which collects nothing itself."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        seen: Counter[str] = session.config.stash[LEFT_OUT]
        output[SENT] = dict(seen)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every worker has collected the same."""
    seen: Counter[str] = node.config.stash[LEFT_OUT]
    for reason, count in getattr(node, "workeroutput", {}).get(SENT, {}).items():
        seen[reason] = max(seen[reason], count)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for reason, count in sorted(config.stash[LEFT_OUT].items()):
        tests = "1 test" if count == 1 else f"{count} tests"
        terminalreporter.write_line(f"NOT RUN: {tests}: {reason}; `make test-all` runs them")
