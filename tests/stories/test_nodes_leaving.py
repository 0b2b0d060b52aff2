"""Nodes that are drained, fall silent and come back, are wiped, leave Git, or are given up for lost."""

import json
import shutil
import signal
from contextlib import suppress

import psutil
import pytest

from llmgw.wire.doorway import SOCKET
from tests.stories.stage import PORTS, Stage, model, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HALF = PORTS // 2
FLEET = """apiVersion: llmgw/v1
kind: Fleet
metadata: {name: lab}
spec:
  unreachable: {grace: 2s}
"""


DRAIN = "  drain: true\n"
CORDON = "  cordon: true\n"


def node(stage: Stage, name: str, *, spec: str = "") -> str:
    """Of this machine, with an agent, a folder and ports of its own. ``spec`` is a line to add, indented by two."""
    first = stage.first_port + ("here", "there").index(name) * HALF
    return f"""apiVersion: llmgw/v1
kind: Node
metadata: {{name: {name}}}
spec:
  transport: local
  local: {{workDir: {stage.folder / name}}}
  ports: {{from: {first}, to: {first + HALF - 1}}}
{spec}"""


def begin(stage: Stage, *, there: str = "") -> None:
    """Chat runs on here. ``there`` is a line of the other node's manifest."""
    stage.git("config", "user.name", "Ann")
    stage.git("config", "user.email", "ann@example.org")
    nodes = {"here": node(stage, "here"), "there": node(stage, "there", spec=there)}
    stage.commit("Serve chat", fleet=FLEET, **nodes, chat=model())
    assert stage.llmgw("apply", "--yes", golden=False).code == 0


def cut_off(stage: Stage, name: str) -> None:
    """Its engines go on; its agent stands still, which would make itself reachable again, and the way to it is gone."""
    agent(stage, name).send_signal(signal.SIGSTOP)
    door = stage.folder / name / SOCKET
    door.rename(door.with_name("the-way"))
    door.symlink_to(door.name)


def reachable_again(stage: Stage, name: str) -> None:
    door = stage.folder / name / SOCKET
    door.unlink()
    door.with_name("the-way").rename(door)
    agent(stage, name).send_signal(signal.SIGCONT)


def agent(stage: Stage, name: str) -> psutil.Process:
    (found,) = [it for it in stage.agents() if str(stage.folder / name) in " ".join(it.cmdline())]
    return found


def on(stage: Stage) -> dict[str, list[str]]:
    """The nodes of what is ready, by model."""
    found: dict[str, list[str]] = {}
    for row in json.loads(stage.llmgw("status", "--json", golden=False).out)["replicas"]:
        if row["state"] == "ready":
            found.setdefault(row["model"], []).extend(row["nodes"])
    return found


def planned(stage: Stage, keyword: str) -> bool:
    changes = json.loads(stage.llmgw("plan", "--json", golden=False).out)["changes"]
    return keyword in {change["keyword"] for change in changes}


# Each of these is short: on a busy machine one command takes ten seconds.


def test_a_node_is_drained_the_new_replica_first_and_nothing_moves_back(stage: Stage) -> None:
    begin(stage)
    stage.say("here is to be empty, there has room")
    stage.commit("Drain here", here=node(stage, "here", spec=DRAIN))
    assert stage.llmgw("apply", "--yes").code == 0
    assert on(stage) == {"chat": ["there"]}
    stage.llmgw("node", "list")
    assert stage.llmgw("plan", "--detailed-exitcode").code == 0
    stage.say("it may be used again")
    stage.commit("Use here again", here=node(stage, "here"))
    assert stage.llmgw("plan", "--detailed-exitcode").code == 2
    stage.golden("node-drained")


def test_what_fits_nowhere_else_stays_on_the_node_that_is_drained(stage: Stage) -> None:
    begin(stage, there=CORDON)
    (before,) = stage.engines()
    stage.commit("Drain here", here=node(stage, "here", spec=DRAIN))
    assert stage.llmgw("apply", "--yes").code == 5
    stage.llmgw("node", "list")
    assert [it.pid for it in stage.engines()] == [before.pid]
    stage.golden("node-not-drained")


