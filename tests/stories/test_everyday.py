"""What people do every day, word for word: first apply, nothing to do, scaling, replacing, removing."""

import pytest

from tests.stories.stage import Stage, model, node, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_from_a_first_commit_to_a_served_model(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    stage.llmgw("validate")
    assert stage.llmgw("plan").code == 0
    assert stage.llmgw("plan", "--detailed-exitcode", golden=False).code == 2
    assert stage.llmgw("apply", "--yes").code == 0
    assert stage.llmgw("status").code == 0
    stage.llmgw("endpoints")
    stage.llmgw("endpoints", "--env")
    assert stage.llmgw("apply", "--yes").code == 0
    assert stage.llmgw("plan", "--detailed-exitcode").code == 0
    stage.llmgw("history")
    stage.golden("first-apply")


def test_an_edit_that_was_not_committed_is_no_part_of_the_plan_and_is_told(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    (stage.fleet / "manifests" / "chat.yaml").write_text(model(replicas=2))
    ran = stage.llmgw("plan", golden=False)
    assert "not committed, so no part of this: manifests/chat.yaml. Commit it" in ran.err
    assert "not committed" not in stage.llmgw("plan", "--worktree", golden=False).err
    assert "not committed" not in stage.llmgw("plan", "--json", golden=False).out


def test_a_secret_that_is_not_there_is_told_with_the_plan_and_is_no_part_of_it(stage: Stage) -> None:
    """Three failed starts told it first."""
    stage.commit("Serve chat", node=node(stage), chat=model(spec="  env: {X: {fromEnv: NOPE}}\n"))
    ran = stage.llmgw("plan", golden=False)
    assert ran.code == 0
    assert "Note: model/chat needs the secret X where apply runs" in ran.err
    assert "fromEnv: NOPE: the variable is not set" in ran.err
    assert "NOPE" not in ran.out
    there = stage.llmgw("plan", golden=False, NOPE="canary")
    assert "NOPE" not in there.out + there.err
    assert "canary" not in there.out + there.err
    assert "NOPE" not in stage.llmgw("plan", "--offline", golden=False).err


def test_a_repository_whose_manifests_lie_elsewhere_is_told_how_to_name_them(stage: Stage) -> None:
    """`No changes` was all that was said."""
    stage.commit("Nothing here")
    ran = stage.llmgw("plan", golden=False)
    assert ran.code == 0
    assert "has no manifest of a node or a model where they are looked for" in ran.err
    ran = stage.llmgw("apply", "--yes", golden=False)
    assert "named by --path" in ran.err


def test_scaling_touches_only_what_is_new(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    stage.llmgw("apply", "--yes", golden=False)
    (before,) = stage.engines()
    stage.commit("Two of them", chat=model(replicas=2))
    assert stage.llmgw("plan").code == 0
    assert stage.llmgw("apply", "--yes").code == 0
    assert before.pid in {it.pid for it in stage.engines()}
    assert len(stage.engines()) == 2
    stage.commit("One is enough", chat=model(replicas=1))
    assert stage.llmgw("apply", "--yes").code == 0
    assert [it.pid for it in stage.engines()] == [before.pid]
    stage.llmgw("history")
    stage.golden("scale")


def test_a_changed_flag_creates_before_it_destroys(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    stage.llmgw("apply", "--yes", golden=False)
    stage.commit("Slower tokens", chat=model(args='"--token-delay", "0.01"'))
    assert stage.llmgw("plan").code == 0
    assert stage.llmgw("apply", "--yes").code == 0
    stage.llmgw("status")
    stage.llmgw("history")
    assert len(stage.engines()) == 1
    stage.golden("replace")


def test_a_removed_model_is_stopped_and_an_emptied_fleet_needs_permission(stage: Stage) -> None:
    stage.commit("Serve two", node=node(stage), chat=model(), code=model("code"))
    stage.llmgw("apply", "--yes", golden=False)
    stage.commit("Chat is enough", code=None)
    assert stage.llmgw("apply", "--yes").code == 0
    assert len(stage.engines()) == 1
    stage.commit("Nothing at all", chat=None)
    stage.llmgw("plan")
    assert stage.llmgw("apply", "--yes").code == 6
    assert len(stage.engines()) == 1, "an emptied fleet went on serving"
    assert stage.llmgw("apply", "--yes", "--allow-prune").code == 0
    assert not stage.engines()
    assert stage.llmgw("node", "stop-agent", "here").code == 0
    until(lambda: not stage.agents(), "the agent to end")
    stage.golden("remove")
