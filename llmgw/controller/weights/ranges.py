"""Pieces of files over HTTP: never more than was asked for, whatever the server sends."""

import re

import httpx

from llmgw.model.struct import Struct

TIMEOUT = httpx.Timeout(20.0, connect=10.0)
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)$")
OK, PARTIAL, NOT_FOUND, BEYOND = 200, 206, 404, 416
REFUSED = frozenset({401, 403})


class NotReadError(Exception):
    """What was asked for did not come; the text says why and what to try."""


class Piece(Struct):
    """``total`` is the whole file's bytes, None where the server does not tell."""

    data: bytes
    total: int | None


class Ranges(Struct, kw_only=False):
    """``client`` follows redirects; ``token`` goes to the address asked for, and the client takes it off where a redirect leads
    elsewhere."""

    client: httpx.AsyncClient
    token: str | None = None

    async def piece(self, url: str, begin: int, end: int) -> Piece | None:
        """Bytes ``begin`` up to ``end`` (not included), fewer, or none, where the file ends before; None: there is no such file."""
        headers = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            async with self.client.stream("GET", url, headers=headers) as answer:
                if answer.status_code == NOT_FOUND:
                    return None
                if answer.status_code == BEYOND:
                    return Piece(data=b"", total=None)
                skip, total = _where(answer, url, begin)
                return Piece(data=await _bounded(answer, skip, end - begin), total=total)
        except (httpx.HTTPError, httpx.InvalidURL) as wrong:
            why = str(wrong) or type(wrong).__name__
            raise NotReadError(f"asking {plain(url)}: {why}: see that this machine reaches it") from wrong

    async def whole(self, url: str, *, most: int) -> bytes | None:
        """A small file; None: there is none."""
        found = await self.piece(url, 0, most + 1)
        if found is not None and len(found.data) > most:
            raise NotReadError(f"{plain(url)} is larger than {most} bytes: it is not what it should be")
        return found.data if found is not None else None


def _where(answer: httpx.Response, url: str, begin: int) -> tuple[int, int | None]:
    """Bytes to leave out at the start of the answer, and the file's size."""
    status = answer.status_code
    if status in REFUSED:
        raise NotReadError(
            f"asking {plain(url)}: refused ({status}): name a token that may read it in source.token, "
            "as {fromEnv: NAME} or {fromFile: path}"
        )
    if status == PARTIAL:
        told = _RANGE.match(answer.headers.get("Content-Range", ""))
        if told is None or int(told[1]) != begin:
            raise NotReadError(f"asking {plain(url)}: it sent another part than was asked for")
        return 0, int(told[3]) if told[3] != "*" else None
    if status == OK:  # it knows no ranges: what comes before is thrown away
        length = answer.headers.get("Content-Length", "")
        return begin, int(length) if length.isascii() and length.isdigit() else None
    raise NotReadError(f"asking {plain(url)}: it answered {status}: see that the address is right")


async def _bounded(answer: httpx.Response, skip: int, most: int) -> bytes:
    data = bytearray()
    async for chunk in answer.aiter_raw():
        data += chunk
        if len(data) >= skip + most:
            break
    return bytes(data[skip : skip + most])


def plain(url: str) -> str:
    """Without what may be secret in it: a user's part, and the query."""
    parsed = httpx.URL(url)
    return str(parsed.copy_with(userinfo=b"", query=None, fragment=None))
