"""One file over HTTP: streamed, hashed on the way, resumed where it stopped, never trusted."""

import hashlib
import threading
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import httpx

from llmgw.agent.jobs.files import CHUNK, gib, in_thread, require_space
from llmgw.agent.jobs.pip import without_credentials
from llmgw.agent.jobs.runner import Progress
from llmgw.model.problems import RetryError, StalledError

TIMEOUT = httpx.Timeout(60.0, connect=20.0)
MAX_REDIRECTS = 10
SPACE_EVERY = 256 * 1024 * 1024
"""Bytes between two looks at the disk, for a server that never said how much it would send."""
RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


async def download(url: str, file: Path, *, env: Mapping[str, str], progress: Progress, reserve: int) -> str:
    """SHA-256 of the whole file. What was there before is kept when the server can go on from its end. Raises RetryError
    when trying again may help, StalledError otherwise."""
    shown = without_credentials(url)
    have, sha = await _already(file)
    try:
        async with httpx.AsyncClient(
            timeout=TIMEOUT,
            follow_redirects=True,
            max_redirects=MAX_REDIRECTS,
            trust_env=False,
            proxy=proxy_for(url, env),
        ) as client:
            headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
            async with client.stream("GET", url, headers=headers) as answer:
                if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and have:
                    return sha.hexdigest()  # nothing is missing; the hash decides
                if answer.status_code == httpx.codes.OK:
                    have, sha = 0, hashlib.sha256()
                _require_success(answer, shown, have)
                return await _receive(
                    answer, file, have, sha, shown=shown, progress=progress, reserve=reserve
                )
    except httpx.InvalidURL as wrong:
        raise StalledError(f"fetching {shown}: {wrong}: correct the model's source") from wrong
    except httpx.UnsupportedProtocol as wrong:
        raise StalledError(f"fetching {shown}: {wrong}: use http or https") from wrong
    except httpx.HTTPError as wrong:
        raise RetryError(
            f"fetching {shown}: {str(wrong) or type(wrong).__name__} after {gib(file_size(file))}: it goes on from there",
            after=timedelta(seconds=10),
        ) from wrong


def file_size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


async def _already(file: Path) -> "tuple[int, hashlib._Hash]":
    """What an interrupted attempt left, hashed."""
    sha = hashlib.sha256()
    size = file_size(file)
    if size:
        with file.open("rb") as source:

            def read_all(stop: threading.Event) -> None:
                while not stop.is_set() and (data := source.read(CHUNK)):
                    sha.update(data)

            await in_thread(read_all)
    return size, sha


def _require_success(answer: httpx.Response, shown: str, have: int) -> None:
    status = answer.status_code
    if status == httpx.codes.OK:
        return
    if status == httpx.codes.PARTIAL_CONTENT:
        if answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            return
        raise StalledError(
            f"fetching {shown}: asked for bytes from {have} on, the server sent"
            f" {answer.headers.get('Content-Range', 'something else')!r:.80}: see to that server"
        )
    message = f"fetching {shown}: the server answered {status} {answer.reason_phrase}"
    if status in RETRY_STATUS:
        raise RetryError(f"{message}: try again later", after=timedelta(seconds=30))
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise StalledError(f"{message}: this address needs credentials that the node does not have")
    raise StalledError(f"{message}: correct the model's source")


async def _receive(
    answer: httpx.Response,
    file: Path,
    have: int,
    sha: "hashlib._Hash",
    *,
    shown: str,
    progress: Progress,
    reserve: int,
) -> str:
    length = answer.headers.get("Content-Length", "")
    total = have + int(length) if length.isdigit() else None
    require_space(file.parent, (total or have) - have, reserve=reserve, what=f"fetching {shown}")
    checked = have
    progress.bytes(have, total)
    with file.open("r+b" if have else "wb") as sink:
        sink.seek(have)
        held = bytearray()
        try:
            async for data in answer.aiter_raw():
                held += data
                if len(held) >= CHUNK:
                    full, held = held, bytearray()
                    have += len(full)
                    await in_thread(partial(_take, full, sink, sha))
                    progress.bytes(have)
                if have - checked >= SPACE_EVERY:
                    require_space(file.parent, 0, reserve=reserve, what=f"fetching {shown}")
                    checked = have
        finally:
            _take(held, sink, sha, None)  # what came before the line broke counts too
            progress.bytes(have + len(held))
    return sha.hexdigest()


def _take(data: bytearray, sink: IO[bytes], sha: "hashlib._Hash", _: threading.Event | None) -> None:
    """Never stopped half way: what is written is hashed."""
    sink.write(data)
    sha.update(data)


def proxy_for(url: str, env: Mapping[str, str]) -> str | None:
    """The proxy that the node's environment names for this address, if any. ``NO_PROXY``: hosts and domain ends."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    settings = {name.lower(): value for name, value in env.items()}
    for entry in settings.get("no_proxy", "").split(","):
        domain = entry.strip().lower().lstrip(".")
        if domain == "*" or (domain and (host == domain or host.endswith(f".{domain}"))):
            return None
    return settings.get(f"{parts.scheme}_proxy") or settings.get("all_proxy") or None
