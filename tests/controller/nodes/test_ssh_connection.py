"""Commands, files and channels over SSH, against real servers of several kinds."""

import asyncio
import hashlib
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw.controller.nodes.ssh.connection import NotBegunError, SessionsError, SshConnection
from llmgw.controller.nodes.ssh.hostkeys import parse
from llmgw.controller.nodes.ssh.login import Surroundings
from llmgw.controller.nodes.ssh.transport import SshTransport
from llmgw.model.manifest import FromFile
from llmgw.model.problems import RetryError, StalledError
from tests.controller.nodes.sshnodes import connected, inside, login, node_of
from tests.rig.host import wait_for
from tests.rig.options import Options, User
from tests.rig.rig import Rig, require_rig

pytestmark = pytest.mark.slow

NOISY = "printf 'WELCOME to this machine'; echo 'locale: complaints' >&2\nread -t 0.1 eaten\n"
USERS = (
    User(name="ann", bashrc=NOISY),
    User(name="bob", sudo="password"),
    User(name="carl", sudo="none"),
)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    require_rig("commands, uploads and channels over a real SSH server")
    hosts = [Options(users=USERS, key_types=("ed25519", "rsa")), Options(max_sessions=2), Options()]
    with Rig(tmp_path_factory.mktemp("rig"), hosts=hosts) as made:
        yield made


def test_a_command_gets_its_words_as_they_are_and_its_streams_are_kept_apart(rig: Rig) -> None:
    words = ["a b", "it's", '"$HOME"', "new\nline", "*", "", "-n", "ünï"]

    async def main(connection: SshConnection) -> None:
        ended = await connection.run(
            ["sh", "-c", 'for word; do printf "%s|" "$word"; done; cat; echo no >&2; exit 3', "x", *words],
            stdin=b"\0\xffbytes",
            timeout=10,
        )
        assert ended.code == 3
        assert ended.out == "|".join([*words, ""]).encode() + b"\0\xffbytes"
        assert ended.err == b"no\n"

    connected(rig, login(rig.hosts[0]), main)


@pytest.mark.parametrize("sudo", [False, True])
def test_what_a_login_prints_or_reads_disturbs_nothing(rig: Rig, *, sudo: bool) -> None:
    async def main(connection: SshConnection) -> None:
        ended = await connection.run(["cat"], stdin=b"all of it", timeout=10, sudo=sudo)
        assert (ended.code, ended.out, ended.err) == (0, b"all of it", b"")
        reader, writer = await connection.open_channel(["cat"], sudo=sudo)
        writer.write(b"first words\n")
        assert await reader.readline() == b"first words\n"
        writer.close()
        await writer.wait_closed()

    connected(rig, login(rig.hosts[0], user="ann"), main)


def test_a_megabyte_of_banner_is_an_error_and_not_a_hang(rig: Rig) -> None:
    host = rig.hosts[2]
    host.write("/root/.bashrc", "head -c 3000000 /dev/zero | tr '\\0' x\n")
    try:

        async def main(connection: SshConnection) -> None:
            with pytest.raises(StalledError, match="prints more than"):
                await connection.run(["true"], timeout=20)
            with pytest.raises(StalledError, match="prints more than"):
                await connection.open_channel(["cat"])

        connected(rig, login(host), main)
    finally:
        host.write("/root/.bashrc", "")


def test_five_megabytes_on_standard_error_are_read_and_their_end_is_kept(rig: Rig) -> None:
    async def main(connection: SshConnection) -> None:
        script = "head -c 5000000 /dev/zero >&2; echo the end >&2; echo done"
        ended = await connection.run(["sh", "-c", script], timeout=20)
        assert (ended.code, ended.out) == (0, b"done\n")
        assert ended.err.endswith(b"the end\n")
        assert len(ended.err) == 65536
        reader, writer = await connection.open_channel(["sh", "-c", script])
        async with asyncio.timeout(20):
            assert await reader.read() == b"done\n"
        writer.close()
        await writer.wait_closed()

    connected(rig, login(rig.hosts[0]), main)


