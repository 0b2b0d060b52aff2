"""Two models and one GPU: the one of lower priority makes room, waits, and comes back by itself."""

import pytest

from tests.stories.stage import Stage, gpu_node, model, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LOW, HIGH = "  priority: 10\n", "  priority: 200\n"


def served(stage: Stage) -> str:
    return stage.llmgw("endpoints", golden=False).out


def test_a_model_of_lower_priority_makes_room_and_comes_back(stage: Stage) -> None:
    batch = model("batch", gpus=1, spec=LOW)
    stage.commit("Serve batch", node=gpu_node(stage, 1), batch=batch)
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    stage.commit("Chat is more important", chat=model(gpus=1, spec=HIGH))
    assert stage.llmgw("plan").code == 0
    assert stage.llmgw("apply", "--yes").code == 5
    until(lambda: "chat" in served(stage), "chat to be published")
    assert "batch" not in served(stage)
    stage.llmgw("status")
    stage.say("nothing goes to and fro")
    (before,) = stage.engines()
    assert stage.llmgw("apply", "--yes").code == 6
    assert [it.pid for it in stage.engines()] == [before.pid]
    stage.commit("Chat is not needed any more", chat=None)
    assert stage.llmgw("apply", "--yes").code == 0
    assert "batch" in served(stage)
    assert stage.llmgw("plan", "--detailed-exitcode").code == 0
    stage.llmgw("history")
    stage.golden("priority")


def test_a_protected_model_makes_room_for_nobody(stage: Stage) -> None:
    kept = model("batch", gpus=1, spec=f"{LOW}  protect: true\n")
    stage.commit("Serve batch", node=gpu_node(stage, 1), batch=kept)
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    (before,) = stage.engines()
    stage.commit("Chat is more important", chat=model(gpus=1, spec=HIGH))
    ran = stage.llmgw("apply", "--yes", golden=False)
    assert ran.code == 6
    assert "no node of pool default has room for it" in ran.err
    assert [it.pid for it in stage.engines()] == [before.pid]
