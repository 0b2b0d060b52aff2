"""What must never be stopped by mistake, what is left alone on purpose, and a record that was lost or set back."""

import json

import pytest

from tests.stories.stage import Stage, model, node, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROTECTED = "  protect: true\n"
NO_PRUNE = """apiVersion: llmgw/v1
kind: Fleet
metadata: {name: lab}
spec: {prune: {enabled: false}}
"""


def pids(stage: Stage) -> set[int]:
    return {engine.pid for engine in stage.engines()}


def test_nothing_is_stopped_by_a_commit_that_nobody_can_have_meant(stage: Stage) -> None:
    stage.commit(
        "Serve four",
        node=node(stage),
        chat=model("chat", spec=PROTECTED),
        code=model("code"),
        embed=model("embed"),
        note=model("note"),
    )
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    before = pids(stage)
    assert len(before) == 4
    stage.say("three of four models are removed at once")
    stage.commit("Tidy up", code=None, embed=None, note=None)
    assert stage.llmgw("apply", "--yes").code == 6
    stage.say("all of them")
    stage.commit("Tidy up more", chat=None)
    assert stage.llmgw("apply", "--yes").code == 6
    stage.git("reset", "--quiet", "--hard", "HEAD~2")
    stage.say("the folder of the manifests is not there, or the branch")
    assert stage.llmgw("apply", "--yes", "--path", "manifestos").code == 1
    assert stage.llmgw("apply", "--yes", "--branch", "gone").code == 1
    stage.say("a file that can't be read")
    stage.commit("A slip of the keyboard", code="apiVersion: llmgw/v1\nkind: Model\n  metadata: [\n")
    assert stage.llmgw("apply", "--yes").code == 1
    stage.say("a protected model is removed")
    stage.commit("Repair it; chat is not needed any more", code=model("code"), chat=None)
    assert stage.llmgw("apply", "--yes", "--allow-prune").code == 6
    stage.say("pruning is switched off")
    stage.commit("Keep what runs", chat=model("chat", spec=PROTECTED), fleet=NO_PRUNE, note=None)
    assert stage.llmgw("apply", "--yes", "--allow-prune").code == 6
    assert pids(stage) == before
    stage.say("one model of four may go")
    stage.commit("Prune again", fleet=None)
    assert stage.llmgw("apply", "--yes").code == 0
    assert len(pids(stage) & before) == 3
    stage.golden("prune")


def test_what_is_forgotten_runs_on_and_is_managed_again(stage: Stage) -> None:
    stage.commit("Serve chat and code", node=node(stage), chat=model(), code=model("code"))
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    before = pids(stage)
    unknown = stage.llmgw("forget", "model/cod", golden=False)
    assert unknown.code == 1
    assert "nothing that is managed here is called model/cod" in unknown.err
    asked = stage.llmgw("forget", "model/code", golden=False)
    assert asked.code == 64
    assert "there is no terminal to ask on: give --yes" in asked.err
    assert stage.llmgw("forget", "model/code", "--why", "handed over to ben", "--yes").code == 0
    stage.commit("Without code", code=None)
    assert stage.llmgw("apply", "--yes").code == 0
    assert stage.llmgw("plan", "--detailed-exitcode", golden=False).code == 0
    assert pids(stage) == before
    stage.llmgw("status")
    stage.llmgw("endpoints", golden=False)
    stage.say("it is only managed again as what Git asks for")
    assert stage.llmgw("adopt", "code", "--yes").code == 1
    stage.commit("Another code", code=model("code", args='"--token-delay", "1"'))
    assert stage.llmgw("adopt", "code", "--yes").code == 1
    stage.commit("As it was", code=model("code"))
    adopted = stage.llmgw("adopt", "code", "--yes", "--json", golden=False)
    assert adopted.code == 0, adopted.err
    assert [name.rpartition("-")[2] for name in json.loads(adopted.out)["adopted"]] == ["0.1"]
    assert stage.llmgw("plan", "--detailed-exitcode").code == 0
    assert pids(stage) == before
    assert stage.llmgw("endpoints", golden=False).out.count("ready") == 2
    told = stage.llmgw("history", golden=False).out
    assert "as forgotten: handed over to ben" in told
    assert "as managed again" in told
    stage.golden("forgotten")


def test_a_record_that_was_set_back_is_rebuilt_and_what_it_does_not_know_is_stopped_on_request(
    stage: Stage,
) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    old = stage.git("rev-parse", "llmgw/state").strip()
    stage.commit("Two of them, and code", chat=model(replicas=2), code=model("code"))
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    before = pids(stage)
    assert len(before) == 3
    stage.git("update-ref", "refs/heads/llmgw/state", old)
    stage.say("somebody has pushed an older state branch by force")
    stage.llmgw("plan")
    stage.commit("Without code", code=None)
    assert stage.llmgw("recover", "--yes").code == 5
    stage.llmgw("plan")
    assert pids(stage) == before
    assert stage.llmgw("apply", "--yes", "--prune-unrecorded").code == 0
    until(lambda: len(pids(stage)) == 2, "code to stop")
    assert pids(stage) < before
    stage.golden("set-back")
