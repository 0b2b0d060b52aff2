"""A replica over two machines that are reached over SSH: it starts, ends and comes back as a whole."""

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.sshroad import SshRoad, engines
from tests.rig.rig import Rig, require_rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_gang_over_two_machines_loses_a_rank_and_comes_back_whole(tmp_path: Path) -> None:
    require_rig("that a replica over several machines works over SSH")
    with Rig(tmp_path, hosts=2) as rig:
        road = SshRoad(rig, tmp_path / "road")
        road.write_profile(nodes=2, restart={"backoff": "1s", "maxBackoff": "2s", "giveUpAfter": 6})
        road.write_model("chat", replicas=1)
        road.commit("Serve chat on two machines")
        road.llmgw("apply", "--yes")
        first = [set(engines(host, "chat")) for host in rig.hosts]
        assert [len(pids) for pids in first] == [1, 1]
        for pid in set.union(*first):
            own = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            assert b"GLOO_SOCKET_IFNAME=eth0" in own, "the interface that holds its host's address"
        (endpoint,) = road.endpoints()
        assert '"chat"' in road.ask(endpoint)

        leader = next(host for host in rig.hosts if host.address == endpoint["address"])
        other = next(host for host in rig.hosts if host is not leader)
        (pid,) = engines(other, "chat")
        os.kill(pid, signal.SIGKILL)
        road.llmgw("apply", "--yes")
        second = [set(engines(host, "chat")) for host in rig.hosts]
        assert [len(pids) for pids in second] == [1, 1]
        assert not any(old & new for old, new in zip(first, second, strict=True)), "a rank was left behind"
        (again,) = road.endpoints()
        assert again["replica"] != endpoint["replica"]
        assert '"chat"' in road.ask(again)
        assert "No changes" in road.llmgw("plan", "--detailed-exitcode")
        road.close()
