"""One HTTP answer to a question on a connection of its own, read from the bytes that have come so far. Pure.

By hand, because each engine is asked every few seconds for as long as it runs: a library for all of HTTP was a third of the
CPU that an agent at rest used.
"""

import errno
import re

from llmgw.agent.seams import Answer

MAX_HEAD = 64 * 1024
MAX_BODY = 1024 * 1024
MAX_DATA = 2 * MAX_BODY
"""Bytes of an answer that are looked at, chunk sizes and all."""

BEGINS = b"HTTP/1."
BEGIN = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: |\r?$)", re.MULTILINE)
BLANK = re.compile(rb"\r?\n\r?\n")
LENGTH = re.compile(rb"\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
CHUNKED = re.compile(rb"\ntransfer-encoding:[^\r\n]*\bchunked[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
CHUNK = re.compile(rb"(?:\r\n)?([0-9a-fA-F]{1,8})[^\r\n]*\r\n")
LAST_CHUNK = b"0\r\n\r\n"
INTERIM = range(100, 200)
"""What comes before the answer itself."""
WITHOUT_BODY = frozenset({204, 304})


class NoHttpError(ValueError):
    """It is something else that answers there."""


def read(data: bytes, *, closed: bool) -> Answer | None:
    """None: it is not whole yet. ``closed``: nothing more will come. A body is cut at :data:`MAX_BODY`. Raises NoHttpError, and
    ConnectionResetError where the end is missing."""
    whole = closed or len(data) >= MAX_DATA
    status, begin, head = INTERIM[0], 0, b""
    while status in INTERIM:
        if (end := BLANK.search(data, begin, begin + MAX_HEAD)) is None:
            _require_http(data[begin : begin + MAX_HEAD + 1], closed=whole)
            return None
        head, status = data[begin : end.start()], _status(data[begin : end.start()])
        begin = end.end()
    body, complete = _body(data[begin:], head, status, closed=whole)
    if not complete and len(body) < MAX_BODY:
        if whole:
            raise ConnectionResetError(errno.ECONNRESET, "closed in the middle of its answer")
        return None
    return Answer(status=status, text=body[:MAX_BODY].decode(errors="replace"))


def _require_http(begun: bytes, *, closed: bool) -> None:
    """Of an answer whose head is not whole."""
    if begun[: len(BEGINS)] != BEGINS[: len(begun)] or len(begun) > MAX_HEAD:
        raise NoHttpError(repr(begun[:40]))
    if closed:
        raise ConnectionResetError(errno.ECONNRESET, "closed before it answered")


def _status(head: bytes) -> int:
    found = BEGIN.match(head)
    if found is None:
        raise NoHttpError(repr(head[:40]))
    return int(found[1])


def _body(rest: bytes, head: bytes, status: int, *, closed: bool) -> tuple[bytes, bool]:
    """What has come of it, and whether that is all."""
    if status in WITHOUT_BODY:
        return b"", True
    if CHUNKED.search(head):
        return (
            _unchunked(rest) if closed or rest.endswith(LAST_CHUNK) or len(rest) >= MAX_BODY else (b"", False)
        )
    if length := LENGTH.search(head):
        most = int(length[1])
        return rest[:most], len(rest) >= most
    return rest, closed


def _unchunked(rest: bytes) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    at = 0
    while found := CHUNK.match(rest, at):
        size = int(found[1], 16)
        if size == 0:
            return b"".join(parts), True
        at = found.end() + size
        parts.append(rest[found.end() : at])
    return b"".join(parts), False
