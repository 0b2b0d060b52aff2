"""What is asked for and not there is explained where people look first, also when no replica of it was ever started."""

from dataclasses import replace

from llmgw.core.show import render
from llmgw.core.show.status import ModelRow, Status

SHORT = Status(
    fleet="lab",
    serial=4,
    commit="c" * 40,
    outcome="failed",
    errors=("start web-1 on gpu01: the policy allows vllm",),
    models=(
        ModelRow(name="chat", served_name="chat", wanted=1, ready=0, placed=1),
        ModelRow(name="web", served_name="web", wanted=2, ready=1, placed=1),
    ),
)


def test_why_a_model_has_no_replica_is_told_with_what_to_do() -> None:
    text = render.status_text(SHORT)
    assert "    last pass: start web-1 on gpu01: the policy allows vllm\n" in text
    assert "    not placed: web: `llmgw plan` says where" in text


def test_nothing_is_told_of_models_that_are_placed_held_or_being_applied() -> None:
    held = tuple(replace(row, placed=0, held="it does not start") for row in SHORT.models)
    placed = tuple(replace(row, placed=row.wanted) for row in SHORT.models)
    for quiet in (
        replace(SHORT, models=held),
        replace(SHORT, models=placed),
        replace(SHORT, holder="ann@desk"),
    ):
        assert "not placed" not in render.status_text(quiet)
        assert "last pass: " not in render.status_text(quiet)
