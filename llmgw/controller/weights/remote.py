"""Weights that lie behind an address or on a Hugging Face hub, looked at by their headers alone: a few hundred kilobytes of files
of many gigabytes. Nothing is kept here but which questions failed lately, so that a hub that is down is not asked each pass.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

import httpx

from llmgw.controller.secrets import resolve
from llmgw.controller.weights.cache import Cache
from llmgw.controller.weights.ranges import TIMEOUT, NotReadError, Ranges, plain
from llmgw.model.manifest import Source
from llmgw.model.problems import LlmgwError
from llmgw.model.weights import MAX_CONFIG, Inspection
from llmgw.wire import gguf, safetensors

HUB = "https://huggingface.co"
FIRST, GROWS = 256 * 1024, 8
"""Bytes of a GGUF file that are asked for at first; a header without its vocabulary fits. Then so many times more."""
WITHIN = 60.0
"""Seconds for one model: a few small answers."""
AGAIN_AFTER = 300.0
"""Seconds until a question that failed is asked again."""
PINNED = re.compile(r"[0-9a-f]{40}")
INDEXES = (safetensors.INDEX, "pytorch_model.bin.index.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
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
        transport: httpx.AsyncBaseTransport | None = None,
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
        source = wanted.source
        place = plain(source.url) if source.url else f"{source.hugging_face}@{source.revision or 'main'}"
        try:
            async with asyncio.timeout(WITHIN):
                token = self._token(source)
                async with httpx.AsyncClient(
                    follow_redirects=True, timeout=TIMEOUT, transport=self._transport
                ) as client:
                    ranges = Ranges(client, token)
                    if source.url is not None:
                        return await by_url(ranges, source.url)
                    return await on_hub(ranges, wanted.hub, source)
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


async def by_url(ranges: Ranges, url: str) -> Inspection:
    """A GGUF file behind an address. Raises NotReadError."""
    data, need, total, shown = b"", FIRST, None, plain(url)
    while True:
        piece = await ranges.piece(url, len(data), need)
        if piece is None:
            raise NotReadError(f"{shown} is not there: correct source.url")
        data, total = data + piece.data, piece.total
        try:
            header = gguf.read(data)
        except gguf.TooShortError as wrong:
            if len(data) < need or need >= gguf.MAX_HEADER:
                raise NotReadError(f"{shown} ends within its header") from wrong
            need = min(max(wrong.need, need * GROWS), gguf.MAX_HEADER)
        except gguf.BadHeaderError as wrong:
            raise NotReadError(f"{shown}: {wrong}") from wrong
        else:
            size = sum(header.parts.values())
            return Inspection(
                path=shown,
                format="gguf",
                files=1,
                size=total or size,
                tensors=dict(sorted(header.types.items())),
                parts=header.parts,
                metadata=header.settings,
            )


async def on_hub(ranges: Ranges, hub: str, source: Source) -> Inspection:
    """A repository of a hub: config.json, and the index or the one file's header. Raises NotReadError."""
    name = source.hugging_face or ""
    base = f"{hub.rstrip('/')}/{quote(name)}/resolve/{quote(source.revision or 'main', safe='')}"
    place = f"{name}@{source.revision or 'main'}"
    config = await ranges.whole(f"{base}/config.json", most=MAX_CONFIG)
    if config is None:
        raise NotReadError(
            f"{place} has no config.json, or is not there: correct source.huggingFace and source.revision, or name a token"
        )
    seen = Inspection(path=place, config=config.decode(errors="replace"))
    for index in INDEXES:
        listed = await ranges.whole(f"{base}/{index}", most=safetensors.MAX_INDEX)
        if listed is not None:
            return await _indexed(ranges, base, replace(seen, format="safetensors"), listed)
    return await _one_file(ranges, base, replace(seen, format="safetensors"))


async def _indexed(ranges: Ranges, base: str, seen: Inspection, listed: bytes) -> Inspection:
    try:
        total, names = safetensors.indexed(listed)
    except safetensors.BadHeaderError as wrong:
        raise NotReadError(f"{seen.path}: {wrong}") from wrong
    if total is not None:
        return replace(seen, files=len(names), size=total)
    tensors: dict[str, int] = {}
    for name in names:
        found = await _header(ranges, f"{base}/{quote(name)}", seen.path)
        if found is None:
            raise NotReadError(
                f"{seen.path} names {name:.200} in its index, and it is not there: name another revision"
            )
        for kind, count in found.items():
            tensors[kind] = tensors.get(kind, 0) + count
    return replace(seen, files=len(names), size=sum(tensors.values()), tensors=tensors)


async def _one_file(ranges: Ranges, base: str, seen: Inspection) -> Inspection:
    tensors = await _header(ranges, f"{base}/model.safetensors", seen.path)
    if tensors is not None:
        return replace(seen, files=1, size=sum(tensors.values()), tensors=tensors)
    older = await ranges.piece(f"{base}/pytorch_model.bin", 0, 1)
    if older is not None and older.total:
        return replace(seen, format="other", files=1, size=older.total)
    raise NotReadError(
        f"{seen.path} holds neither model.safetensors nor an index of several: name another repository"
    )


async def _header(ranges: Ranges, url: str, place: str) -> dict[str, int] | None:
    """Bytes by type of one file; None: it is not there."""
    try:
        first = await ranges.piece(url, 0, FIRST)
        if first is None:
            return None
        length = safetensors.length(first.data)
        end = safetensors.PREFIX + length
        data = first.data
        if end > len(data):
            rest = await ranges.piece(url, len(data), end)
            data += rest.data if rest is not None else b""
        return _told(data[:end], first.total)
    except safetensors.BadHeaderError as wrong:
        raise NotReadError(f"{url.rpartition('/')[2]} of {place}: {wrong}: name another revision") from wrong


def _told(head: bytes, total: int | None) -> dict[str, int]:
    """Bytes by type; ``head`` is all before the tensors. Raises BadHeaderError, also where the file is longer or shorter than that."""
    found = safetensors.tensor_bytes(head[safetensors.PREFIX :])
    needed = len(head) + sum(found.values())
    if total is not None and total != needed:
        raise safetensors.BadHeaderError(f"it has {total} bytes, its header names {needed}")
    return found