def test_a_command_that_takes_too_long_or_dies_or_leaves_a_child_is_told_apart(rig: Rig) -> None:
    async def main(connection: SshConnection) -> None:
        late = await connection.run(["sleep", "60"], timeout=0.5)
        assert (late.code, late.why) == (None, "no end within 0.5 s: it may still run")
        killed = await connection.run(["sh", "-c", "kill -9 $$"], timeout=10)
        assert (killed.code, killed.why) == (-1, "ended by a signal")
        begun = time.monotonic()
        left = await connection.run(["sh", "-c", "sleep 60 & echo $!"], timeout=30)
        assert left.code == 0
        assert time.monotonic() - begun < 10
        assert left.out.strip().isdigit()
        await connection.run(["kill", left.out.strip().decode()], timeout=10)

    connected(rig, login(rig.hosts[0]), main)


def test_commands_that_were_given_up_make_way_for_another_connection(rig: Rig) -> None:
    """A server keeps their sessions until they end, and this one allows two."""
    host = rig.hosts[1]

    async def main() -> None:
        transport = SshTransport(Surroundings(home=Path("/nowhere"), environ={}))
        try:
            first = await transport.connection(node_of(host))
            waiting = asyncio.ensure_future(first.run(["sleep", "600"], timeout=600))
            await asyncio.to_thread(wait_for, "the command", lambda: "sleep 600" in host.processes().values())
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await transport.connection(node_of(host)) is first
            assert (await first.run(["sleep", "600"], timeout=0.3)).code is None
            second = await transport.connection(node_of(host))
            assert second is not first
            assert (await second.run(["true"], timeout=10)).code == 0
        finally:
            await transport.close()

    inside(rig, main)
    host.must("pkill", "-f", "sleep 600")


# ---- root ----------------------------------------------------------------------------------------


def test_sudo_makes_root_of_a_user_for_commands_and_files(rig: Rig) -> None:
    async def main(connection: SshConnection) -> None:
        assert (await connection.run(["id", "-u"], timeout=10, sudo=True)).out == b"0\n"
        with pytest.raises(StalledError, match="Permission denied"):
            await connection.put(b"x", "/etc/llmgw-trial")
        await connection.put(b"secret", "/etc/llmgw-trial", mode=0o600, sudo=True)

    connected(rig, login(rig.hosts[0], user="ann"), main)
    assert rig.hosts[0].must("stat", "-c", "%a %U %s", "/etc/llmgw-trial") == "600 root 6\n"


@pytest.mark.parametrize(
    ("user", "told"),
    [("bob", "sudo wants a password of bob"), ("carl", "sudo (wants a password of|refuses) carl")],
)
def test_a_user_who_may_not_become_root_is_told_so_and_how_to_change_it(
    rig: Rig, user: str, told: str
) -> None:
    async def main(connection: SshConnection) -> None:
        for attempt in (
            connection.run(["true"], timeout=10, sudo=True),
            connection.put(b"x", "/x", sudo=True),
        ):
            with pytest.raises(StalledError, match=told) as raised:
                await attempt
            assert "NOPASSWD" in str(raised.value)
        with pytest.raises(NotBegunError, match=told):
            await connection.open_channel(["cat"], sudo=True)

    connected(rig, login(rig.hosts[0], user=user), main)


def test_a_machine_without_sudo_is_named_so(rig: Rig) -> None:
    host = rig.hosts[2]
    host.hide("sudo")

    async def main(connection: SshConnection) -> None:
        with pytest.raises(StalledError, match="there is no sudo: install it"):
            await connection.run(["true"], timeout=10, sudo=True)

    connected(rig, login(host), main)


# ---- files ---------------------------------------------------------------------------------------


