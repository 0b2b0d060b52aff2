"""Names as people copy them out of tables, plans and progress."""

import pytest

from llmgw.model.addresses import is_called, parse_address

REPLICA = "chat-1f0c9a2b-0.3"


@pytest.mark.parametrize(
    "name",
    [REPLICA, "chat", "model/chat", "models/chat", "chat/0", "model/chat/0", "chat/0.3", "model/chat/0.3"],
)
def test_a_replica_is_known_by_every_name_that_is_printed_of_it(name: str) -> None:
    assert is_called(name, model="chat", replica=REPLICA)


@pytest.mark.parametrize("name", ["cha", "chat/1", "chat/0.2", "chat/0.", "chat/", "node/chat", "0.3", ""])
def test_another_copy_is_not_meant(name: str) -> None:
    assert not is_called(name, model="chat", replica=REPLICA)


def test_a_renamed_model_s_replica_goes_by_the_new_name() -> None:
    assert is_called("talk/0.3", model="talk", replica=REPLICA)
    assert not is_called("chat/0.3", model="talk", replica=REPLICA)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("model/chat", "model/chat"),
        ("models/chat/0", "model/chat/0"),
        ("chat/0", "model/chat/0"),
        ("chat/007", "model/chat/7"),
        ("node/gpu01", "node/gpu01"),
    ],
)
def test_an_address_is_understood_without_its_kind_where_only_a_model_can_be_meant(
    written: str, meant: str
) -> None:
    assert parse_address(written) == meant


@pytest.mark.parametrize("written", ["chat", "node/gpu01/0", "chat/0.3", "model/", "/0", "chat/x", "Chat/0"])
def test_what_may_be_something_else_is_no_address(written: str) -> None:
    with pytest.raises(ValueError, match="is no address: write model/NAME"):
        parse_address(written)
