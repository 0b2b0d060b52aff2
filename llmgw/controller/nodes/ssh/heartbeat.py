"""Notices that a machine has gone without a word: cut off, powered off, or frozen under a kernel that still answers.

Asks every 2 s and waits 3 s, so a dead peer is noticed within 6. TCP's own keepalive would not see a frozen sshd.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import paramiko

from llmgw.controller.nodes.ssh.blocking import tell

EVERY: Final = 2.0
LIMIT: Final = 3.0
LOOK: Final = 0.5
REQUEST: Final = "keepalive@openssh.com"


class Heartbeat:
    """One thread asks; the event loop looks whether it is still waiting. ``dead`` is called once, on the loop, with why."""

    def __init__(
        self,
        transport: paramiko.Transport,
        dead: Callable[[str], None],
        *,
        every: float = EVERY,
        limit: float = LIMIT,
    ) -> None:
        self._transport = transport
        self._dead = dead
        self._every = every
        self._limit = limit
        self._stopped = threading.Event()
        self._asked: float | None = None
        self._loop = asyncio.get_running_loop()
        self._late = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        threading.Thread(target=self._ask, name="llmgw-ssh-heartbeat", daemon=True).start()
        self._timer = self._loop.call_later(LOOK, self._look)

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self) -> None:
        while not self._stopped.wait(self._every):
            self._asked = time.monotonic()
            with suppress(paramiko.SSHException, OSError, EOFError):
                self._transport.global_request(REQUEST, wait=True)
            self._asked = None
            if not self._transport.is_active():
                tell(self._loop, self._tell, "the other side closed the connection")
                return

    def _look(self) -> None:
        """Late twice in a row, because a loop that was busy itself must not take the peer for dead: the asking thread gets
        its turn between two looks."""
        asked = self._asked
        if not self._transport.is_active():
            self._tell("the other side closed the connection")
            return
        late = asked is not None and time.monotonic() - asked > self._limit
        if late and self._late:
            self._tell(f"no answer for {self._limit:g} s")
            return
        self._late = late
        self._timer = self._loop.call_later(LOOK, self._look)

    def _tell(self, why: str) -> None:
        if not self._stopped.is_set():
            self.stop()
            self._dead(why)
