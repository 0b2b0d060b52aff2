"""What an answer is, byte by byte, beside a library that knows all of HTTP."""

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.agent.seams import Answer
from llmgw.agent.shards.httpanswer import MAX_BODY, MAX_DATA, MAX_HEAD, NoHttpError, read

LENGTH = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 4\r\n\r\nfine"
CLOSES = b"HTTP/1.0 503 Service Unavailable\r\nServer: x\r\n\r\nloading"
CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nfin\r\n1;last\r\ne\r\n0\r\n\r\n"
BARE = b"HTTP/1.1 200\ncontent-length:  4\n\nfine"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + LENGTH
NOTHING = b"HTTP/1.1 204 No Content\r\n\r\n"


def by_library(data: bytes) -> Answer:
    """As h11 reads it when the other side has closed."""
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="GET", target="/", headers=[("Host", "x"), ("Connection", "close")]))
    http.send(h11.EndOfMessage())
    http.receive_data(data)
    http.receive_data(b"")
    status, body = 0, b""
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        assert event is not h11.NEED_DATA
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
    return Answer(status=status, text=body.decode())


@pytest.mark.parametrize("data", [LENGTH, CLOSES, CHUNKS, BARE, INTERIM, NOTHING])
def test_it_is_read_as_a_library_reads_it_and_not_before_it_is_whole(data: bytes) -> None:
    expected = by_library(data)
    assert read(data, closed=True) == expected
    whole = [read(data[:end], closed=False) for end in range(len(data) + 1)]
    assert all(answer is None for answer in whole[:-1])
    assert whole[-1] == (None if data is CLOSES else expected)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.integers(0, 400))
def test_chunks_are_put_together_wherever_they_are_cut(chunks: list[bytes], cut: int) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    data = head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    expected = Answer(status=200, text=b"".join(chunks).decode(errors="replace"))
    assert read(data[:cut], closed=False) in (None, expected)
    assert cut >= len(data) or read(data[:cut], closed=False) is None
    assert read(data, closed=False) == expected


@pytest.mark.parametrize(("data", "short"), [(LENGTH, 1), (CHUNKS, len(b"0\r\n\r\n"))])
def test_an_answer_that_breaks_off_is_none(data: bytes, short: int) -> None:
    for end in (len(data) - short, data.index(b"\r\n\r\n") + 5, 20, 3, 0):
        with pytest.raises(ConnectionResetError, match="closed"):
            read(data[:end], closed=True)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 999 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD,
    ],
)
def test_what_is_no_http_is_told_at_once(data: bytes) -> None:
    with pytest.raises(NoHttpError):
        read(data, closed=False)


@pytest.mark.parametrize(
    "head", [b"Content-Length: 99999999", b"Server: x", b"Transfer-Encoding: chunked\r\n\r\nFFFFFFF"]
)
def test_a_body_without_end_is_cut(head: bytes) -> None:
    answer = read(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + b"x" * MAX_DATA, closed=False)
    assert answer is not None
    assert answer.text.rstrip("x").strip() == ""
    assert MAX_BODY - 4 <= len(answer.text) <= MAX_BODY