def test_a_file_arrives_whole_with_its_mode_and_replaces_what_was_there(rig: Rig) -> None:
    host = rig.hosts[0]
    data = os.urandom(6_000_000)

    async def main(connection: SshConnection) -> None:
        await connection.put(b"old", "/srv/a file", mode=0o644)
        await connection.put(data, "/srv/a file", mode=0o755)
        await connection.put(b"", "/srv/empty")
        with pytest.raises(StalledError, match="No such file"):
            await connection.put(b"x", "/srv/nowhere/file")

    connected(rig, login(host), main)
    assert host.must("stat", "-c", "%a %s", "/srv/a file") == f"755 {len(data)}\n"
    assert host.must("sh", "-c", "sha256sum < '/srv/a file'").split()[0] == hashlib.sha256(data).hexdigest()
    assert host.must("ls", "-A", "/srv").split("\n") == ["a file", "empty", ""]


def test_a_full_disk_leaves_what_was_there(rig: Rig) -> None:
    host = rig.hosts[0]
    host.small_disk("/mnt/small", "64k")
    host.write("/mnt/small/file", "old")

    async def main(connection: SshConnection) -> None:
        with pytest.raises(StalledError, match="No space left"):
            await connection.put(b"x" * 200_000, "/mnt/small/file")

    connected(rig, login(host), main)
    assert host.read("/mnt/small/file") == "old"
    assert host.must("ls", "-A", "/mnt/small") == "file\n"


# ---- sessions ------------------------------------------------------------------------------------


def test_two_sessions_a_connection_are_enough_for_many_commands_at_once(rig: Rig) -> None:
    async def main(connection: SshConnection) -> None:
        _, writer = await connection.open_channel(["cat"])
        endings = await asyncio.gather(*(connection.run(["true"], timeout=20) for _ in range(12)))
        assert [one.code for one in endings] == [0] * 12
        writer.close()
        await writer.wait_closed()

    connected(rig, login(rig.hosts[1]), main)


def test_a_connection_with_all_its_sessions_in_use_says_so_and_frees_them_when_they_close(rig: Rig) -> None:
    async def main(connection: SshConnection) -> None:
        held = [await connection.open_channel(["cat"]) for _ in range(2)]
        with pytest.raises(SessionsError, match="MaxSessions"):
            await connection.open_channel(["cat"])
        with pytest.raises(SessionsError, match="MaxSessions"):
            await connection.run(["true"], timeout=10)
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        assert (await connection.run(["true"], timeout=10)).code == 0

    connected(rig, login(rig.hosts[1]), main)


def test_fifty_connections_at_once_get_through_a_server_with_default_limits(rig: Rig) -> None:
    async def main() -> None:
        opened = await asyncio.gather(*(SshConnection.open(login(rig.hosts[0])) for _ in range(50)))
        await asyncio.gather(*(one.close() for one in opened))

    inside(rig, main)


# ---- who is there, and who we are ----------------------------------------------------------------


def test_a_machine_whose_keys_are_not_pinned_is_not_logged_in_to(rig: Rig) -> None:
    host = rig.hosts[0]

    async def main() -> None:
        with pytest.raises(StalledError) as raised:
            await SshConnection.open(login(host, host_keys=()))
        told = str(raised.value)
        assert "manifests/nodes.yaml:7:1 pins no key" in told
        assert host.host_key in told
        assert parse(host.host_key).fingerprint in told

    inside(rig, main)


def test_a_machine_with_another_key_is_refused_with_both_fingerprints_and_the_line(rig: Rig) -> None:
    host, other = rig.hosts[0], rig.hosts[2]

    async def main() -> None:
        with pytest.raises(StalledError) as raised:
            await SshConnection.open(login(host, host_keys=other.host_keys))
        told = str(raised.value)
        for part in ("manifests/nodes.yaml:7:1", *(parse(one.host_key).fingerprint for one in (host, other))):
            assert part in told

    inside(rig, main)


