"""One file over HTTP: streamed, hashed on the way, resumed where it stopped, never trusted."""

import hashlib
import ssl
import threading
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import httpx

from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.files import (
    CHUNK,
    gib,
    in_thread,
    mismatch,
    read_marker,
    remove_tree,
    require_space,
    write_marker,
)
from llmgw.agent.jobs.pip import without_credentials
from llmgw.model.problems import RetryError, StalledError
from llmgw.model.struct import Struct

TIMEOUT = httpx.Timeout(60.0, connect=20.0)
MAX_REDIRECTS = 10
SPACE_EVERY = 256 * 1024 * 1024
"""Bytes between two looks at the disk, for a server that never said how much it would send."""
MARK = "llmgw-download.json"
"""Beside the file, as long as it is not whole."""
MAX_VALIDATOR = 200
RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class Mark(Struct):
    """What a half download is half of. ``address``: a hash, since an address may hold a password. ``validator``: the server's
    own word for the file, strong enough to go on by."""

    address: str
    validator: str | None = None


class Got(Struct):
    """``resumed``: it came in more than one part."""

    sha256: str
    resumed: bool = False


async def download_proved(
    url: str,
    file: Path,
    *,
    sha256: str,
    what: str,
    env: Mapping[str, str],
    progress: Progress,
    reserve: int,
) -> None:
    """The file, as its hash says. What does not match is gone: nobody goes on from it."""
    got = await download(url, file, env=env, progress=progress, reserve=reserve)
    if got.sha256 == sha256:
        remove_tree(file.parent / MARK)
        return
    remove_tree(file)
    wrong = mismatch(what, found=got.sha256, expected=sha256)
    if got.resumed:  # the file may have changed between the two halves
        raise RetryError(f"{wrong}; it came in parts, so it is fetched once more from its beginning")
    raise wrong


async def download(url: str, file: Path, *, env: Mapping[str, str], progress: Progress, reserve: int) -> Got:
    """The whole file's hash. What was there before is kept when the server can go on from its end, and still has the same
    file as far as it tells. Raises RetryError when trying again may help, StalledError otherwise."""
    shown = without_credentials(url)
    have, sha = await _already(file, url)
    try:
        async with (
            _client(url, env) as client,
            client.stream("GET", url, headers=_headers(file, have)) as answer,
        ):
            if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and have:
                _require_whole(answer, file, have, shown)
                return Got(sha256=sha.hexdigest(), resumed=True)
            if answer.status_code == httpx.codes.OK:
                have, sha = 0, hashlib.sha256()
            _require_success(answer, shown, have)
            _keep_mark(file, url, answer)
            found = await _receive(answer, file, have, sha, shown=shown, progress=progress, reserve=reserve)
            return Got(sha256=found, resumed=have > 0)
    except httpx.InvalidURL as wrong:
        raise StalledError(f"fetching {shown}: {wrong}: correct the address") from wrong
    except httpx.UnsupportedProtocol as wrong:
        raise StalledError(f"fetching {shown}: {wrong}: use http or https") from wrong
    except httpx.HTTPError as wrong:
        raise RetryError(
            f"fetching {shown}: {str(wrong) or type(wrong).__name__} after {gib(file_size(file))}: it goes on from there",
            after=timedelta(seconds=10),
        ) from wrong


def _client(url: str, env: Mapping[str, str]) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        timeout=TIMEOUT,
        follow_redirects=True,
        max_redirects=MAX_REDIRECTS,
        trust_env=False,
        proxy=proxy_for(url, env),
        verify=_authorities(env),
    )


def _require_whole(answer: httpx.Response, file: Path, have: int, shown: str) -> None:
    """The server has nothing behind what is here: either nothing is missing, and the hash decides, or it is another file."""
    if answer.headers.get("Content-Range", "") not in ("", f"bytes */{have}"):
        file.unlink()
        raise RetryError(f"fetching {shown}: the file has changed there: it begins anew")


def _authorities(env: Mapping[str, str]) -> ssl.SSLContext | bool:
    """As the node's environment names them, where it does: a proxy or mirror with certificates of its own."""
    bundle = env.get("SSL_CERT_FILE") or env.get("REQUESTS_CA_BUNDLE")
    folder = env.get("SSL_CERT_DIR")
    if not bundle and not folder:
        return True
    try:
        return ssl.create_default_context(cafile=bundle, capath=folder)
    except OSError as wrong:
        raise StalledError(
            f"reading the certificates {bundle or folder}: {wrong.strerror or wrong}: correct SSL_CERT_FILE or SSL_CERT_DIR in"
            " the node's environment"
        ) from wrong


def _headers(file: Path, have: int) -> dict[str, str]:
    """``If-Range``: a file that has changed comes whole, instead of its end behind the other one's beginning."""
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        mark = read_marker(Mark, file.parent / MARK)
        if mark is not None and mark.validator is not None:
            headers["If-Range"] = mark.validator
    return headers


def _keep_mark(file: Path, url: str, answer: httpx.Response) -> None:
    etag = answer.headers.get("ETag", "")
    strong = etag if etag.startswith('"') and len(etag) <= MAX_VALIDATOR else None
    write_marker(Mark(address=_address(url), validator=strong), file.parent / MARK)


def _address(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


def file_size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


async def _already(file: Path, url: str) -> "tuple[int, hashlib._Hash]":
    """What an interrupted attempt left of the same address, hashed."""
    sha = hashlib.sha256()
    mark = read_marker(Mark, file.parent / MARK)
    size = file_size(file) if mark is not None and mark.address == _address(url) else 0
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
    raise StalledError(f"{message}: correct the address")


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