def test_a_node_that_is_silent_for_too_long_is_replaced_and_of_two_copies_the_older_goes(
    stage: Stage,
) -> None:
    begin(stage)
    cut_off(stage, "here")
    stage.say("here can't be reached any more; its engine goes on")
    assert stage.llmgw("apply", "--yes").code == 6
    until(lambda: planned(stage, "node-lost"), "the grace of 2 s to end", within=60)
    assert stage.llmgw("apply", "--yes").code == 5, "a node is still not reached"
    assert len(stage.engines()) == 2
    stage.llmgw("status")
    stage.say("here is back, with the older copy")
    reachable_again(stage, "here")
    assert stage.llmgw("apply", "--yes").code == 0
    assert on(stage) == {"chat": ["there"]}
    assert len(stage.engines()) == 1
    stage.golden("node-lost")


def test_when_nothing_can_be_reached_nothing_is_given_up(stage: Stage) -> None:
    begin(stage)
    (before,) = stage.engines()
    for name in ("here", "there"):
        cut_off(stage, name)
    assert stage.llmgw("apply", "--yes").code == 6
    row, _ = json.loads(stage.llmgw("node", "list", "--json", golden=False).out)["nodes"]
    assert row["unreachableSince"]
    assert "2 of 2 nodes are silent" in row["brake"]
    for name in ("here", "there"):
        reachable_again(stage, name)
    assert stage.llmgw("plan", "--detailed-exitcode").code == 0
    assert [it.pid for it in stage.engines()] == [before.pid]
    stage.golden("node-brake")


def test_a_node_that_was_wiped_gets_its_agent_and_its_replica_again_at_once(stage: Stage) -> None:
    begin(stage)
    mine = str(stage.folder / "here")
    for found in (stage.agents, stage.processes):  # agents first, so that they restart nothing
        for process in found():
            with suppress(psutil.Error):
                if mine in " ".join(process.cmdline()):
                    process.send_signal(signal.SIGKILL)
    until(
        lambda: not [it for it in stage.processes() if mine in " ".join(it.cmdline())],
        "the machine to be down",
    )
    shutil.rmtree(stage.folder / "here")
    stage.say("the machine was reinstalled: no agent, no engine, nothing on its disk")
    assert stage.llmgw("plan").code == 0
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    assert on(stage) == {"chat": ["here"]}
    assert len(stage.engines()) == 1
    stage.llmgw("history")
    stage.golden("node-wiped")


def test_a_node_leaves_git_while_something_runs_there(stage: Stage) -> None:
    begin(stage)
    stage.say("here is taken out of Git while chat runs there")
    stage.commit("Do without here", here=None)
    assert stage.llmgw("apply", "--yes").code == 0
    told = json.loads(stage.llmgw("status", "--json", golden=False).out)
    assert [(row["nodes"], row["state"]) for row in told["replicas"]] == [(["there"], "ready")]
    assert [row["name"] for row in told["nodes"]] == ["there"]
    assert len(stage.engines()) == 1
    stage.golden("node-left-git")


def test_a_machine_that_is_gone_is_given_up_and_told_to_stop_should_it_come_back(stage: Stage) -> None:
    begin(stage)
    stage.say("here is gone, and will not come back")
    cut_off(stage, "here")
    assert stage.llmgw("node", "remove", "here", "--yes").code == 1
    assert stage.llmgw("node", "remove", "here", "--lost", "--yes").code == 0
    assert on(stage) == {"chat": ["there"]}
    stage.llmgw("history")
    stage.say("somebody finds the machine after all")
    reachable_again(stage, "here")
    assert len(stage.engines()) == 2
    stage.commit("Here is here", here=node(stage, "here"))
    assert stage.llmgw("apply", "--yes").code == 0
    until(lambda: len(stage.engines()) == 1, "what was given up to end")
    assert on(stage) == {"chat": ["there"]}
    stage.golden("node-given-up")
