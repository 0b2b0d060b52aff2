"""``make chaos FAULTS=200 SEED=7``: real faults on real processes, and what must hold whatever happens."""

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from llmgw.model.struct import Struct
from tests.chaos import quiet
from tests.chaos.applying import Applying
from tests.chaos.faults import drawn
from tests.chaos.room import Room, opened
from tests.chaos.story import Story
from tests.chaos.striking import Striker
from tests.rig import namespaces


class Outcome(Struct):
    """``broken`` is empty when everything held. ``told`` is one line for people."""

    broken: tuple[str, ...]
    told: str


def chaos(folder: Path, *, seed: int, faults: int, story: Story) -> Outcome:
    """Ends at the first thing that has broken, so that the end of the story is about it."""
    with opened(folder, story=story) as room:
        applying = Applying(room)
        done = _strike(room, applying, seed=seed, faults=faults)
        broken = [*room.watcher.broken, *applying.broken]
        if not broken:
            story.tell(f"{done} faults: quiet from now on")
            broken += quiet.settled(room, applying) or quiet.gone(room, applying)
            broken += [*room.watcher.broken, *applying.broken, *quiet.tracebacks(room)]
        codes = ", ".join(f"{count} with {code}" for code, count in sorted(applying.codes.items()))
        told = f"{done} faults of seed {seed}, {room.watcher.looks} looks (the longest {room.watcher.longest:.2f} s), passes: {codes}"
    return Outcome(broken=tuple(broken), told=told)


def _strike(room: Room, applying: Applying, *, seed: int, faults: int) -> int:
    striker, done = Striker(room, applying), 0
    applying.start()
    try:
        for done, fault in enumerate(drawn(seed, faults), 1):
            room.story.tell(f"--- fault {done} of seed {seed}: {fault.kind.told}")
            striker.strike(fault)
            if room.watcher.broken or applying.broken:
                break
    finally:
        striker.undo_all()
        applying.close()
    return done


def report(seed: int, outcome: Outcome, story: Story) -> str:
    """Everything that a person needs who has not looked on."""
    lines = [story.text(), "", f"BROKEN, seed {seed}:", *(f"- {text}" for text in outcome.broken)]
    return "\n".join([*lines, "", outcome.told])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.main", description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    given = parser.parse_args()
    if why := namespaces.missing():
        sys.stderr.write(f"chaos: {why}\n")
        return 1
    story = Story(aloud=True)
    story.tell(f"chaos: {given.faults} faults, seed {given.seed}")
    with tempfile.TemporaryDirectory(prefix="llmgw-chaos-") as folder:
        outcome = chaos(Path(folder), seed=given.seed, faults=given.faults, story=story)
    for text in outcome.broken:
        story.tell(f"BROKEN, seed {given.seed}: {text}")
    story.tell(f"{'BROKEN' if outcome.broken else 'held'}: {outcome.told}")
    return 1 if outcome.broken else 0


if __name__ == "__main__":
    sys.exit(main())
