"""How a run is spread over workers, which take units from one queue: what is one unit, and which units go first.

The tests of a module that share something, mostly machines, are one unit: each worker that got one of them would build it again.
What may take longest goes first, so that no worker is left alone with it in the end; what goes last are the many that take little.
"""

from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


@cache
def _shares(file: Path) -> bool:
    return 'scope="module"' in file.read_text()


def unit_of(nodeid: str, *, root: Path) -> str:
    """Its module, where tests share a fixture of that, else the test itself. ``root`` is the folder that ids are relative to."""
    module = nodeid.partition("::")[0]
    return module if _shares(root / module) else nodeid


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist ships no types
    """Hands units out in the order of their first tests."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._unit_of: Callable[[str], str] = partial(unit_of, root=config.rootpath)
        config.option.loadscopereorder = False  # by how many tests they have, it would be

    def _split_scope(self, nodeid: str) -> str:
        return self._unit_of(nodeid)


def longest_first(items: Iterable[pytest.Item], *, root: Path) -> list[pytest.Item]:
    """Within a unit the order stays."""
    units: dict[str, list[pytest.Item]] = {}
    for item in items:
        units.setdefault(unit_of(item.nodeid, root=root), []).append(item)
    in_order = sorted(units.values(), key=lambda unit: max(map(_patience, unit)), reverse=True)
    return [item for unit in in_order for item in unit]


def _patience(item: pytest.Item) -> tuple[float, bool]:
    """A test that may take long says so: by a timeout that is longer than usual, or by being marked slow."""
    timeout = item.get_closest_marker("timeout")
    seconds = timeout.args[0] if timeout is not None else item.config.getini("timeout")
    return float(seconds), item.get_closest_marker("slow") is not None
