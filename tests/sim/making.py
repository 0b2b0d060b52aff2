"""Histories out of a number: what people and fate might do next, drawn so that things meet that seldom do."""

from collections.abc import Sequence
from random import Random

from llmgw.model.struct import replace
from tests.sim.commits import FleetWish, edited, first_wish, with_adapters, with_gangs
from tests.sim.deeds import APPLIES, FATE, HANDS, Event
from tests.sim.history import History


def make(seed: int) -> History:
    """Scenes: somebody changes their mind, something breaks, somebody applies, something breaks meanwhile."""
    rng = Random(seed)
    start = wish = first_wish(rng)
    events = [Event(kind="settle a while", seconds=rng.choice((0.1, 40.0, 120.0, 120.0)))]
    for _ in range(rng.randint(4, 8)):
        if rng.random() < 0.15:
            scene, wish = _late_orders(rng, wish)
            events += scene
            continue
        if rng.random() < 0.8:
            text, wish = edited(rng, wish)
            events.append(Event(kind="commit", text=text, wish=wish, gap=rng.choice((0.0, 0.0, 3.0))))
        if rng.random() < 0.5:
            events.append(event_of(rng, rng.choice(FATE), gaps=(0.0, 0.0, 0.5, 3.0)))
        events.append(event_of(rng, rng.choice(APPLIES), gaps=(0.0, 0.5, 3.0, 10.0)))
        if rng.random() < 0.5:
            events.append(event_of(rng, rng.choice(FATE), gaps=(0.0, 0.5, 3.0, 40.0)))
        if rng.random() < 0.2:
            events.append(event_of(rng, rng.choice(HANDS), gaps=(0.0, 3.0, 40.0)))
        if rng.random() < 0.5:
            kind = rng.choice(("settle a while", "apply", "apply twice"))
            events.append(event_of(rng, kind, gaps=(0.0, 10.0, 40.0, 130.0)))
    history = History(seed=seed, start=start, events=tuple(events), allow_prune=rng.random() < 0.7)
    return _with_gangs(history) if seed % 3 == 1 else history


def _late_orders(rng: Random, wish: FleetWish) -> tuple[list[Event], FleetWish]:
    """An apply dies while its orders are under way, and somebody changes their mind: the next one commands before they come."""
    text, wish = edited(rng, wish)
    line = Event(kind="orders come late", node=rng.randint(1, 4), seconds=2.0, calls=rng.randint(1, 90))
    dies = Event(kind="apply", calls=rng.randint(6, 60), seconds=2.0, at_work=True)
    again, other = edited(rng, wish)
    scene = [Event(kind="commit", text=text, wish=wish), line, dies]
    scene += [Event(kind="commit", text=again, wish=other), Event(kind="apply", gap=rng.choice((0.0, 40.0)))]
    return scene, other


def _with_gangs(history: History) -> History:
    events = (
        replace(event, wish=with_gangs(event.wish)) if event.wish is not None else event
        for event in history.events
    )
    return replace(history, start=with_gangs(history.start), events=tuple(events))


def adapted(history: History) -> History:
    """The same history of a fleet whose models have LoRA adapters, others at each commit."""
    events, turn = [], 1
    for event in history.events:
        if event.wish is not None:
            turn += 1
            events.append(replace(event, wish=with_adapters(event.wish, turn)))
        else:
            events.append(event)
    return replace(history, start=with_adapters(history.start, 1), events=tuple(events))


def event_of(rng: Random, kind: str, *, gaps: Sequence[float]) -> Event:
    seconds = {
        "apply": rng.choice((0.0, 0.0, 0.2, 3.0)),  # 0: until it has ended
        "apply crashes": 0.0,
        "apply twice": rng.choice((0.0, 0.1, 1.0, 5.0)),
        "apply waits": rng.choice((20.0, 200.0, 600.0)),
        "apply sleeps": rng.choice((5.0, 118.0, 125.0, 150.0)),
        "apply sleeps alone": 0.0,
        "settle a while": rng.choice((45.0, 120.0)),
        "store trouble": rng.choice((2.0, 30.0, 200.0)),
        "kill agent": rng.choice((0.5, 5.0, 60.0)),
        "restart agent": rng.choice((0.5, 5.0)),
        "older agent": rng.choice((0.5, 5.0)),
        "rotate secret": rng.choice((0.0, 60.0, 400.0)),
        "reboot": rng.choice((20.0, 90.0)),
        "partition": rng.choice((5.0, 60.0, 400.0)),
        "disk full": rng.choice((10.0, 60.0, 300.0)),
        "gpu sick": rng.choice((20.0, 200.0)),
        "stranger": rng.choice((20.0, 200.0)),
        "clock jumps": rng.choice((3.0, 60.0, 300.0)),
        "node clock jumps": rng.choice((3.0, 300.0, 90000.0)),
        "controller clock jumps": rng.choice((3.0, 60.0, 300.0)),
        "engine hangs": rng.choice((20.0, 200.0)),
        "wipe": rng.choice((20.0, 400.0)),
        "one way": rng.choice((5.0, 60.0, 400.0)),
        "said twice": rng.choice((20.0, 200.0)),
        "slow line": rng.choice((20.0, 120.0)),
        "orders come late": 2.0,
    }.get(kind, 0.0)
    crashes = kind in ("apply crashes", "apply sleeps", "apply sleeps alone", "apply waits") or (
        kind == "apply twice" and rng.random() < 0.4
    )
    calls = rng.choice((rng.randint(1, 12), rng.randint(1, 90)))
    return Event(
        kind="apply" if kind == "apply crashes" else kind,
        node=rng.randint(1, 4),
        seconds=seconds,
        calls=calls if kind in (*FATE, *HANDS) or crashes else 0,
        at_work=rng.random() < 0.7,
        gap=rng.choice(gaps),
    )
