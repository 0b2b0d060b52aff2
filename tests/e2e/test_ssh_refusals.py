"""Eight machines, six of which can't be used as they are: one apply serves on the others, and each error says what is wrong where and
what to do about it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sshroad import SshRoad, engines
from tests.rig.options import Options, User
from tests.rig.rig import Rig, require_rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

WORK = "/var/lib/llmgw-agent"
BANNER = "echo WELCOME to this machine\nsleep 0.2\necho mind the gap >&2\n"
OLD_PYTHON = '#!/bin/sh\necho "3.8 /usr/bin/python3"\n'


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    require_rig("what is said of machines that can't be used as they are")
    plain = Options()
    eve = Options(users=(User(name="eve", sudo="none"),))
    narrow = Options(max_sessions=2, users=(User(name="ann", bashrc=BANNER),))
    hosts = [plain, plain, plain, eve, plain, plain, plain, narrow]
    with Rig(tmp_path, hosts=hosts) as made:
        yield made


@pytest.fixture
def road(rig: Rig, tmp_path: Path) -> Iterator[SshRoad]:
    _, no_key, other_machine, no_sudo, old_python, full, foreign, narrow = rig.hosts
    old_python.hide("python3*")
    old_python.fake("python3", OLD_PYTHON)
    full.small_disk(WORK, "64m")
    theirs = SshRoad(rig, tmp_path / "theirs", hosts=[foreign])
    theirs.commit("A machine of another team")
    theirs.llmgw("apply", "--yes")

    made = SshRoad(rig, tmp_path / "road")
    made.write_node(no_key, identity={"fromFile": str(new_key(tmp_path / "another"))})
    public = new_key(tmp_path / "reinstalled").with_suffix(".pub").read_text().split()[:2]
    made.write_node(other_machine, hostKeys=[" ".join(public)])
    made.write_node(no_sudo, user="eve", become="sudo")
    made.write_node(narrow, user="ann", become="sudo")
    made.write_model("chat", replicas=2, placement={"nodes": ["node1", narrow.name], "spread": "node"})
    made.commit("Serve chat on the first and the last")
    yield made
    made.close()
    theirs.close()


def new_key(file: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True, timeout=30)
    return file


def fingerprint(file: Path) -> str:
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(file)], capture_output=True, text=True, check=True, timeout=30
    )
    return shown.stdout.split()[1]


def test_each_machine_that_can_not_be_used_is_explained_and_the_others_serve(
    rig: Rig, road: SshRoad, tmp_path: Path
) -> None:
    first, no_key, other_machine, no_sudo, old_python, full, foreign, narrow = rig.hosts
    shown = road.run("apply", "--yes", expect=5)
    told = shown.err

    for host, *words in (
        (no_key, "put that public key into ~root/.ssh/authorized_keys", fingerprint(tmp_path / "another")),
        (
            other_machine,
            other_machine.host_key,
            fingerprint(tmp_path / "reinstalled"),
            "manifests/node-node3.yaml:",
        ),
        (no_sudo, "eve@", "sudo wants a password of eve", "NOPASSWD"),
        (old_python, "Python 3.10 or newer is needed", "3.8", "apt install python3"),
        (full, WORK, "256 MiB are needed"),
        (foreign, "belongs to fleet", "llmgw node adopt"),
    ):
        lines = "\n".join(block for block in told.split("Error: ") if host.name in block)
        for word in words:
            assert word in lines, f"{host.name}: {word!r} is not told:\n{told}"
    assert "Traceback" not in told

    assert {endpoint["address"] for endpoint in road.endpoints()} == {first.address, narrow.address}
    assert all('"chat"' in road.ask(endpoint) for endpoint in road.endpoints())
    assert [host.name for host in rig.hosts if engines(host)] == [first.name, narrow.name]
    for host in (no_key, other_machine, no_sudo, old_python):
        assert not host.exists(WORK), f"{host.name} was changed"
    assert full.must("ls", "-A", WORK) == ""
