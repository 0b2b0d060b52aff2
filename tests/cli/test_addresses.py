"""Addresses as arguments."""

import click
import pytest

from llmgw.cli.addresses import ADDRESS, MODEL_ADDRESS


@pytest.mark.parametrize("written", ["chat", "model/chat", "models/chat"])
def test_where_only_a_model_can_be_meant_its_name_will_do(written: str) -> None:
    assert MODEL_ADDRESS.convert(written, None, None) == "model/chat"


def test_a_name_that_may_be_a_node_s_needs_its_kind() -> None:
    assert ADDRESS.convert("chat/0", None, None) == "model/chat/0"
    with pytest.raises(click.BadParameter, match="is no address"):
        ADDRESS.convert("chat", None, None)
    with pytest.raises(click.BadParameter, match="node/gpu01 is no model"):
        MODEL_ADDRESS.convert("node/gpu01", None, None)
