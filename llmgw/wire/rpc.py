"""Framing and correlation of the agent protocol, for both ends: bytes in, messages out, and back. It does no
input or output itself, so that sockets, SSH channels and the simulation's fakes share every rule.

One JSON object a line. A stream's items are notifications ``{"method": "item", "params": {"id": 7, "item": …}}``,
closed by the response of request 7.
"""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from llmgw.model.problems import AgentError
from llmgw.model.struct import Struct
from llmgw.wire import codec
from llmgw.wire.messages import (
    INVALID_REQUEST,
    MAX_LINE,
    PARSE_ERROR,
    ErrorBody,
    Request,
    Response,
)

ITEM = "item"
STREAMS = frozenset({"watch", "logs"})


class LineTooLongError(ValueError):
    """A message over the bound. The stream can't be trusted any more: close it."""


class Lines:
    """Cuts a byte stream into lines, never holding more than one bound of it."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends; empty ones are skipped."""
        self._rest += data
        *whole, rest = self._rest.split(b"\n")
        self._rest = rest
        if len(rest) > self._limit or any(len(line) > self._limit for line in whole):
            raise LineTooLongError(f"message of more than {self._limit} bytes: the peer breaks the protocol")
        return [bytes(line) for line in whole if line.strip()]


class BadRequestError(ValueError):
    """A line that is no request; ``body`` is what to answer."""

    def __init__(self, body: ErrorBody, *, request: int | None = None) -> None:
        super().__init__(body.message)
        self.body = body
        self.request = request


class Item(Struct):
    """One item of a stream."""

    request: int
    item: Any


def encode(message: Request | Response) -> bytes:
    """One line. Raises :class:`LineTooLongError` instead of sending what the peer must refuse."""
    data = codec.to_json(message)
    if isinstance(message, Response):
        del data["result" if message.error is not None else "error"]  # JSON-RPC: one of them, never both
    elif message.id is None:
        del data["id"]  # a notification
    line = codec.dumps(data)
    if len(line) > MAX_LINE:
        raise LineTooLongError(f"message of {len(line)} bytes, at most {MAX_LINE} can be sent")
    return line + b"\n"


def encode_item(request: int, item: Any) -> bytes:
    return encode(Request(method=ITEM, params={"id": request, ITEM: item}))


def read_request(line: bytes) -> Request:
    """Raises :class:`BadRequestError` with the answer the sender deserves."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as wrong:
        raise BadRequestError(ErrorBody(code=PARSE_ERROR, message=f"request is not JSON: {wrong}")) from wrong
    number = data.get("id") if isinstance(data, dict) and type(data.get("id")) is int else None
    try:
        request = codec.from_json(Request, data, strict=True)
    except codec.CodecError as wrong:
        raise BadRequestError(ErrorBody(code=INVALID_REQUEST, message=str(wrong)), request=number) from wrong
    if request.jsonrpc != "2.0" or request.id is None:
        raise BadRequestError(
            ErrorBody(code=INVALID_REQUEST, message='a request has "jsonrpc": "2.0" and a number as id'),
            request=number,
        )
    return request


def read_answer(line: bytes) -> Response | Item:
    """What a client may receive. Raises :class:`~llmgw.wire.codec.CodecError` for anything else."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as wrong:
        raise codec.CodecError(f"answer is not JSON: {wrong}") from wrong
    if isinstance(data, dict) and data.get("method") == ITEM:
        params = data.get("params")
        if not isinstance(params, dict) or type(params.get("id")) is not int or ITEM not in params:
            raise codec.CodecError("stream item without the id of its request")
        return Item(request=params["id"], item=params[ITEM])
    return codec.from_json(Response, data, strict=False)


def error_body(error: AgentError) -> ErrorBody:
    """A refusal as it is sent: ``data.after`` says when a retry makes sense, ``data`` the rest that steers it."""
    data: dict[str, Any] = dict(error.data)
    if error.after is not None:
        data["after"] = error.after.total_seconds()
    return ErrorBody(code=error.code, message=str(error), data=data or None)


def refusal(body: ErrorBody) -> AgentError:
    """The same, as the client raises it."""
    data: Mapping[str, Any] = body.data or {}
    after = data.get("after")
    known = isinstance(after, (int, float)) and not isinstance(after, bool)
    return AgentError(
        body.message,
        code=body.code,
        after=timedelta(seconds=float(after)) if known and after is not None else None,
        data={name: value for name, value in data.items() if name != "after"},
    )
