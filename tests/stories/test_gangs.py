"""A replica of two nodes, word for word and process by process: it lives and dies as a whole."""

import json
import signal
from typing import Any

import psutil
import pytest

from tests.stories.stage import PORTS, Stage, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HALF = PORTS // 2
NODES = ("here", "there")


def nodes(stage: Stage) -> dict[str, str]:
    """Two nodes of this machine, each with an agent, a folder and ports of its own."""
    texts = {}
    for number, name in enumerate(NODES):
        first = stage.first_port + number * HALF
        texts[name] = f"""apiVersion: llmgw/v1
kind: Node
metadata: {{name: {name}}}
spec:
  transport: local
  local: {{workDir: {stage.folder / name}}}
  ports: {{from: {first}, to: {first + HALF - 1}}}
"""
    return texts


def gang(
    *, args: str = "", replicas: int = 1, nodes: int = 2, surge: int = 1, give_up: int = 3, startup: int = 10
) -> str:
    return f"""apiVersion: llmgw/v1
kind: Profile
metadata: {{name: sim-pair}}
spec:
  engine: {{name: sim, version: "1"}}
  gpus: {{perNode: 0}}
  nodes: {nodes}
  args: [{args}]
  startupTimeout: {startup}s
  timeouts: {{stop: 5s, rendezvous: 10s, aliveGrace: 500ms, health: 500ms}}
  restart: {{backoff: 1s, giveUpAfter: {give_up}}}
---
apiVersion: llmgw/v1
kind: Model
metadata: {{name: chat}}
spec:
  profile: sim-pair
  source: {{path: /dev/null}}
  replicas: {replicas}
  rollout: {{drainTimeout: 5s, maxSurge: {surge}}}
"""


def engines(stage: Stage) -> dict[int, psutil.Process]:
    """Engines by rank; for stages with one gang."""
    return {_rank(process): process for process in stage.engines()}


def _rank(process: psutil.Process) -> int:
    words = process.cmdline()
    return int(words[words.index("--rank") + 1])


def replica(stage: Stage) -> dict[str, Any]:
    (row,) = json.loads(stage.llmgw("status", "--json", golden=False).out)["replicas"]
    found: dict[str, Any] = row
    return found


def test_a_gang_starts_on_two_nodes_and_is_one_endpoint(stage: Stage) -> None:
    stage.commit("Serve chat on two nodes", **nodes(stage), chat=gang())
    assert stage.llmgw("plan").code == 0
    assert stage.llmgw("apply", "--yes").code == 0
    assert set(engines(stage)) == {0, 1}
    stage.llmgw("status")
    stage.llmgw("endpoints")
    assert stage.llmgw("plan", "--detailed-exitcode").code == 0
    stage.llmgw("history")
    stage.golden("gang")


def test_a_killed_rank_takes_the_whole_replica_along_and_all_of_it_comes_back(stage: Stage) -> None:
    stage.commit("Serve chat on two nodes", **nodes(stage), chat=gang())
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    for placement, rank in enumerate((1, 0), start=2):
        before = engines(stage)
        before[rank].send_signal(signal.SIGKILL)
        until(lambda: "failed" in {it["state"] for it in replica(stage)["ranks"]}, "its agent to see it")
        if rank == 1:
            stage.say("the engine of rank 1 was killed")
            stage.llmgw("plan")
            stage.golden("gang-rank-lost")
        again = stage.llmgw("apply", "--yes", golden=False)
        assert again.code == 0, again.err
        after = engines(stage)
        assert set(after) == {0, 1}
        assert not {it.pid for it in before.values()} & {it.pid for it in after.values()}
        row = replica(stage)
        assert (row["state"], row["replica"].rpartition(".")[2]) == ("ready", str(placement))
    subjects = [it["subject"] for it in stage.trailers()]
    assert subjects.count("Stopped 1 replica of chat on here and there") == 2
    assert subjects.count("Started 1 replica of chat on here and there") == 3
    assert stage.llmgw("plan", "--detailed-exitcode", golden=False).code == 0
    stage.commit("Serve nobody", chat=None)
    assert stage.llmgw("apply", "--yes", "--allow-prune", golden=False).code == 0
    assert not stage.engines()
    assert not [it for it in stage.processes() if "shim" in " ".join(it.cmdline())]


def test_gangs_are_scaled_and_replaced_as_wholes(stage: Stage) -> None:
    stage.commit("Serve chat on two nodes", **nodes(stage), chat=gang())
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    first = {it.pid for it in stage.engines()}
    stage.commit("Two of them", chat=gang(replicas=2))
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    assert len(stage.engines()) == 4
    assert first < {it.pid for it in stage.engines()}, "what ran was restarted"
    stage.commit("One is enough", chat=gang())
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    assert {it.pid for it in stage.engines()} == first
    stage.commit("Slower tokens", chat=gang(args='"--token-delay", "0.01"'))
    assert "+/- model/chat/0" in stage.llmgw("plan", golden=False).out
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    second = {it.pid for it in stage.engines()}
    assert len(second) == 2
    assert not first & second
    stage.commit("Never two at once", chat=gang(args='"--token-delay", "0.02"', surge=0))
    assert "-/+ model/chat/0" in stage.llmgw("plan", golden=False).out
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    assert len(stage.engines()) == 2
    assert not second & {it.pid for it in stage.engines()}
    assert replica(stage)["state"] == "ready"


def test_a_gang_that_never_gets_ready_is_tried_again_then_held_and_frees_both_nodes(stage: Stage) -> None:
    stage.commit("Serve chat on two nodes", **nodes(stage), chat=gang(give_up=2, startup=3))
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    served = {it.pid for it in stage.engines()}
    stage.commit("A flag that is wrong", chat=gang(give_up=2, startup=3, args='"--never-ready"'))
    failed = stage.llmgw("apply", "--yes", golden=False)
    assert failed.code == 5
    assert "rank 0: not ready" in failed.err
    assert "rank 1 joined" in failed.err, "the output explains it"
    assert {it.pid for it in stage.engines()} == served, "what serves is left alone"
    starts = [it for it in stage.trailers() if it["subject"].startswith("Started 1 replica")]
    assert len(starts) == 3, "one that served, two attempts"
    assert stage.llmgw("apply", "--yes", golden=False).code == 6
