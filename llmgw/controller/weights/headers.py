"""What the headers of weights behind an address or on a Hugging Face hub tell: a few hundred kilobytes of files of many gigabytes."""

from urllib.parse import quote

import httpx

from llmgw.controller.weights.ranges import TIMEOUT, NotReadError, Ranges, plain
from llmgw.model.manifest import Source
from llmgw.model.struct import replace
from llmgw.model.weights import MAX_CONFIG, Inspection
from llmgw.wire import gguf, safetensors

FIRST, GROWS = 256 * 1024, 8
"""Bytes of a GGUF file that are asked for at first; a header without its vocabulary fits. Then so many times more."""
INDEXES = (safetensors.INDEX, "pytorch_model.bin.index.json")


def place(source: Source) -> str:
    """Where it lies, for messages."""
    return plain(source.url) if source.url else f"{source.hugging_face}@{source.revision or 'main'}"


async def read(
    source: Source, *, hub: str, token: str | None, transport: httpx.AsyncBaseTransport | None
) -> Inspection:
    """Raises NotReadError."""
    async with httpx.AsyncClient(follow_redirects=True, timeout=TIMEOUT, transport=transport) as client:
        ranges = Ranges(client, token)
        return await (_by_url(ranges, source.url) if source.url is not None else _on_hub(ranges, hub, source))


async def _by_url(ranges: Ranges, url: str) -> Inspection:
    """A GGUF file behind an address."""
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


async def _on_hub(ranges: Ranges, hub: str, source: Source) -> Inspection:
    """A repository of a hub: config.json, and the index or the one file's header."""
    name = source.hugging_face or ""
    base = f"{hub.rstrip('/')}/{quote(name)}/resolve/{quote(source.revision or 'main', safe='')}"
    config = await ranges.whole(f"{base}/config.json", most=MAX_CONFIG)
    if config is None:
        raise NotReadError(
            f"{place(source)} has no config.json, or is not there: correct source.huggingFace and source.revision, or name a token"
        )
    seen = Inspection(path=place(source), config=config.decode(errors="replace"))
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


async def _header(ranges: Ranges, url: str, where: str) -> dict[str, int] | None:
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
        raise NotReadError(f"{url.rpartition('/')[2]} of {where}: {wrong}: name another revision") from wrong


def _told(head: bytes, total: int | None) -> dict[str, int]:
    """Bytes by type; ``head`` is all before the tensors. Raises BadHeaderError, also where the file is longer or shorter than that."""
    found = safetensors.tensor_bytes(head[safetensors.PREFIX :])
    needed = len(head) + sum(found.values())
    if total is not None and total != needed:
        raise safetensors.BadHeaderError(f"it has {total} bytes, its header names {needed}")
    return found
