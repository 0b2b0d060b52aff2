"""Over real sshd, on two machines: a node's checkup, what its own people forbid, and what somebody does there by hand."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_node_commands import Desk
from tests.rig.host import Host
from tests.rig.options import Options
from tests.rig.rig import Rig, require_rig

pytestmark = pytest.mark.slow
POLICY = "/etc/llmgw/agent.yaml"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    require_rig("that a node is examined, and that its own people have the last word, over real sshd")
    with Rig(tmp_path_factory.mktemp("doctor"), hosts=[Options(), Options()]) as made:
        yield made


@pytest.mark.timeout(300)
def test_a_node_is_examined_forbids_and_is_changed_by_hand(rig: Rig, tmp_path: Path) -> None:
    desk = Desk(rig=rig, folder=tmp_path).start()
    one, two = rig.hosts
    _a_bare_machine_is_told_from_outside(desk, one)
    desk.add(two).well()
    desk.llmgw("apply", "--yes").well()
    rows = json.loads(desk.llmgw("node", "list", "--json").well().out)["nodes"]
    here = next(row["name"] for row in rows if row["shards"])
    host = one if here == "node1" else two
    shard = json.loads(desk.llmgw("node", "show", here, "--json").well().out)["shards"][0]["shard"]

    _everything_is_looked_at(desk, host, here, shard)
    _what_is_stopped_by_hand_is_drift_and_put_right(desk, host, here, shard)
    _a_policy_keeps_work_away(desk, host, here, shard)


def _a_bare_machine_is_told_from_outside(desk: Desk, host: Host) -> None:
    desk.add(host).well()
    bare = desk.llmgw("node", "doctor", "node1")
    assert bare.code == 1
    assert "fail  agent version" in bare.out
    assert "shared memory" in bare.out


def _everything_is_looked_at(desk: Desk, host: Host, here: str, shard: str) -> None:
    checked = desk.llmgw("node", "doctor", here)
    assert checked.code in (0, 1), checked.err
    lines = {
        line.split()[1]: line for line in checked.out.splitlines() if line[:4] in ("ok  ", "warn", "fail")
    }
    assert lines["host"].startswith("ok    host key")
    other = "node2" if here == "node1" else "node1"
    assert f"{shard} (sim), asked by {other} without its key: /v1/models is refused" in checked.out
    assert f"reached from {other}" in checked.out
    told = json.loads(desk.llmgw("node", "doctor", here, "--json").out)
    assert {check["level"] for check in told["checks"] if check["name"] == "as in Git"} == {"ok"}
    agent = next(check for check in told["checks"] if check["name"] == "agent version")
    assert "1 other agent asked" in agent["text"]
    assert host.must("readlink", "/usr/local/bin/llmgw-agent").startswith("/var/lib/llmgw-agent/current/")
    assert "/var/lib/llmgw-agent/current/bin/llmgw-agent" in desk.llmgw("node", "show", here).well().out
    on_it = json.loads(host.exec("llmgw-agent", "doctor", "--json").out)["checks"]
    assert [
        check for check in on_it if check["name"] in ("socket", "directories", "engine user", "orders")
    ] == [
        check
        for check in told["checks"]
        if check["name"] in ("socket", "directories", "engine user", "orders")
    ]
    assert all(check["level"] == "ok" for check in on_it if check["name"] in ("socket", "directories"))


def _what_is_stopped_by_hand_is_drift_and_put_right(desk: Desk, host: Host, here: str, shard: str) -> None:
    assert shard in host.must("llmgw-agent", "inventory")
    host.exec("env", "SUDO_USER=ann", "llmgw-agent", "stop", shard)
    told = f"stopped by hand on {here} by ann at "
    plan = desk.llmgw("plan").well().out
    assert told in plan.partition("Changed outside of llmgw:")[2].partition("Legend")[0]
    assert told in desk.llmgw("status").well().out
    desk.llmgw("apply", "--yes").well()
    assert "stopped by hand" not in desk.llmgw("status").well().out
    assert "ready" in host.must("llmgw-agent", "status")
    assert "by ann" in desk.git("log", "--format=%B", "llmgw/state")


def _an_agent_that_is_dead_is_gone_past(desk: Desk, host: Host, here: str) -> None:
    (agent,) = [str(pid) for pid, args in host.processes().items() if " daemon " in args]
    host.must("kill", "-9", agent)
    dead = desk.llmgw("node", "doctor", here)
    assert dead.code == 1
    assert "no agent answers in /var/lib/llmgw-agent" in dead.out
    assert "ok    directories" in dead.out


def _a_policy_keeps_work_away(desk: Desk, host: Host, here: str, shard: str) -> None:
    host.write(POLICY, "# who may run what\nengines: [vllm]\nusers: [llmgw-engine]\n")
    host.must("llmgw-agent", "stop", shard)
    refused = host.exec("llmgw-agent", "start", shard)
    assert f"{POLICY}:2: the machine's policy allows vllm in `engines`, not engine sim" in refused.err
    # The plan knows, and goes elsewhere rather than fail.
    assert f"{POLICY}:2" in desk.llmgw("plan").well().out
    desk.llmgw("apply", "--yes").well()
    rows = json.loads(desk.llmgw("node", "list", "--json").well().out)["nodes"]
    assert [row["shards"] for row in rows if row["name"] != here] == [1]
    host.write(POLICY, "engines: vllm\n")
    broken = desk.llmgw("node", "doctor", here)
    assert broken.code == 1
    assert f"{POLICY}:1: a list is wanted" in broken.out
    host.must("rm", POLICY)
    _an_agent_that_is_dead_is_gone_past(desk, host, here)
    desk.llmgw("node", "bootstrap", here).well()
    assert desk.llmgw("status").well().out.count(POLICY) == 0
