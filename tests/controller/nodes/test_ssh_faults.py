"""Machines that are cut off, frozen, switched off or closed, while something is under way: told within 10 s, and never made up."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from llmgw.controller.nodes.ssh.connection import SshConnection
from llmgw.controller.nodes.ssh.hostkeys import parse
from llmgw.controller.nodes.ssh.uploading import upload
from llmgw.model.problems import RetryError, StalledError, UnknownOutcomeError
from tests.controller.nodes.sshnodes import inside, login
from tests.rig.host import Host, wait_for
from tests.rig.rig import Rig, require_rig

pytestmark = pytest.mark.slow

Hosts: TypeAlias = tuple[Host, ...]
NOTICED = 10.0
TICKING = "while sleep 0.1; do echo x >> /var/tmp/ticks; done"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    require_rig("what becomes of commands when a machine goes")
    with Rig(tmp_path_factory.mktemp("rig"), hosts=3) as made:
        yield made


@pytest.fixture
def hosts(rig: Rig) -> Iterator[Hosts]:
    """As good as new before and after."""
    yield tuple(rig.hosts)
    for host in rig.hosts:
        host.heal()
        if host.running:
            host.thaw()
        else:
            host.power_on()
        host.exec("sh", "-c", "pkill -f tick[s]; rm -f /var/tmp/ticks")


@pytest.fixture
def host(hosts: Hosts) -> Host:
    return hosts[0]


def ticks(host: Host) -> int:
    return len(host.exec("cat", "/var/tmp/ticks").out.splitlines())


def test_machines_that_go_without_a_word_leave_outcomes_unknown_within_10_s(rig: Rig, hosts: Hosts) -> None:
    """Cut off, frozen under a living kernel, and switched off."""

    async def one(host: Host, fault: Callable[[], None], *, runs_on: bool) -> None:
        connection = await SshConnection.open(login(host))
        reader, writer = await connection.open_channel(["cat"])
        running = asyncio.ensure_future(connection.run(["sh", "-c", TICKING], timeout=60))
        await asyncio.to_thread(wait_for, "the command", lambda: ticks(host) > 0)
        before = ticks(host)
        fault()
        begun = time.monotonic()
        ended = await running
        with pytest.raises(ConnectionResetError, match="no answer for 3 s"):
            await reader.read()
        assert time.monotonic() - begun < NOTICED
        assert ended.code is None
        assert "no answer for 3 s" in ended.why
        with pytest.raises(RetryError, match="lost before it was sent"):
            await connection.run(["true"], timeout=5)
        writer.close()
        await connection.close()
        if runs_on:  # the machine knows nothing of it
            assert ticks(host) > before

    async def main() -> None:
        cut, frozen, off = hosts
        await asyncio.gather(
            one(cut, cut.cut, runs_on=True),
            one(frozen, frozen.freeze, runs_on=False),
            one(off, off.power_off, runs_on=False),
        )

    inside(rig, main)


def test_machines_that_are_gone_are_told_in_bounded_time_and_reached_again_when_they_are_back(
    rig: Rig, hosts: Hosts
) -> None:
    async def one(host: Host, told: str) -> None:
        begun = time.monotonic()
        with pytest.raises(RetryError, match=told):
            await SshConnection.open(login(host))
        assert time.monotonic() - begun < 20
        host.heal()
        host.thaw()
        connection = await SshConnection.open(login(host))
        assert (await connection.run(["true"], timeout=10)).code == 0
        await connection.close()

    async def main() -> None:
        cut, frozen, _ = hosts
        cut.cut()
        frozen.freeze()
        await asyncio.gather(one(cut, "no answer in 5 s"), one(frozen, "is the machine frozen"))

    inside(rig, main)


def test_a_frozen_machine_holds_up_no_other(rig: Rig, host: Host) -> None:
    host.freeze()

    async def main() -> None:
        frozen = [asyncio.ensure_future(SshConnection.open(login(host))) for _ in range(20)]
        await asyncio.sleep(0.5)
        begun = time.monotonic()
        other = await SshConnection.open(login(rig.hosts[1]))
        assert time.monotonic() - begun < 15
        await other.close()
        for one in frozen:
            one.cancel()
        await asyncio.gather(*frozen, return_exceptions=True)

    inside(rig, main)


def test_a_flap_of_two_seconds_is_survived(rig: Rig, host: Host) -> None:
    async def main() -> None:
        connection = await SshConnection.open(login(host))
        running = asyncio.ensure_future(connection.run(["sh", "-c", "sleep 3; echo here"], timeout=20))
        await asyncio.sleep(0.5)
        host.cut()
        await asyncio.sleep(2)
        host.heal()
        ended = await running
        assert (ended.code, ended.out) == (0, b"here\n")
        await connection.close()

    inside(rig, main)


def test_an_upload_that_is_cut_leaves_what_was_there_and_can_be_repeated(rig: Rig, host: Host) -> None:
    host.write("/srv/file", "old")
    data = bytes(100_000_000)

    async def main() -> None:
        connection = await SshConnection.open(login(host))
        uploading = asyncio.ensure_future(connection.put(data, "/srv/file"))
        parts = "cat /srv/.llmgw-*.part | head -c 1000001 | wc -c"
        await asyncio.to_thread(wait_for, "bytes", lambda: int(host.exec("sh", "-c", parts).out) > 1_000_000)
        host.cut()
        with pytest.raises(UnknownOutcomeError, match="no answer for 3 s"):
            await uploading
        await connection.close()
        # The other side learns of it, or not: a new connection's upload does not depend on it.
        host.heal()
        assert host.read("/srv/file") == "old"
        again = await SshConnection.open(login(host))
        await again.put(b"new", "/srv/file")
        await again.close()

    inside(rig, main)
    assert host.read("/srv/file") == "new"


def test_the_end_of_an_upload_is_not_the_end_of_the_file(rig: Rig, host: Host) -> None:
    """What the other side sees of a cut connection is the end of standard input."""

    async def main() -> None:
        connection = await SshConnection.open(login(host))
        ended = await connection.run(upload("/srv/short", 0o644, 100, "t"), stdin=b"x" * 99, timeout=10)
        assert (ended.code, ended.err) == (74, b"got 99 of 100 bytes\n")
        await connection.close()

    inside(rig, main)
    assert not host.exists("/srv/short")
    assert not host.exists("/srv/.llmgw-t.part")


def test_a_closed_port_is_told_from_a_silent_machine(rig: Rig, host: Host) -> None:
    async def main() -> None:
        with pytest.raises(RetryError, match="Connection refused: is its SSH server running"):
            await SshConnection.open(login(host))

    with host.refusing(rig.controller.address, how="reject with tcp reset", port=22):
        inside(rig, main)


def test_a_machine_that_was_installed_anew_shows_another_key_and_is_refused(rig: Rig) -> None:
    host = rig.hosts[1]
    way, old = login(host), parse(host.host_key)
    host.power_off()
    host.new_host_keys()
    host.power_on()

    async def main() -> None:
        with pytest.raises(StalledError) as raised:
            await SshConnection.open(way)
        told = str(raised.value)
        for part in (
            "manifests/nodes.yaml:7:1",
            old.fingerprint,
            parse(host.host_key).fingerprint,
            host.host_key,
        ):
            assert part in told
        await (await SshConnection.open(login(host))).close()

    inside(rig, main)
