"""Tells the service manager that a daemon (the agent, ``llmgw serve``) is up, goes on, and ends, where one wants to know
(sd_notify(3)). One datagram each; what can't be told is no error, for the daemon works without."""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)

SOCKET = "NOTIFY_SOCKET"
EVERY = "WATCHDOG_USEC"
WHOM = "WATCHDOG_PID"
MICROSECONDS = 1_000_000


class ServiceManager:
    """``env`` is the daemon's own: the manager puts its address and its patience there."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._address = env.get(SOCKET, "")
        patience = env.get(EVERY, "")
        mine = env.get(WHOM, str(os.getpid())) == str(os.getpid())
        self._patience = int(patience) / MICROSECONDS if mine and patience.isdigit() else 0.0
        self._beating: asyncio.Task[None] | None = None

    def ready(self) -> None:
        """From now on also at regular intervals, by the loop that does the work: one that hangs is told by its silence."""
        self._tell("READY=1")
        if self._patience and self._address:
            self._beating = asyncio.ensure_future(self._beat())

    def stopping(self) -> None:
        self._tell("STOPPING=1")
        if self._beating is not None:
            self._beating.cancel()

    async def _beat(self) -> None:
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._patience / 3)

    def _tell(self, text: str) -> None:
        if not self._address.startswith(("/", "@")):
            return
        # An @ stands for the NUL in front of an abstract name.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.setblocking(False)
                manager.sendto(text.encode(), address)
        except OSError as wrong:
            log.debug("telling the service manager: %s", wrong.strerror)
