"""Both ends agree on lines, requests, stream items and refusals, and nothing unbounded gets in."""

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.model.problems import AgentError
from llmgw.wire import rpc
from llmgw.wire.codec import CodecError
from llmgw.wire.messages import BUSY, INVALID_REQUEST, MAX_LINE, PARSE_ERROR, Request, Response


@given(
    st.lists(st.binary(min_size=1, max_size=30).filter(lambda b: b"\n" not in b and b.strip() != b"")),
    st.data(),
)
def test_lines_do_not_depend_on_how_the_bytes_arrive(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cutter, found = rpc.Lines(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += cutter.feed(stream[:size])
        stream = stream[size:]
    assert found == lines


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    cutter = rpc.Lines(limit=100)
    cutter.feed(b"x" * 100)
    with pytest.raises(rpc.LineTooLongError):
        cutter.feed(b"x")


def test_a_complete_line_over_the_bound_is_refused() -> None:
    with pytest.raises(rpc.LineTooLongError):
        rpc.Lines(limit=3).feed(b"ab\nabcd\n")


def test_nothing_is_sent_that_the_peer_must_refuse() -> None:
    with pytest.raises(rpc.LineTooLongError):
        rpc.encode(Response(id=1, result="x" * MAX_LINE))


def test_a_request_survives_the_wire() -> None:
    request = Request(method="report", id=3, params={"journalAfter": 7})
    assert rpc.read_request(rpc.encode(request)) == request


@pytest.mark.parametrize(
    ("line", "code", "number"),
    [
        (b"nonsense", PARSE_ERROR, None),
        (b"[" * 100_000, PARSE_ERROR, None),
        (b"[]", INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "method": "report", "id": 4, "extra": 1}', INVALID_REQUEST, 4),
        (b'{"jsonrpc": "1.0", "method": "report", "id": 4}', INVALID_REQUEST, 4),
        (b'{"jsonrpc": "2.0", "method": "report"}', INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "method": 5, "id": true}', INVALID_REQUEST, None),
    ],
)
def test_a_line_that_is_no_request_gets_the_answer_it_deserves(
    line: bytes, code: int, number: int | None
) -> None:
    with pytest.raises(rpc.BadRequestError) as caught:
        rpc.read_request(line)
    assert caught.value.body.code == code
    assert caught.value.request == number


def test_a_refusal_survives_the_wire_with_what_steers_the_next_step() -> None:
    error = AgentError("the node is busy", code=BUSY, after=timedelta(seconds=2.5), data={"holder": "x"})
    answer = rpc.read_answer(rpc.encode(Response(id=1, error=rpc.error_body(error))))
    assert isinstance(answer, Response)
    assert answer.error is not None
    again = rpc.refusal(answer.error)
    assert (str(again), again.code, again.after, again.data) == (
        "the node is busy",
        BUSY,
        timedelta(seconds=2.5),
        {"holder": "x"},
    )


def test_an_item_names_its_request() -> None:
    assert rpc.read_answer(rpc.encode_item(9, {"a": 1})) == rpc.Item(request=9, item={"a": 1})


@pytest.mark.parametrize("params", [None, {}, {"id": "1", "item": 1}, {"id": 1}])
def test_an_item_without_a_request_is_refused(params: object) -> None:
    with pytest.raises(CodecError):
        rpc.read_answer(json.dumps({"method": "item", "params": params}).encode())


def test_an_answer_of_a_newer_agent_may_say_more() -> None:
    answer = rpc.read_answer(b'{"jsonrpc": "2.0", "id": 1, "result": {}, "timing": 3}')
    assert answer == Response(id=1, result={})


def test_an_answer_holds_a_result_or_an_error_and_a_notification_has_no_id() -> None:
    assert set(json.loads(rpc.encode(Response(id=1, result=None)))) == {"id", "result", "jsonrpc"}
    error = rpc.error_body(AgentError("no", code=BUSY))
    assert set(json.loads(rpc.encode(Response(id=1, error=error)))) == {"id", "error", "jsonrpc"}
    assert set(json.loads(rpc.encode_item(1, {}))) == {"method", "params", "jsonrpc"}
