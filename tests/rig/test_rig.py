"""The rig is what it says: hosts apart from each other and from this machine, gone without a trace, and several at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.rig import namespaces
from tests.rig.host import CHECKOUT, wait_for
from tests.rig.options import Options, User
from tests.rig.rig import Rig, require_rig

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _possible() -> None:
    require_rig("that tests over SSH have hosts of their own")


def test_hosts_share_nothing_that_they_write_and_their_disks_outlive_a_power_cut(tmp_path: Path) -> None:
    with Rig(tmp_path, hosts=[Options(users=(User(name="ann"),)), Options()]) as rig:
        one, two = rig.hosts
        one.write("/etc/mine", "x")
        one.write("/run/mine", "x")
        one.hide("sudo", "python3*")
        assert [one.must("hostname"), two.must("hostname")] == ["node1\n", "node2\n"]
        assert one.host_key != two.host_key
        assert [one.exists("/etc/mine"), two.exists("/etc/mine"), Path("/etc/mine").exists()] == [
            True,
            False,
            False,
        ]
        assert one.exec("sh", "-c", "command -v python3").code != 0
        assert two.exec("sh", "-c", "command -v python3").code == 0
        assert two.exec("id", "ann").code != 0
        boot = one.read("/proc/sys/kernel/random/boot_id")
        one.must("sh", "-c", "setsid sleep 1000 </dev/null >/dev/null 2>&1 &")
        wait_for("the sleeper to run", lambda: "sleep 1000" in one.processes().values())
        assert "sleep 1000" not in two.processes().values()
        one.power_cycle()
        assert one.processes() == {}
        assert [one.exists("/etc/mine"), one.exists("/run/mine")] == [True, False]
        assert one.exec("id", "ann").code == 0
        assert one.read("/proc/sys/kernel/random/boot_id") != boot
        # What the tests run from is not there: a node that works does so by itself.
        assert (
            one.exec("ls", "-A", str(CHECKOUT)).out == ""
        )  # a checkout below /tmp is not even a folder there
        assert not one.exists(sys.executable)


def test_what_was_set_up_to_start_at_boot_does(tmp_path: Path) -> None:
    with Rig(tmp_path, hosts=1) as rig:
        host = rig.hosts[0]
        host.write("/etc/init.d/trial", '#!/bin/sh\n[ "$1" = start ] && touch /run/trial\n', mode=0o755)
        host.must("ln", "-s", "/etc/init.d/trial", "/etc/rc2.d/S01trial")
        host.write("/etc/rc.local", "#!/bin/sh\ntouch /run/local\n", mode=0o755)
        host.power_cycle()
        assert host.exists("/run/trial")
        assert host.exists("/run/local")


def test_two_rigs_at_once_have_the_same_addresses_and_do_not_meet(tmp_path: Path) -> None:
    with Rig(tmp_path, hosts=1) as first, Rig(tmp_path, hosts=1) as second:
        assert first.hosts[0].address == second.hosts[0].address
        for rig in (first, second):
            shown = rig.controller.run(["ssh-keyscan", "-t", "ed25519", rig.hosts[0].address]).stdout
            assert rig.hosts[0].host_key in shown
        first.hosts[0].cut()
        assert second.controller.run(["ssh-keyscan", "-T", "5", second.hosts[0].address]).stdout


def test_nothing_is_left_after_a_failure(tmp_path: Path) -> None:
    rig = Rig(tmp_path, hosts=2)

    def use() -> None:
        with rig:
            rig.hosts[0].freeze()
            rig.hosts[1].power_off()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use()
    assert namespaces.leftovers(rig.run_id, rig.folder) == ()


def test_a_run_that_is_killed_takes_its_hosts_with_it_and_the_next_one_clears_the_rest(
    tmp_path: Path,
) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tests.rig.rig import Rig\n"
        "rig = Rig(Path(sys.argv[1]), hosts=1).__enter__(); print(rig.run_id, flush=True); time.sleep(100)"
    )
    killed = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    )
    assert killed.stdout is not None
    run_id = killed.stdout.readline().strip()
    names = namespaces.ours(run_id)
    assert len(names) == 2
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    wait_for("the end of the hosts", lambda: not any(namespaces.pids(name) for name in names))
    deadline = time.monotonic() + 10
    while namespaces.ours(run_id):
        namespaces.remove_stale()
        assert time.monotonic() < deadline
