"""A new version that does not work, and the one that mends it; two models that roll without waiting for each other."""

import pytest

from tests.stories.stage import Stage, model, node

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FAILS = "  startupTimeout: 2s\n  restart: {giveUpAfter: 1}\n"
SLOWER = '"--token-delay", "0.01"'
NEVER = '"--never-ready"'


def test_a_failed_rollout_is_held_and_the_next_version_tried(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model(profile=FAILS))
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    (before,) = stage.engines()
    stage.commit("A flag that is wrong", chat=model(args=NEVER, profile=FAILS))
    assert stage.llmgw("apply", "--yes", golden=False).code == 5
    stage.say("the old one serves on; who broke it, and what it wrote")
    stage.llmgw("status")
    stage.llmgw("plan")
    assert [it.pid for it in stage.engines()] == [before.pid]
    stage.commit("The right flag", chat=model(args=SLOWER, profile=FAILS))
    assert stage.llmgw("apply", "--yes").code == 0
    (after,) = stage.engines()
    assert after.pid != before.pid
    assert "held" not in stage.llmgw("status", golden=False).out
    stage.golden("held-then-mended")


def test_one_model_that_fails_does_not_hold_up_another(stage: Stage) -> None:
    stage.commit("Serve two", node=node(stage), chat=model(profile=FAILS), code=model("code", profile=FAILS))
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    before = {it.pid for it in stage.engines()}
    stage.commit(
        "Change both",
        chat=model(args=NEVER, profile=FAILS),
        code=model("code", args=SLOWER, profile=FAILS),
    )
    assert stage.llmgw("plan").code == 0
    assert stage.llmgw("apply", "--yes", golden=False).code == 5
    now = {it.pid for it in stage.engines()}
    assert len(now) == 2
    assert len(now & before) == 1, "code has rolled, and chat's old replica serves on"
    told = stage.llmgw("status", golden=False).out
    assert "chat   1/1    chat       held: " in told
    assert "code   1/1    code\n" in told
    stage.golden("two-rollouts")
