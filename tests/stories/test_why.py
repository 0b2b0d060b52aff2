"""Why is it there? From a process, a GPU's holder or a name to the file, the line, the commit and the person."""

import json
from contextlib import suppress

import psutil
import pytest

from tests.stories.stage import PORTS, Stage, model, node, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CHILDREN = '"--leave-children", "1", "--child-style", "double-fork"'
SLOWER, SLOWEST = '"--token-delay", "0.001"', '"--token-delay", "0.002"'


def _model(name: str = "chat", *, args: str, renamed_from: str = "") -> str:
    text = model(name, args=f"{CHILDREN}, {args}" if args else CHILDREN, spec="  servedName: chat\n")
    if renamed_from:
        note = f'metadata: {{name: {name}, annotations: {{"llmgw/renamed-from": {renamed_from}}}}}'
        text = text.replace(f"kind: Model\nmetadata: {{name: {name}}}", f"kind: Model\n{note}")
    return text


def _as_ben(stage: Stage, message: str, **files: str | None) -> str:
    stage.commit(message, **files)
    stage.git("commit", "--quiet", "--amend", "--no-edit", "--author", "Ben <ben@example.org>")
    return stage.git("rev-parse", "HEAD").strip()


def _left_by_a_child(stage: Stage) -> psutil.Process | None:
    """A process that a child of the engine left, and that has neither of them for a parent. It looks like the engine."""
    found = sorted(stage.engines(), key=lambda it: it.pid)
    engine, left = found[0], found[-1]
    with suppress(psutil.Error):
        return left if len(found) == 2 and left.ppid() != engine.pid else None
    return None


def test_a_process_leads_to_its_line_commit_and_author_after_a_rename_two_rollouts_and_a_move(
    stage: Stage,
) -> None:
    last = stage.first_port + PORTS - 1
    here = node(stage).replace(f"to: {last}", f"to: {stage.first_port + 5}")
    there = node(stage, name="there").replace(f"from: {stage.first_port}", f"from: {stage.first_port + 6}")
    stage.commit("Serve chat", node=here, chat=_model(args=""))
    stage.llmgw("apply", "--yes", golden=False)
    stage.commit("Call it talk", chat=_model("talk", args="", renamed_from="chat"), there=there)
    stage.llmgw("apply", "--yes", golden=False)
    stage.commit("Slower", chat=_model("talk", args=SLOWER, renamed_from="chat"))
    stage.llmgw("apply", "--yes", golden=False)
    wrote = _as_ben(stage, "Slower still", chat=_model("talk", args=SLOWEST, renamed_from="chat"))
    stage.llmgw("apply", "--yes", golden=False)
    stage.commit("Empty the first node", node=here + "  drain: true\n")
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    stage.commit("Something else", notes="# nothing yet\n")
    stage.llmgw("apply", "--yes", golden=False)
    left: psutil.Process = until(lambda: _left_by_a_child(stage), "what the engine's child leaves")
    told = json.loads(stage.llmgw("why", f"there:{left.pid}", "--json", golden=False).out)
    assert f"pid {left.pid} (" in told["process"]
    (found,) = told["why"]
    assert found["name"] == "model/talk/0"
    assert found["asked"]["commit"] == wrote
    assert found["asked"]["author"] == "Ben <ben@example.org>"
    assert found["asked"]["line"] == "manifests/chat.yaml:8"
    assert found["asked"]["where"].startswith("manifests/chat.yaml:11")
    assert found["history"][-1]["serial"] == "1", "the rename hid what came before it"
    by_name = json.loads(stage.llmgw("why", "model/talk/0", "--json", golden=False).out)
    assert by_name["why"] == told["why"]
    (asked,) = (
        it["name"] for it in json.loads(stage.llmgw("why", "talk/0", "--json", golden=False).out)["why"]
    )
    assert asked == "model/talk/0"
    ran = stage.llmgw("why", "talk")
    assert "by commit" in ran.out
    stage.llmgw("why", "node/there")
    for absent in ("model/talk/5", "talk/0.99"):
        refused = stage.llmgw("why", absent)
        assert (refused.code, refused.out) == (1, "")
    stage.golden("why")


def test_what_is_not_of_the_fleet_is_said_to_be(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    stage.llmgw("apply", "--yes", golden=False)
    (agent,) = stage.agents()
    ran = stage.llmgw("why", f"here:{agent.pid}", golden=False)
    assert ran.code == 0
    assert "belongs to no replica of this fleet" in ran.out
    assert "nothing is called chta: name a model (chat)" in stage.llmgw("why", "chta", golden=False).err
    assert "no node is called there: there is: here" in stage.llmgw("why", "there:1", golden=False).err
    assert "has no GPU GPU-1" in stage.llmgw("why", "here:GPU-1", golden=False).err
