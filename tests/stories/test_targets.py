"""Changing one thing only, and new copies of what runs though nothing changed."""

import json

import pytest

from tests.stories.stage import Stage, model, node

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SLOWER = '"--token-delay", "0.01"'


def test_one_of_two_changed_models_is_applied_and_the_other_later(stage: Stage) -> None:
    stage.commit("Serve two", node=node(stage), chat=model(), code=model("code"))
    first = stage.git("rev-parse", "HEAD").strip()
    stage.llmgw("apply", "--yes", golden=False)
    before = {it.pid for it in stage.engines()}
    stage.commit("Slower tokens", chat=model(args=SLOWER), code=model("code", args=SLOWER))
    second = stage.git("rev-parse", "HEAD").strip()
    assert stage.llmgw("plan", "--target", "model/chat").code == 0
    assert stage.llmgw("apply", "--yes", "--target", "model/chat").code == 0
    assert len(before & {it.pid for it in stage.engines()}) == 1
    record = json.loads(stage.git("show", "llmgw/state:record.json"))
    assert (record["commit"], record["partial"]) == (first, second)
    stage.say("The other is still to be changed, and going back is still going back.")
    assert stage.llmgw("plan").code == 0
    assert stage.llmgw("apply", "--yes", "--commit", first, golden=False).code == 1
    assert stage.llmgw("plan", "--target", "model/chatt").code == 1
    assert stage.llmgw("plan", "--target", "chat").code == 64
    assert stage.llmgw("apply", "--yes").code == 0
    assert not before & {it.pid for it in stage.engines()}
    stage.golden("target")


def test_a_new_copy_is_made_of_what_runs_and_only_once(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    stage.llmgw("apply", "--yes", golden=False)
    (before,) = stage.engines()
    assert stage.llmgw("plan", "--replace", "model/chat").code == 0
    assert stage.llmgw("apply", "--yes", "--replace", "model/chat").code == 0
    (after,) = stage.engines()
    assert after.pid != before.pid
    assert stage.llmgw("apply", "--yes").code == 0
    assert [it.pid for it in stage.engines()] == [after.pid]
    assert {it["Llmgw-Replaced"] for it in stage.trailers() if "Llmgw-Replaced" in it} == {"model/chat"}
    stage.golden("replace-unchanged")
