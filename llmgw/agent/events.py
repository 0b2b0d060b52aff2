"""Passes on what happens on the node to those who watch: bounded for each of them, so that a slow reader costs the
agent nothing and is told to start anew."""

import asyncio
from collections.abc import AsyncGenerator

from llmgw.agent.journal import Journal
from llmgw.agent.seams import JournalEvent
from llmgw.model.report import JobReport, JournalEntry, ShardReport
from llmgw.wire.messages import WatchEvent

QUEUE = 256
"""Events a reader may be behind: all states of a node's shards several times over."""


class _Reader:
    def __init__(self) -> None:
        self.queue: asyncio.Queue[WatchEvent] = asyncio.Queue(QUEUE)
        self.behind = False


class Events:
    """One for the whole agent. Shards and jobs tell it; the journal numbers what is worth keeping."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._readers: set[_Reader] = set()
        journal.listen(self._entry)

    def from_shards(self, event: ShardReport | JournalEvent) -> None:
        if isinstance(event, JournalEvent):
            self.journal.append(event.kind, event.subject, event.text, event.fields)
        else:
            self._publish(WatchEvent(shard=event))

    def told(self, kind: str, subject: str, text: str) -> None:
        """Something of the node as a whole."""
        self.journal.append(kind, subject, text)

    def from_jobs(self, report: JobReport) -> None:
        self._publish(WatchEvent(job=report))

    def _entry(self, entry: JournalEntry) -> None:
        self._publish(WatchEvent(entry=entry))

    def _publish(self, event: WatchEvent) -> None:
        for reader in self._readers:
            if not reader.behind:
                try:
                    reader.queue.put_nowait(event)
                except asyncio.QueueFull:
                    reader.behind = True

    @property
    def readers(self) -> int:
        return len(self._readers)

    async def watch(self) -> AsyncGenerator[WatchEvent, None]:
        """Everything from now on; first an empty event, which says that nothing is missed any more. A reader that is too slow
        gets what was queued, then ``resync``, and the end."""
        reader = _Reader()
        self._readers.add(reader)
        try:
            yield WatchEvent()
            while not (reader.behind and reader.queue.empty()):
                yield await reader.queue.get()
            yield WatchEvent(resync=True)
        finally:
            self._readers.discard(reader)
