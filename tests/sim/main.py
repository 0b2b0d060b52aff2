"""``make sim``: play many histories and tell how far it is; or one again, cut down to what it takes, and keep it.

``python -m tests.sim.main --seeds 2000 --start 0`` plays many; ``… --replay 17`` one; ``… --replay 17 --shrink --keep "what it is"``
leaves out every event that the failure does not need and writes the rest to ``found/``.
"""

import argparse
import ctypes
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from llmgw.model.struct import replace
from tests.sim.history import History, Ran, play
from tests.sim.kept import keep
from tests.sim.making import make

PR_SET_PDEATHSIG = 1
TOLD_EVERY = 10.0
"""Seconds between two lines of progress."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.main", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many histories to play")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--replay", type=int, help="play this seed only, and tell all of it")
    parser.add_argument("--shrink", action="store_true", help="leave out what the failure does not need")
    parser.add_argument("--keep", metavar="NAME", help="write what is left to found/")
    given = parser.parse_args()
    if given.replay is not None:
        return replayed(given.replay, cut_down=given.shrink, name=given.keep)
    return many(range(given.start, given.start + given.seeds), processes=given.processes)


# ---- many --------------------------------------------------------------------------------------------


def many(seeds: range, *, processes: int) -> int:
    """1 when any fails. All are played: how many fail says more than the first."""
    began = told = time.monotonic()
    failed: list[int] = []
    with ProcessPoolExecutor(processes, initializer=_dies_with_its_parent) as pool:
        for done, (seed, violations) in enumerate(pool.map(_played, seeds, chunksize=5), start=1):
            if violations:
                failed.append(seed)
                _say(f"seed {seed} FAILS: {violations[0].strip()}\n  {_again(seed)}")
            if time.monotonic() - told >= TOLD_EVERY or done == len(seeds):
                told = time.monotonic()
                pace = done / (told - began)
                left = (len(seeds) - done) / pace
                _say(f"{done} of {len(seeds)}, {len(failed)} failed, {pace:.1f} a second, {left:.0f} s left")
    for seed in failed:
        _say(f"failed: {_again(seed)}")
    return int(bool(failed))


def _dies_with_its_parent() -> None:
    """Otherwise a worker of a run that was killed waits for ever."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _played(seed: int) -> tuple[int, tuple[str, ...]]:
    return seed, play(make(seed)).violations


def _again(seed: int) -> str:
    return f"python -m tests.sim.main --replay {seed}"


# ---- one ---------------------------------------------------------------------------------------------


def replayed(seed: int, *, cut_down: bool, name: str | None) -> int:
    ran = play(make(seed))
    if ran.violations and cut_down:
        ran = shrunk(ran)
    if name is not None:
        _say(f"kept as {keep(name, ran.history)}: say in seeds.py what it was")
    _say(ran.story(4000) if ran.violations else f"seed {seed}: well, {ran.calls} calls")
    return int(bool(ran.violations))


def shrunk(ran: Ran) -> Ran:
    """Fewer events, fewer models and nodes that fail in the same way: a history that can be read."""
    tried = _smaller(ran.history)
    while (smaller := next(tried, None)) is not None:
        again = play(smaller)
        if _same(again, ran):
            _say(f"{len(smaller.events)} events, {len(smaller.start.models)} models")
            ran, tried = again, _smaller(smaller)
    return ran


def _smaller(history: History) -> Iterator[History]:
    for index in reversed(range(len(history.events))):
        yield replace(history, events=history.events[:index] + history.events[index + 1 :])
    for model in history.start.models:
        rest = tuple(it for it in history.start.models if it != model)
        yield replace(history, start=replace(history.start, models=rest))


def _same(one: Ran, other: Ran) -> bool:
    """The same promise is broken: the words are, without the names and numbers in them."""
    return bool(one.violations) and _kind(one) == _kind(other)


def _kind(ran: Ran) -> tuple[str, ...]:
    words = ran.violations[0].split()
    return tuple(word for word in words if word.isalpha())


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
