"""Histories as files, word for word: what once found something is played for ever, however histories are made by then.

A file holds the fleet, every event with its numbers, and the seed of what the events leave open: how long calls take and how
engines behave. Of that the product's own calls decide what it leads to, and they change. So each is played under several
draws: what was found must be hard to miss, not hit by one lucky interleaving.

Fields that have their usual value are left out, so that a new kind of event needs no new files.
"""

import json
from pathlib import Path
from typing import Any

from llmgw.model.struct import Struct, default_of, fields
from llmgw.wire import codec
from tests.sim.history import History

FOLDER = Path(__file__).parent / "found"


def load(name: str) -> History:
    """The history that is kept under a name; see seeds.FOUND."""
    return codec.loads(History, (FOLDER / f"{_file(name)}.json").read_bytes(), strict=True)


def keep(name: str, history: History) -> Path:
    """Write it down; its story belongs into seeds.FOUND."""
    path = FOLDER / f"{_file(name)}.json"
    path.write_text(json.dumps(_told(history), indent=1) + "\n")
    return path


def _file(name: str) -> str:
    return "-".join(name.replace(",", "").split())


def _told(value: Any) -> Any:
    if isinstance(value, Struct):
        pairs = ((field, getattr(value, field.name)) for field in fields(type(value)))
        return {
            field.encode_name: _told(held)
            for field, held in pairs
            if field.required or held != default_of(field)
        }
    if isinstance(value, list | tuple):
        return [_told(item) for item in value]
    return value
