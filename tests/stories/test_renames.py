"""A node gets another name: its agent is told, its engines never notice."""

import pytest

from tests.stories.stage import Stage, model, node

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def _node(stage: Stage, name: str, renamed_from: str = "") -> str:
    notes = f', annotations: {{"llmgw/renamed-from": {renamed_from}}}' if renamed_from else ""
    return node(stage).replace("{name: here}", f"{{name: {name}{notes}}}")


def test_a_renamed_node_keeps_its_engines(stage: Stage) -> None:
    stage.commit("Serve chat", node=_node(stage, "here"), chat=model())
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    engines, (before,) = {it.pid for it in stage.engines()}, stage.agents()
    stage.say("The machine gets another name, with a slip of the keyboard in its work directory.")
    moved = _node(stage, "desk", "here").replace(str(stage.work), f"{stage.work}2")
    stage.commit("Call it desk", node=moved)
    assert stage.llmgw("apply", "--yes").code != 0
    assert stage.agents() == [before], "a second agent was started"
    stage.commit("Leave it where it is", node=_node(stage, "desk", "here"))
    stage.llmgw("plan")
    assert stage.llmgw("apply", "--yes").code == 0
    assert {it.pid for it in stage.engines()} == engines
    (after,) = stage.agents()
    assert after.pid != before.pid, "the agent was not told its new name"
    stage.say("The annotation may stay, and may go.")
    assert stage.llmgw("plan", "--detailed-exitcode").code == 0
    stage.commit("The old name is past", node=_node(stage, "desk"))
    assert stage.llmgw("plan", "--detailed-exitcode").code == 0
    stage.llmgw("status")
    stage.golden("renames")
