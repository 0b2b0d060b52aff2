"""Machines that are cut off while an apply is at work on them: the others are served, the record says what nobody knows, and the
next apply after the cable is back finishes it."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.agent.discovery import smi
from tests.e2e.sshroad import SshRoad, agents, engines, processes
from tests.rig.host import Host, wait_for
from tests.rig.rig import CONTROLLER, Rig, require_rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

WORK = "/var/lib/llmgw-agent"
SMI = """\
#!/bin/sh
# A driver that knows of one GPU, which nobody uses.
case "$*" in *-x*) exec cat /usr/local/share/smi.xml ;; *query-compute-apps*) exit 0 ;; esac
for word in "$@"; do
  case $word in --query-gpu=*) fields=${word#*=} ;; esac
done
for field in $(echo "$fields" | tr , ' '); do
  case $field in
    index) is=0 ;; uuid) is=GPU-$(hostname) ;; name) is='NVIDIA L40S' ;;
    memory.total) is=46068 ;; memory.used) is=0 ;; memory.free) is=46068 ;;
    pci.bus_id) is=00000000:19:00.0 ;; compute_cap) is=8.9 ;; driver_version) is=590.48.01 ;; *) is='[N/A]' ;;
  esac
  line="${line:+$line, }$is"
done
echo "$line"
"""


def add_gpu(host: Host) -> None:
    memory = ("46068 MiB", "0 MiB", "46068 MiB")
    told = smi.report(smi.gpu(uuid=f"GPU-{host.name}", name="NVIDIA L40S", memory=memory))
    host.write("/usr/local/share/smi.xml", told)
    host.fake("nvidia-smi", SMI)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    require_rig("what becomes of machines that are cut off in the middle of an apply")
    with Rig(tmp_path_factory.mktemp("cut"), hosts=3) as made:
        for host in made.hosts:
            add_gpu(host)
        yield made


@pytest.fixture
def road(rig: Rig, tmp_path: Path) -> Iterator[SshRoad]:
    """Each test has a fleet of its own, on machines that are bare again."""
    made = SshRoad(rig, tmp_path / "road")
    made.write_profile(gpus={"perNode": 1})
    try:
        yield made
    finally:
        made.close()
        for host in rig.hosts:
            host.thaw()
            host.heal()
            bare_again(host)


def bare_again(host: Host) -> None:
    def ours() -> list[int]:
        return [pid for pid, words in processes(host).items() if any(WORK in word for word in words)]

    def ended() -> bool:
        """An agent that dies last may have started something."""
        for pid in ours():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not ours()

    wait_for(f"nothing of an agent on {host.name}", ended)
    host.must("sh", "-c", f"rm -rf {WORK}; update-rc.d -f llmgw-agent remove; rm -f /etc/init.d/llmgw-agent")


def serving(road: SshRoad, model: str) -> dict[str, set[int]]:
    """Engines of a model, by host."""
    found = {host.name: set(engines(host, model)) for host in road.hosts}
    return {name: pids for name, pids in found.items() if pids}


def test_machines_that_are_cut_off_hold_up_nobody_and_nothing_takes_their_place(
    rig: Rig, road: SshRoad
) -> None:
    one, two, _ = rig.hosts
    road.write_model("chat", replicas=2, placement={"nodes": [one.name, two.name], "spread": "node"})
    road.commit("Serve chat on two machines")
    road.hold_next_intent()
    applying = road.start("apply", "--yes")
    road.wait_until_held()
    two.cut()  # between intent and first command
    road.let_go()
    cut = road.end(applying, "apply", expect=5)
    assert "no answer in 5 s" in cut.err
    assert list(serving(road, "chat")) == [one.name]
    assert [endpoint["address"] for endpoint in road.endpoints()] == [one.address]
    assert any("not: start the agent on node2" in subject for subject in road.state())
    two.heal()
    first = serving(road, "chat")[one.name]
    road.llmgw("apply", "--yes")
    assert serving(road, "chat")[one.name] == first
    assert set(serving(road, "chat")) == {one.name, two.name}

    cut_in_the_middle(road, two)
    nothing_in_its_place(road, two)
    frozen_before_the_answer(road, two)


def cut_in_the_middle(road: SshRoad, host: Host) -> None:
    """As its engine loads: the command was obeyed, and nobody can see what came of it."""
    road.write_profile("slow", args=["--load-seconds", "3"])
    road.write_model("talk", profile="slow", replicas=3, placement={"spread": "node"})
    road.commit("Serve talk everywhere")
    applying = road.start("apply", "--yes")
    wait_for("its engine", lambda: bool(engines(host, "talk")), within=60)
    host.cut()
    road.end(applying, "apply", expect=5)
    assert len(serving(road, "talk")) == 3
    assert {endpoint["address"] for endpoint in road.endpoints() if endpoint["model"] == "talk"} == {
        other.address for other in road.hosts if other is not host
    }
    unknown = [row for row in road.status() if row["state"] == "unknown"]
    assert [(row["model"], row["nodes"]) for row in unknown] == [("chat", [host.name]), ("talk", [host.name])]


def nothing_in_its_place(road: SshRoad, host: Host) -> None:
    """One GPU is free, and the one of the machine that is gone is not."""
    before = {pid for model in ("chat", "talk") for pid in engines(host, model)}
    road.write_model("greedy", replicas=2)
    road.commit("Two more that want a GPU")
    blocked = road.llmgw("apply", "--yes", expect=5)
    assert f"not on {host.name}: can't be reached" in blocked
    assert "nothing takes its place" in blocked
    assert {name: len(pids) for name, pids in serving(road, "greedy").items()} == {"node3": 1}
    assert len(serving(road, "chat")) == 2
    road.write_model("greedy")
    road.commit("One of them will do")
    host.heal()
    road.llmgw("apply", "--yes")
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode")
    assert {pid for model in ("chat", "talk") for pid in engines(host, model)} == before
    assert len(road.endpoints()) == 6


def frozen_before_the_answer(road: SshRoad, host: Host) -> None:
    """The command is sent, and no answer comes: the record says that nobody knows."""
    road.write_model(
        "late", profile="slow", replicas=2, placement={"nodes": ["node1", host.name], "spread": "node"}
    )
    road.commit("Serve late on two machines")
    road.hold_next_intent()
    applying = road.start("apply", "--yes")
    road.wait_until_held()
    host.freeze()
    road.let_go()
    frozen = road.end(applying, "apply", expect=5)
    assert "unknown" in frozen.err
    assert any(
        subject.endswith(f"not known: start 1 replica of late on {host.name}") for subject in road.state()
    )
    steps = road.last_pass()["steps"]
    assert [name for name, outcome in steps.items() if outcome == "unknown"] == [
        name for name in steps if name.startswith("start late-") and "-1.1-" in name
    ]
    host.thaw()
    road.llmgw("apply", "--yes")
    assert len(serving(road, "late")) == 2
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode")


def test_machines_that_are_cut_off_during_bootstrap_and_upload_are_mended_by_the_next_apply(
    rig: Rig, road: SshRoad
) -> None:
    one, uploading, switching = rig.hosts
    road.write_model("chat", replicas=3, placement={"spread": "node"})
    road.commit("Serve chat on three bare machines")
    with after_bytes(uploading, "400 kbytes"), once_unpacked(switching):
        cut = road.llmgw("apply", "--yes", expect=5)
    assert f"on {uploading.name}: unknown: " in cut
    assert list(serving(road, "chat")) == [one.name]
    assert agents_of(uploading) == []
    assert len(agents_of(switching)) == 1
    road.llmgw("apply", "--yes")
    assert len(serving(road, "chat")) == 3
    for host in rig.hosts:
        assert len(agents(host)) == 1
        assert len(agents_of(host)) == 1, f"something of the upload is left on {host.name}"
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode")


def agents_of(host: Host) -> list[str]:
    """What lies where agents are unpacked."""
    folder = host.folder / "disk" / "upper" / WORK.lstrip("/") / "agents"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@contextmanager
def after_bytes(host: Host, amount: str) -> Iterator[None]:
    """The line is dead once so much has come in: in the middle of the upload, which is larger."""
    with host.refusing(CONTROLLER, how=f"quota over {amount} drop", port=22):
        yield


@contextmanager
def once_unpacked(host: Host) -> Iterator[None]:
    """The cable is out as soon as the agent's files are there, before it is switched to and started."""
    over = threading.Event()

    def pull() -> None:
        folder = host.folder / "disk" / "upper" / WORK.lstrip("/") / "agents"
        while not over.is_set():
            if any(not path.name.startswith(".") for path in folder.glob("*")):
                host.cut()
                return
            time.sleep(0.002)

    thread = threading.Thread(target=pull, name="pulling the cable")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        host.heal()
