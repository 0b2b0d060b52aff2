"""Looks at weights that lie behind an address or on a Hugging Face hub. Nothing is kept here but which questions failed lately, so
that a hub that is down is not asked each pass.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from llmgw.controller.secrets import resolve
from llmgw.controller.weights.cache import Cache
from llmgw.model.manifest import Source
from llmgw.model.problems import LlmgwError
from llmgw.model.struct import Struct
from llmgw.model.weights import Inspection

if TYPE_CHECKING:
    import httpx

HUB = "https://huggingface.co"
WITHIN = 60.0
"""Seconds for one model: a few small answers."""
AGAIN_AFTER = 300.0
"""Seconds until a question that failed is asked again."""
PINNED = re.compile(r"[0-9a-f]{40}")


class Wanted(Struct):
    """Weights that some model asks for. ``hub`` is where Hugging Face's repositories are."""

    digest: str
    source: Source
    hub: str = HUB


class RemoteWeights:
    """One fleet's. ``environment`` is where tokens come from, ``learn`` is told them, so that they never show."""

    def __init__(
        self,
        cache: Cache,
        *,
        environment: Mapping[str, str],
        learn: Callable[[str], object] = str,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        self._learn = learn
        self._cache = cache
        self._environment = environment
        self._transport = transport
        self._failed: dict[str, tuple[float, Inspection]] = {}

    async def look(self, wanted: Wanted) -> Inspection | None:
        """None: such a source can't be looked at from here. What is wrong stands in ``problem``."""
        source = wanted.source
        if source.url is None and source.hugging_face is None:
            return None
        now = asyncio.get_running_loop().time()
        if (known := self._cache.read(wanted.digest)) is not None:
            return known
        failed = self._failed.get(wanted.digest)
        if failed is not None and now - failed[0] < AGAIN_AFTER:
            return failed[1]
        seen = await self._ask(wanted)
        if seen.problem:
            self._failed[wanted.digest] = (now, seen)
        elif source.url is not None or PINNED.fullmatch(source.revision or ""):
            self._cache.write(wanted.digest, seen)  # what can't change any more
        return seen

    async def _ask(self, wanted: Wanted) -> Inspection:
        from llmgw.controller.weights import headers  # noqa: PLC0415 - loads httpx, and most plans ask nobody
        from llmgw.controller.weights.ranges import NotReadError  # noqa: PLC0415 - same

        source = wanted.source
        place = headers.place(source)
        try:
            async with asyncio.timeout(WITHIN):
                token = self._token(source)
                return await headers.read(source, hub=wanted.hub, token=token, transport=self._transport)
        except TimeoutError:
            problem = f"looking at {place}: no answer within {WITHIN:g} s: see that this machine reaches it"
        except (NotReadError, LlmgwError) as wrong:
            problem = str(wrong)
        return Inspection(path=place, problem=problem)

    def _token(self, source: Source) -> str | None:
        if source.token is None:
            return None
        token = resolve(source.token, self._environment)
        self._learn(token)
        return token
