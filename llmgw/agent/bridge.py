"""``llmgw-agent bridge``: standard input and output to the agent's socket and back, for a channel that ends on this
machine, such as SSH's. Its first line tells where a login shell's noise ends. It is started with every connection, so it imports
nothing that takes time (a test counts)."""

import os
import selectors
import socket
import sys
from pathlib import Path

from llmgw.agent.dialing import dial
from llmgw.wire.doorway import BRIDGE_MAGIC

NOBODY = 69
"""Exit code when no agent listens: EX_UNAVAILABLE of sysexits.h, which no shell uses by itself."""
CHUNK = 64 * 1024


class _Way:
    """One direction: never more than one chunk under way, so that a slow side holds the fast one."""

    def __init__(self, source: int, sink: int, first: bytes = b"") -> None:
        self.source = source
        self.sink = sink
        self.held = first
        self.ended = False

    def move(self, readable: set[int], writable: set[int]) -> None:
        try:
            if not self.held and not self.ended and self.source in readable:
                self.held = os.read(self.source, CHUNK)
                self.ended = not self.held
            if self.held and self.sink in writable:
                self.held = self.held[os.write(self.sink, self.held) :]
        except BlockingIOError:
            return
        except OSError:
            self.held, self.ended = b"", True


def bridge(work: Path, source: int = 0, sink: int = 1) -> int:
    """Until either side ends."""
    try:
        connection = dial(work)
    except OSError as wrong:
        sys.stderr.write(f"llmgw-agent bridge: no agent listens in {work}: {wrong.strerror}\n")
        return NOBODY
    with connection:
        _pump(connection, source, sink)
    return 0


def _pump(connection: socket.socket, source: int, sink: int) -> None:
    agent = connection.fileno()
    for descriptor in (source, sink):
        os.set_blocking(descriptor, False)
    there, back = _Way(source, agent), _Way(agent, sink, BRIDGE_MAGIC)
    while not (back.ended and not back.held):
        if there.ended and not there.held:
            return  # the controller is gone: nobody reads what the agent still says
        readable, writable = _wait(there, back)
        there.move(readable, writable)
        back.move(readable, writable)


def _wait(*ways: _Way) -> tuple[set[int], set[int]]:
    wanted: dict[int, int] = {}
    for way in ways:
        if way.held:
            wanted[way.sink] = wanted.get(way.sink, 0) | selectors.EVENT_WRITE
        elif not way.ended:
            wanted[way.source] = wanted.get(way.source, 0) | selectors.EVENT_READ
    with selectors.PollSelector() as selector:
        for descriptor, events in wanted.items():
            selector.register(descriptor, events)
        ready = [(key.fd, events) for key, events in selector.select()]
    return (
        {descriptor for descriptor, events in ready if events & selectors.EVENT_READ},
        {descriptor for descriptor, events in ready if events & selectors.EVENT_WRITE},
    )
