"""Where a connection goes and as whom, whom it trusts, and the words that it sends: values, without any machine."""

import base64
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from llmgw.controller.nodes.ssh import wrapping
from llmgw.controller.nodes.ssh.hostkeys import parse
from llmgw.controller.nodes.ssh.login import Login, Surroundings, login_of
from llmgw.controller.nodes.ssh.uploading import upload
from llmgw.model.desired import DesiredNode
from llmgw.model.manifest import FromFile, NodeSpec, Ssh
from llmgw.model.problems import StalledError, Where

WHERE = Where(file="nodes.yaml", line=3, column=1)


def key(kind: str = "ssh-ed25519", last: int = 1) -> str:
    blob = struct.pack(">I", len(kind)) + kind.encode() + struct.pack(">I", 32) + bytes([last] * 32)
    return f"{kind} {base64.b64encode(blob).decode()}"


def way(home: Path = Path("/home/x"), *, usual: Path | None = None, environ: Any = None, **ssh: Any) -> Login:
    """``ssh`` are the manifest's fields, ``usual`` the key of nodes that name none."""
    spec = NodeSpec(ssh=Ssh(**({"host": "box"} | ssh)))
    node = DesiredNode(name="gpu01", labels={}, spec=spec, address="box", where=WHERE)
    return login_of(node, Surroundings(home=home, environ=environ or {}, identity=usual))


def config(folder: Path, text: str) -> Path:
    (folder / ".ssh").mkdir()
    (folder / ".ssh" / "config").write_text(text)
    return folder


# ---- the way -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("~/.ssh/id", "/home/x/.ssh/id"),
        (".ssh/id", "/home/x/.ssh/id"),
        ("/etc/llmgw/id", "/etc/llmgw/id"),
    ],
)
def test_key_files_count_from_the_home_directory(written: str, meant: str) -> None:
    named = way(usual=Path("/other"), identity=FromFile(from_file=written))
    assert named.target.credentials.identity == Path(meant)
    assert way(usual=Path("/other")).target.credentials.identity == Path("/other")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("bastion", "root@bastion"),
        ("ann@bastion", "ann@bastion"),
        ("ann@bastion:2222", "ann@bastion:2222"),
        ("[fd00::1]:2222", "root@[fd00::1]:2222"),
    ],
)
def test_a_jump_host_is_a_host_with_a_user_and_a_port(written: str, shown: str) -> None:
    login = way(jump=written, jump_host_keys=(key(last=2),), host_keys=(key(),))
    assert [str(hop) for hop in login.hops] == [shown, "root@box"]
    jump, target = login.hops
    assert [str(one) for one in jump.pinned.keys] != [str(one) for one in target.pinned.keys]
    assert jump.pinned.field == "ssh.jumpHostKeys"


@pytest.mark.parametrize(
    "written", ["a b", "bastion:", "a@b@c", "fd00::1", "bastion:ssh", "-oProxyCommand=x y"]
)
def test_what_is_no_jump_host_is_named_with_the_place(written: str) -> None:
    with pytest.raises(StalledError, match=r"nodes.yaml:3:1: ssh.jump: .*\[user@\]host\[:port\]"):
        way(jump=written)


def test_the_configuration_file_is_read_only_when_the_manifest_asks(tmp_path: Path) -> None:
    home = config(tmp_path, "Host *\n  User ann\n  Port 2222\n  HostName other\n  ProxyJump bastion\n")
    assert [str(hop) for hop in way(home).hops] == ["root@box"]
    assert [str(hop) for hop in way(home, config=True).hops] == ["ann@bastion", "ann@other:2222"]


def test_the_manifest_wins_over_the_configuration_file(tmp_path: Path) -> None:
    home = config(
        tmp_path, "Host *\n  User ann\n  Port 2222\n  ProxyJump a,b@c:3\n  IdentityFile /keys/theirs\n"
    )
    said = way(home, config=True)
    assert [str(hop) for hop in said.hops] == ["ann@a", "b@c:3", "ann@box:2222"]
    assert said.target.credentials.identity == Path("/keys/theirs")
    mine = FromFile(from_file="mine")
    written = way(home, config=True, user="bob", port=22022, jump="own", identity=mine)
    assert written.target.credentials.identity == home / "mine"
    assert [str(hop) for hop in written.hops] == ["bob@own", "bob@box:22022"]


def test_no_configuration_file_is_no_error_and_a_proxy_command_is_one(tmp_path: Path) -> None:
    assert str(way(tmp_path, config=True).target) == "root@box"
    home = config(tmp_path, "Host box\n  ProxyCommand nc %h %p\n")
    with pytest.raises(StalledError, match=r"ProxyCommand.*write ProxyJump"):
        way(home, config=True)


def test_sudo_and_the_agents_socket_are_part_of_the_way() -> None:
    assert way(become="sudo").sudo
    assert way(agent=True, environ={"SSH_AUTH_SOCK": "/run/a"}).target.credentials.agent == "/run/a"
    assert way(environ={"SSH_AUTH_SOCK": "/run/a"}).target.credentials.agent is None
    assert way() == way()
    assert way() != way(user="ann")


# ---- host keys -----------------------------------------------------------------------------------


def test_a_fingerprint_is_what_ssh_keygen_shows(tmp_path: Path) -> None:
    file = tmp_path / "key"
    for kind in ("ed25519", "ecdsa", "rsa"):
        made = file.with_name(kind)
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(made)], check=True)
        public = made.with_suffix(".pub").read_text()
        shown = subprocess.run(["ssh-keygen", "-lf", str(made)], capture_output=True, text=True, check=True)
        assert parse(public).fingerprint == shown.stdout.split()[1]
        assert parse(public).line == " ".join(public.split()[:2])


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ssh-ed25519", "write the key's type and the key"),
        ("ssh-ed25519 AAA", "not whole"),
        ("ssh-rsa " + key().split()[1], "calls itself ssh-rsa, and the key is of type ssh-ed25519"),
        ("ssh-ed25519 AAAA", "of type unknown"),
    ],
)
def test_a_line_that_is_no_key_is_named_with_its_place(line: str, told: str) -> None:
    with pytest.raises(StalledError, match=rf"nodes.yaml:3:1: ssh.hostKeys\[1\]: .*{told}"):
        way(host_keys=(key(), line))


# ---- words ---------------------------------------------------------------------------------------


def test_a_command_is_quoted_once_and_says_when_it_begins() -> None:
    text = wrapping.wrapped(["printf", "%s", "it's $HOME"], sudo=False)
    ran = subprocess.run(["sh", "-c", text], capture_output=True, check=True)
    assert wrapping.after_magic(b"WELCOME" + ran.stdout) == b"it's $HOME"
    assert wrapping.after_magic(ran.stderr) == b""
    assert wrapping.after_magic(b"WELCOME\n") is None


def test_sudo_never_asks_and_the_words_after_it_are_the_commands() -> None:
    assert wrapping.plain(["-x", "a b"], sudo=True) == "exec env LC_ALL=C sudo -n -- -x 'a b'"
    assert wrapping.plain(["true"], sudo=False) == "exec env LC_ALL=C true"


def test_a_message_shows_the_beginning_of_a_long_command_in_one_line() -> None:
    told = wrapping.shown(["sh", "-c", "first\nsecond " + "x" * 500])
    assert told.startswith("sh -c 'first second xxx")
    assert len(told) == 200


@pytest.mark.parametrize("path", ["relative/file", "/folder/", ""])
def test_an_upload_goes_to_an_absolute_path_of_a_file(path: str) -> None:
    with pytest.raises(StalledError, match="absolute path of a file"):
        upload(path, 0o644, 1, "t")
