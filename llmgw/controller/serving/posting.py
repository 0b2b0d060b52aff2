"""Posts JSON in the background: one address, in order, with a bounded queue, tried again where that may help.

Whoever hands something over is never held up, and never hears of a failure: the log does.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from random import Random
from typing import Any

import httpx

from llmgw.clock import Clock
from llmgw.controller.serving.pauses import Pauses
from llmgw.model.problems import LlmgwError
from llmgw.model.struct import Struct

LOG = logging.getLogger("llmgw.serve.notices")
QUEUED = 100
"""Notices that wait for one address; with more the oldest are dropped, since the newest say how it is now."""
TRIES = 6
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds
LONGEST_ASKED = 300.0
"""Seconds of a ``Retry-After`` that are granted."""
TIMEOUT = 10.0  # seconds for each part of a request
WHOLE = 30.0
"""Seconds for one try, however it is drawn out."""
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class Letter(Struct):
    """``make`` is called for each try, so that secrets are read when they are used. Of two that wait with the same ``key``
    only the newer is sent."""

    what: str  # for the log
    make: Callable[[], "Sendable"]
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sendable:
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: Mapping[str, Any]


class Postbox:
    """``run`` sends until it is cancelled; ``put`` may be called before and meanwhile."""

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        rng: Random,
        counted: Callable[[str, str], None],
        redact: Callable[[str], str],
    ) -> None:
        self.name = name
        self._clock = clock
        self._rng = rng
        self._counted = counted
        self._redact = redact
        self._letters: deque[Letter] = deque()
        self._there = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, letter: Letter) -> None:
        """Returns at once."""
        if letter.key:
            self._letters = deque(it for it in self._letters if it.key != letter.key)
        if len(self._letters) >= QUEUED:
            self._counted(self.name, "dropped")
            self._letters.popleft()
        self._letters.append(letter)
        self._idle.clear()
        self._there.set()

    async def run(self) -> None:
        async with httpx.AsyncClient(timeout=TIMEOUT, follow_redirects=False) as client:
            while True:
                await self._there.wait()
                while self._letters:
                    await self._deliver(client, self._letters.popleft())
                self._there.clear()
                self._idle.set()

    async def drained(self, within: float) -> None:
        """Until all is sent or given up, or ``within`` seconds went by."""
        try:
            async with asyncio.timeout(within):
                await self._idle.wait()
        except TimeoutError:
            LOG.warning("%s: what was not sent yet is lost: it does not answer", self.name)

    async def _deliver(self, client: httpx.AsyncClient, letter: Letter) -> None:
        """Never raises but when it is cancelled."""
        pauses = Pauses(FIRST_PAUSE, LONGEST_PAUSE, self._rng)
        problem = ""
        for _ in range(TRIES):
            try:
                problem, wait = await self._try(client, letter)
            except LlmgwError as wrong:  # a secret that can't be read, an address that is none
                problem, wait = str(wrong), None
            except Exception as wrong:  # noqa: BLE001 - whatever it is, it must not end the notices
                problem, wait = f"{type(wrong).__name__}: {wrong}", None
            if not problem:
                self._counted(self.name, "sent")
                return
            if wait is None:
                break
            await asyncio.sleep(max(wait, pauses.next()))
        self._counted(self.name, "failed")
        LOG.warning("%s: %s was not sent: %s", self.name, letter.what, self._redact(problem))

    async def _try(self, client: httpx.AsyncClient, letter: Letter) -> tuple[str, float | None]:
        """What went wrong, and the least number of seconds after which another try may help (None: none may)."""
        made = letter.make()
        try:
            async with (
                asyncio.timeout(WHOLE),
                client.stream("POST", made.url, json=made.body, headers=made.headers) as answer,
            ):  # what it answers is not read: its status says enough
                status, after = answer.status_code, answer.headers.get("retry-after", "")
        except TimeoutError:
            return f"no answer within {WHOLE:g} s", 0.0
        except httpx.InvalidURL as wrong:
            return f"its address is none: {wrong}", None
        except httpx.HTTPError as wrong:
            return str(wrong) or type(wrong).__name__, 0.0
        return self._meant(status, after)

    def _meant(self, status: int, after: str) -> tuple[str, float | None]:
        if status < 300:
            return "", None
        if status in AGAIN:
            return f"answered {status}", _seconds(after, self._clock.now())
        hint = ": is its token right, and may it do this?" if status in (401, 403) else ""
        return f"answered {status}{hint}", None


def _seconds(after: str, now: datetime) -> float:
    """What a ``Retry-After`` asks for, a number or a date."""
    if after.isdecimal():
        return min(float(after[:6]), LONGEST_ASKED)
    try:
        asked = (parsedate_to_datetime(after) - now).total_seconds()
    except (TypeError, ValueError):
        return 0.0
    return min(max(asked, 0.0), LONGEST_ASKED)