def test_any_of_several_pinned_keys_will_do_of_any_type(rig: Rig) -> None:
    host, other = rig.hosts[0], rig.hosts[2]
    ed25519, rsa = host.host_keys
    for pins in ((rsa,), (other.host_key, ed25519), (ed25519, rsa)):
        assert connected(rig, login(host, host_keys=pins), _uid) == b"0\n"


async def _uid(connection: SshConnection) -> bytes:
    return (await connection.run(["id", "-u"], timeout=10)).out


def test_a_key_that_is_not_allowed_is_named_with_what_to_do(rig: Rig, tmp_path: Path) -> None:
    key = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    shown = subprocess.run(["ssh-keygen", "-lf", str(key)], capture_output=True, text=True, check=True)

    async def main() -> None:
        with pytest.raises(StalledError) as raised:
            await SshConnection.open(login(rig.hosts[0], identity=FromFile(from_file=str(key))))
        assert shown.stdout.split()[1] in str(raised.value)
        assert "authorized_keys" in str(raised.value)

    inside(rig, main)


def test_the_keys_of_an_ssh_agent_are_used_when_the_manifest_says_so(rig: Rig, tmp_path: Path) -> None:
    started = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    values = dict(
        word.split("=", 1) for line in started.splitlines() for word in line.split(";") if "=" in word
    )
    try:
        subprocess.run(
            ["ssh-add", "-q", str(rig.identity)],
            env={**os.environ, **values},
            check=True,
            capture_output=True,
        )
        way = login(rig.hosts[0], identity=None, agent=True, environ=values)
        assert connected(rig, way, _uid) == b"0\n"
        with pytest.raises(StalledError, match="SSH_AUTH_SOCK is not set"):
            login(rig.hosts[0], identity=None, agent=True)
    finally:
        os.kill(int(values["SSH_AGENT_PID"]), 15)


def test_the_configuration_file_counts_only_when_it_is_asked_for(rig: Rig, tmp_path: Path) -> None:
    host = rig.hosts[0]
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(
        f"Host box\n  HostName {host.address}\n  User ann\n  IdentityFile {shlex.quote(str(rig.identity))}\n"
    )
    way = login(host, host="box", identity=None, config=True, home=tmp_path)
    assert connected(rig, way, _uid) == host.must("id", "-u", "ann").encode()

    async def main() -> None:
        with pytest.raises(RetryError, match="box is not known"):
            await SshConnection.open(login(host, host="box", home=tmp_path))

    inside(rig, main)


def test_a_jump_host_leads_to_a_machine_that_cannot_be_reached_directly(rig: Rig) -> None:
    host, jump = rig.hosts[2], rig.hosts[0]
    with host.refusing(rig.controller.address, port=22):
        way = login(host, jump=f"ann@{jump.address}:22", jump_host_keys=jump.host_keys)
        assert connected(rig, way, _hostname) == f"{host.name}\n".encode()

        async def main() -> None:
            with pytest.raises(StalledError, match=r"ssh.jumpHostKeys"):
                await SshConnection.open(login(host, jump=jump.address))
            unpinned = login(host, jump=jump.address, jump_host_keys=jump.host_keys, host_keys=())
            with pytest.raises(StalledError, match=r"pins no key of it in ssh.hostKeys"):
                await SshConnection.open(unpinned)

        inside(rig, main)


async def _hostname(connection: SshConnection) -> bytes:
    return (await connection.run(["hostname"], timeout=10)).out


# ---- speed ---------------------------------------------------------------------------------------


def test_a_command_on_an_open_connection_does_not_wait_for_delayed_acknowledgements(rig: Rig) -> None:
    """The fastest of many, so that a busy machine does not fail it: with Nagle's algorithm none is below 40 ms."""

    async def main(connection: SshConnection) -> float:
        times = []
        for _ in range(40):
            begun = time.perf_counter()
            assert (await connection.run(["true"], timeout=10)).code == 0
            times.append(time.perf_counter() - begun)
        return min(times)

    fastest = connected(rig, login(rig.hosts[0]), main)
    assert fastest < 0.03
