"""From bare machines to a served model over SSH, in one apply; and what a power cut leaves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sshroad import SshRoad
from tests.rig.host import wait_for
from tests.rig.options import Options, User
from tests.rig.rig import Rig, require_rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    require_rig("the road from bare machines to a served model over SSH")
    hosts = [Options(), Options(users=(User(name="ann", bashrc="echo WELCOME\n"),))]
    with Rig(tmp_path, hosts=hosts) as made:
        yield made


def test_bare_machines_serve_a_model_after_one_apply_and_again_after_a_power_cut(
    rig: Rig, tmp_path: Path
) -> None:
    road = SshRoad(rig, tmp_path / "road", ssh={"node2": {"user": "ann", "become": "sudo"}})
    road.write_model("chat", replicas=2, placement={"spread": "node"})
    road.commit("Serve chat on both machines")
    shown = road.llmgw("plan", "--detailed-exitcode", expect=2)
    assert "node1" in shown
    assert "known after bootstrap" not in shown  # the probe has told what they are
    road.llmgw("apply", "--yes")

    endpoints = road.endpoints()
    assert {one["address"] for one in endpoints} == {host.address for host in rig.hosts}
    for endpoint in endpoints:
        assert '"chat"' in road.ask(endpoint)
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode")

    # Nobody touches it: the boot starts the agent, and the agent starts what it holds an order for.
    rig.hosts[0].power_cycle()
    before = next(one for one in endpoints if one["address"] == rig.hosts[0].address)
    wait_for("the same replica at the same place", lambda: '"chat"' in road.answer(before))
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode")
