"""``llmgw node …`` as a person uses it: over real sshd, on machines that have nothing yet, and its refusals."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.cli.main import run
from llmgw.model.struct import Struct
from tests import forked
from tests.rig.host import Host
from tests.rig.options import Options, User
from tests.rig.rig import Rig, require_rig

CHECKOUT = Path(__file__).parents[2]
LLMGW = (sys.executable, "-m", "llmgw.cli.main")
MODEL = """\
apiVersion: llmgw/v1
kind: Profile
metadata: {name: sim}
spec:
  engine: {name: sim, version: "1"}
  gpus: {perNode: 0}
  memory: 64MiB
---
apiVersion: llmgw/v1
kind: Model
metadata: {name: chat}
spec:
  profile: sim
  source: {path: /etc/hostname}
  replicas: 1
  rollout: {drainTimeout: 5s}
"""
PERSON = {"GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "ann@example.org"}
PERSON |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in PERSON.items()}


class Ran(Struct):
    code: int
    out: str
    err: str

    def well(self) -> "Ran":
        assert self.code == 0, f"{self.code}\n{self.out}\n{self.err}"
        return self

    def refused(self, code: int = 1) -> str:
        assert self.code == code, f"{self.code}\n{self.out}\n{self.err}"
        return self.err


class Desk(Struct):
    """A person's machine in the rig's network, with a fleet in a repository."""

    rig: Rig
    folder: Path

    @property
    def fleet(self) -> Path:
        return self.folder / "fleet"

    @property
    def environ(self) -> dict[str, str]:
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.folder),
            "LLMGW_STATE_DIR": str(self.folder / "state"),
            "LLMGW_SECRET_FILE": str(self.folder / "secret"),
            "LLMGW_HOLDER": "ann@desk",
            "PYTHONPATH": str(CHECKOUT),
            "TERM": "dumb",
            **PERSON,
        }

    def start(self) -> "Desk":
        (self.fleet / "manifests").mkdir(parents=True)
        (self.fleet / "manifests" / "models.yaml").write_text(MODEL)
        self.git("init", "-q", "-b", "main")
        self.commit("Start")
        return self

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self.fleet, env=self.environ, capture_output=True, text=True, check=True
        )
        return done.stdout

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "-qm", message)

    def llmgw(self, *words: str) -> Ran:
        network = self.rig.controller.namespace
        done = forked.llmgw(*words, cwd=self.fleet, env=self.environ, timeout=240, network=network)
        return Ran(code=done.returncode, out=done.stdout, err=done.stderr)

    def typing(self, typed: str, *words: str) -> Ran:
        """With a terminal on which somebody types."""
        ours, theirs = pty.openpty()
        try:
            process = subprocess.Popen(
                self.rig.controller.command([*LLMGW, *words]),
                cwd=self.fleet,
                env=self.environ,
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            os.write(ours, typed.encode())
            out, err = process.communicate(timeout=120)
        finally:
            os.close(ours)
            os.close(theirs)
        return Ran(code=process.returncode, out=out, err=err)

    def add(self, host: Host, *words: str) -> Ran:
        return self.llmgw("node", "add", host.address, "--identity", str(host.identity), "--yes", *words)


def fingerprint(host: Host) -> str:
    file = host.folder / "etc" / f"key_{host.options.key_types[0]}.pub"
    done = subprocess.run(["ssh-keygen", "-lf", str(file)], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    require_rig("that nodes are added, set up, adopted and removed over real sshd")
    hosts = [
        Options(key_types=("ed25519", "rsa")),
        Options(users=(User(name="ops"), User(name="ann", sudo="none"))),
    ]
    with Rig(tmp_path_factory.mktemp("nodes"), hosts=hosts) as made:
        yield made


@pytest.fixture
def desk(rig: Rig, tmp_path: Path) -> Desk:
    return Desk(rig=rig, folder=tmp_path).start()


# ---- adding ----------------------------------------------------------------------------------------------


def test_a_machine_is_looked_at_written_down_and_committed_and_nothing_on_it_changes(desk: Desk) -> None:
    one, two = desk.rig.hosts
    (desk.fleet / "manifests" / "unrelated.txt").write_text("not mine to commit")
    before = one.must("find", "/etc", "/var/lib", "/root", "/home", "-newer", "/proc/1", "-type", "f")
    added = desk.add(one).well()
    assert before == one.must("find", "/etc", "/var/lib", "/root", "/home", "-newer", "/proc/1", "-type", "f")
    assert fingerprint(one) in added.err
    assert "ssh-rsa SHA256:" in added.err
    assert "Bootstrap has all it needs there." in added.out
    assert desk.git("show", "--format=%an: %s", "--name-only", "HEAD").split("\n", 1) == [
        f"Ann: Add node node1 ({one.address})",
        "\nmanifests/nodes/node1.yaml\n",
    ]
    text = (desk.fleet / "manifests" / "nodes" / "node1.yaml").read_text()
    assert all(key in text for key in one.host_keys)
    assert "PRIVATE" not in text
    desk.add(two, "--name", "gpu02", "--user", "ops", "--become", "sudo", "--pool", "big").well()
    desk.llmgw("validate").well()
    rows = json.loads(desk.llmgw("node", "list", "--json").well().out)["nodes"]
    assert [(row["name"], row["pool"], row["reach"]) for row in rows] == [
        ("gpu02", "big", "no-agent"),
        ("node1", "default", "no-agent"),
    ]


def test_adding_it_again_or_under_another_name_is_refused(desk: Desk) -> None:
    one, _ = desk.rig.hosts
    desk.add(one).well()
    assert "one machine is one node" in desk.add(one, "--name", "other").refused()
    # The same machine by another way is known by its key.
    manifest = desk.fleet / "manifests" / "nodes" / "node1.yaml"
    manifest.write_text(manifest.read_text().replace(one.address, "10.77.0.99"))
    desk.commit("Moved")
    assert "same machine under another name" in desk.add(one, "--name", "other").refused()
    assert desk.git("status", "--porcelain") == ""


def test_a_person_is_asked_whether_the_key_is_right_and_may_say_no(desk: Desk) -> None:
    one, _ = desk.rig.hosts
    words = ("node", "add", one.address, "--identity", str(one.identity))
    refused = desk.typing("n\n", *words)
    assert refused.code == 1
    assert fingerprint(one) in refused.err
    assert "Nothing was done." in refused.err
    assert not (desk.fleet / "manifests" / "nodes").exists()
    unasked = desk.llmgw(*words).refused(64)
    assert fingerprint(one) in unasked
    assert "no terminal to ask on: give --host-key" in unasked
    agreed = desk.typing("y\ny\n", *words).well()
    assert "Committed manifests/nodes/node1.yaml" in agreed.out
    assert "reaches node1 there already" in desk.llmgw(*words).refused()


def test_unattended_only_the_key_that_is_known_will_do(desk: Desk) -> None:
    one, two = desk.rig.hosts
    assert "somebody else answers" in desk.add(one, "--host-key", fingerprint(two)).refused()
    desk.add(one, "--host-key", fingerprint(one)).well()
    text = (desk.fleet / "manifests" / "nodes" / "node1.yaml").read_text()
    assert one.host_key in text
    assert "ssh-rsa" not in text


def test_by_way_of_another_machine_both_keys_are_shown_and_pinned(desk: Desk) -> None:
    one, two = desk.rig.hosts
    added = desk.add(two, "--jump", f"root@{one.address}").well()
    assert fingerprint(one) in added.err
    assert fingerprint(two) in added.err
    text = (desk.fleet / "manifests" / "nodes" / "node2.yaml").read_text()
    assert one.host_key in text.partition("jumpHostKeys")[2]
    assert two.host_key in text.partition("jumpHostKeys")[0]
    assert "no-agent" in desk.llmgw("node", "list").well().out


def test_what_is_in_the_way_is_said_as_it_is_and_leaves_no_file(desk: Desk, tmp_path: Path) -> None:
    one, two = desk.rig.hosts
    stranger = tmp_path / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(stranger)], check=True)
    said = desk.llmgw("node", "add", one.address, "--identity", str(stranger), "--yes").refused()
    assert "authorized_keys" in said
    said = desk.llmgw("node", "add", one.address, "--identity", str(tmp_path / "none"), "--yes").refused()
    assert "no such file" in said
    assert "no key to log in with" in desk.llmgw("node", "add", one.address, "--yes").refused()
    said = desk.llmgw("node", "add", "10.77.0.1", "--identity", str(stranger), "--yes").refused()
    assert "is its SSH server running" in said
    # No right to install anything is a thing to know, not a reason not to write it down.
    looked = desk.add(two, "--user", "ann", "--no-commit").well()
    assert "set ssh.become: sudo" in looked.out
    assert "Wrote manifests/nodes/node2.yaml" in looked.out
    assert desk.git("status", "--porcelain", "-uall").split() == ["??", "manifests/nodes/node2.yaml"]


def test_a_fleet_that_would_be_wrong_with_it_is_told_and_nothing_is_written(desk: Desk) -> None:
    one, _ = desk.rig.hosts
    (desk.fleet / "manifests" / "broken.yaml").write_text("kind: Nodee\n")
    said = desk.add(one).refused()
    assert "broken.yaml:1" in said
    assert not (desk.fleet / "manifests" / "nodes").exists()


def test_a_commit_that_is_refused_leaves_no_file(desk: Desk) -> None:
    one, _ = desk.rig.hosts
    hook = desk.fleet / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'sign first' >&2\nexit 1\n")
    hook.chmod(0o755)
    assert "sign first" in desk.add(one).refused()
    assert desk.git("status", "--porcelain") == ""


# ---- a node's life ---------------------------------------------------------------------------------------


@pytest.mark.timeout(300)  # a dozen commands one after the other: 20 s of a core
def test_a_node_comes_serves_and_goes_and_leaves_nothing_running(desk: Desk) -> None:
    one, two = desk.rig.hosts
    desk.add(one).well()
    first = desk.llmgw("node", "bootstrap", "node1").well()
    assert "node1: uploading the agent" in first.err
    again = desk.llmgw("node", "bootstrap", "node1").well()
    assert "uploading" not in again.err
    assert "the agent runs already" in again.err
    desk.add(two).well()
    desk.llmgw("apply", "--yes").well()
    shown = json.loads(desk.llmgw("node", "show", "node1", "--json").well().out)
    other = json.loads(desk.llmgw("node", "show", "node2", "--json").well().out)
    here = "node1" if shown["shards"] else "node2"
    (shard,) = shown["shards"] + other["shards"]
    assert shard["state"] == "ready"
    assert f"{shard['shard']}: ready" in desk.llmgw("node", "show", here).well().out

    gone = desk.llmgw("node", "remove", here, "--yes", "--everything").well()
    assert "is being drained" in gone.out
    host = one if here == "node1" else two
    assert host.processes() == {}
    assert not host.exists("/var/lib/llmgw-agent/current")
    assert desk.git("show", "--format=%s", "--name-status", "HEAD").split() == [
        *("Remove", "node", here),
        *("D", f"manifests/nodes/{here}.yaml"),
    ]
    desk.llmgw("apply", "--yes").well()
    rows = json.loads(desk.llmgw("node", "list", "--json").well().out)["nodes"]
    assert [(row["reach"], row["shards"]) for row in rows] == [("ok", 1)]

    # The last one can't go while its model has nowhere else to run.
    left = rows[0]["name"]
    assert "the last of pool default" in desk.llmgw("node", "remove", left, "--yes").refused()
    (desk.fleet / "manifests" / "models.yaml").unlink()
    desk.commit("No model")
    stopped = desk.llmgw("node", "remove", left, "--stop", "--yes", "--everything").well()
    assert "evicted" in stopped.out
    assert one.processes() == two.processes() == {}


def test_another_fleets_node_changes_hands_only_when_it_is_taken_over(desk: Desk, tmp_path: Path) -> None:
    one, _ = desk.rig.hosts
    desk.add(one).well()
    desk.llmgw("apply", "--yes").well()
    (agent,) = [pid for pid, args in one.processes().items() if "daemon" in args]
    engines = {args for args in one.processes().values() if "serving" in args or "simengine" in args}

    theirs = Desk(rig=desk.rig, folder=tmp_path / "theirs").start()
    (theirs.fleet / "manifests" / "models.yaml").unlink()
    theirs.commit("No model")
    added = theirs.add(one).well()
    assert "belongs to fleet" in added.out
    assert "adopt node1 --take-over" in added.out
    refused = theirs.llmgw("node", "bootstrap", "node1")
    assert refused.code == 1
    assert "belongs to fleet" in refused.err
    assert [pid for pid, args in one.processes().items() if "daemon" in args] == [agent]
    shown = theirs.llmgw("node", "adopt", "node1")
    assert "--take-over" in shown.refused()
    assert "It runs 1 shard" in shown.out
    theirs.llmgw("node", "adopt", "node1", "--take-over", "--yes").well()
    page = theirs.llmgw("node", "show", "node1").well().out
    assert "chat-" in page
    assert {args for args in one.processes().values() if "serving" in args or "simengine" in args} == engines
    assert "Nothing to take over" in theirs.llmgw("node", "adopt", "node1").well().out

    ours = desk.llmgw("node", "show", "node1")
    assert "belongs to fleet" in ours.out
    said = theirs.llmgw("node", "remove", "node1", "--yes").refused()
    assert "which the record does not know" in said
    theirs.llmgw("node", "remove", "node1", "--stop", "--yes", "--everything").well()
    assert one.processes() == {}


# ---- without any machine ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["node", "add"],
        ["node", "add", "h", "--become", "su"],
        ["node", "add", "h", "--port", "0"],
        ["node", "show"],
        ["node", "gc"],
        ["node", "gc", "x", "--yes", "--json"],
        ["node", "nope"],
    ],
)
def test_wrong_usage_is_64(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 64
    assert "Error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["add", "list", "show", "doctor", "gc", "bootstrap", "adopt", "remove", "stop-agent"]
)
def test_every_node_command_explains_itself_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["node", name, "--help"]) == 0
    assert f"llmgw node {name}" in capsys.readouterr().out.partition("Options:")[0]
