"""The controller, which applies again and again and knows of nothing."""

import subprocess
import threading
import time
from collections import Counter
from typing import Final

from tests.chaos.room import Room

WITHIN: Final = 180.0
PAUSE: Final = 0.3
EXPECTED: Final = frozenset(range(7))
"""Done, error (nothing could be done: a host may be dead), plan again for the rest, stale, another holder, done in part, blocked."""
WORDS: Final = ("apply", "--yes", "--no-wait")


class Applying:
    """``codes`` counts how the passes ended; ``broken`` holds what a pass may never say."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._over = threading.Event()
        self._running: subprocess.Popen[str] | None = None
        self._killed: set[int] = set()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="applying")
        self.codes: Counter[int] = Counter()
        self.broken: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """The pass that is under way ends."""
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def kill(self) -> bool:
        """False: none was at work."""
        with self._lock:
            if self._running is None or self._running.poll() is not None:
                return False
            self._killed.add(self._running.pid)
            self._running.kill()
            return True

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self.one_pass()
                self._over.wait(PAUSE)
        except BaseException as wrong:  # noqa: BLE001 - told where it is waited for
            self._failure = wrong

    def one_pass(self) -> None:
        with self._lock:
            running = self._running = self._room.road.start(*WORDS)
        began = time.monotonic()
        try:
            out, err = running.communicate(timeout=WITHIN)
        except subprocess.TimeoutExpired:
            running.kill()
            out, err = running.communicate()
            self._break(f"an apply took over {WITHIN:.0f} s", out + err)
            return
        with self._lock:
            self._running = None
            killed = running.pid in self._killed
        self.codes[running.returncode] += 1
        took = time.monotonic() - began
        said = " | ".join(line.strip() for line in err.splitlines() if line.startswith("Error"))[:600]
        self._room.story.tell(f"apply -> {running.returncode} in {took:.1f} s{': ' if said else ''}{said}")
        if not killed and (
            running.returncode not in EXPECTED or "Traceback" in err or "itself failed" in err
        ):
            self._break(f"an apply ended with {running.returncode}", out + err)

    def _break(self, what: str, text: str) -> None:
        self._room.story.tell(f"BROKEN: {what}:\n{text[-3000:]}")
        self.broken.append(f"{what}: {text[-1500:]}")
