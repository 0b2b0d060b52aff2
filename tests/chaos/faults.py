"""What is done to the room, and in which order: drawn from a seed, all of it before anything happens, so that it can be drawn again."""

import random
from enum import Enum
from typing import Final

from llmgw.model.struct import Struct
from tests.chaos.room import HOSTS


class Kind(Enum):
    """The value is how often it comes in a deck."""

    KILL_AGENT = ("kill the agent", 3)
    KILL_SHIM = ("kill a shim", 2)
    KILL_ENGINE = ("kill an engine", 3)
    KILL_SIDECAR = ("kill the sidecar", 1)
    KILL_CONTROLLER = ("kill the controller", 2)
    POWER_CUT = ("cut the power", 2)
    CUT_LINK = ("pull the cable", 2)
    FILL_DISK = ("fill the disk", 2)
    FREEZE_AGENT = ("stop the agent with SIGSTOP", 2)
    FREEZE_ENGINE = ("stop an engine with SIGSTOP", 1)
    FREEZE_HOST = ("stop all of the host with SIGSTOP", 1)
    CORRUPT = ("kill the agent and break a file of its state", 3)
    UPGRADE = ("upgrade all agents", 2)

    @property
    def told(self) -> str:
        return self.value[0]

    @property
    def times(self) -> int:
        return self.value[1]


DECK: Final = tuple(kind for kind in Kind for _ in range(kind.times))
"""Cards are dealt from a shuffled deck, and then from the next one: no kind is ever forgotten for long."""


class Fault(Struct):
    """``pick`` and ``how`` in [0, 1) choose among what is there when it happens. It is undone after ``hold`` seconds and
    ``lasts`` further faults, where it can be; the next fault comes after ``pause`` seconds."""

    kind: Kind
    host: int
    pick: float
    how: float
    hold: float
    lasts: int
    pause: float


def drawn(seed: int, count: int) -> tuple[Fault, ...]:
    """The same seed gives the same faults; a longer draw begins like a shorter one."""
    chance = random.Random(seed)
    kinds: list[Kind] = []
    faults = []
    for _ in range(count):
        if not kinds:
            kinds = list(DECK)
            chance.shuffle(kinds)
        faults.append(_drawn(kinds.pop(), chance))
    return tuple(faults)


def _drawn(kind: Kind, chance: random.Random) -> Fault:
    return Fault(
        kind=kind,
        host=chance.randrange(HOSTS),
        pick=chance.random(),
        how=chance.random(),
        hold=chance.uniform(0.2, 2.0),
        lasts=chance.choice((0, 0, 1, 1, 2)),
        pause=chance.choice((0.0, 0.3, 1.0, 2.5)),
    )
