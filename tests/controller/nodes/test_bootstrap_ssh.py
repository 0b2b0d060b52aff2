"""Bootstrap over a real sshd: what is told of logins that are not enough, lines that are cut, and keys that may only talk."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from llmgw.clock import SystemClock
from llmgw.controller.nodes.bootstrap.install import Bootstrap
from llmgw.controller.nodes.layout import forced_command
from llmgw.controller.nodes.ssh.login import Surroundings
from llmgw.controller.nodes.ssh.transport import SshTransport
from llmgw.model.manifest import FromFile
from llmgw.model.problems import RetryError, StalledError
from llmgw.model.report import Report
from llmgw.model.struct import replace
from llmgw.wire.messages import ReportParams
from tests.controller.nodes.barehost import FLEET, WORK, bundles
from tests.controller.nodes.sshnodes import inside, node_of
from tests.rig.host import Host
from tests.rig.options import Options, User
from tests.rig.rig import Rig, require_rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
USERS = (User(name="ann"), User(name="bob", sudo="password"), User(name="eve", sudo="none"))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    require_rig("bootstrap over SSH")
    with Rig(tmp_path_factory.mktemp("rig"), hosts=[Options(users=USERS), Options(max_sessions=2)]) as made:
        yield made


def with_transport(
    rig: Rig, main: Callable[[SshTransport], Awaitable[None]], told: Callable[[str], None] = lambda _: None
) -> None:
    environ = {"PATH": os.environ["PATH"]}
    tool = Bootstrap(bundles=bundles(rig.folder / "state"), environ=environ, clock=SystemClock(), told=told)

    async def body() -> None:
        around = Surroundings(home=Path("/nowhere"), environ=environ, identity=rig.identity)
        transport = SshTransport(around, bootstrapper=lambda: tool)
        try:
            await main(transport)
        finally:
            await transport.close()

    inside(rig, body)


def test_a_login_that_is_not_enough_is_told_with_what_else_is_wrong_and_nothing_is_done(rig: Rig) -> None:
    host = rig.hosts[0]

    async def main(transport: SshTransport) -> None:
        with pytest.raises(StalledError) as caught:
            await transport.bootstrap(node_of(host, user="eve"), fleet=FLEET)
        assert str(caught.value) == (
            "node node1: this machine can't take an agent as it is:\n  - user eve is not root and may not write to /var/lib: set"
            " ssh.become: sudo, or ssh.user: root, or dirs.work to a directory of that user"
        )
        for user, why in (("bob", "sudo wants a password of bob"), ("eve", "sudo")):
            with pytest.raises(
                StalledError, match=rf"user {user} can't become root by sudo: .*{why}"
            ) as caught:
                await transport.bootstrap(node_of(host, user=user, become="sudo"), fleet=FLEET)
            assert "python=$1" not in str(caught.value), "no script in a person's face"

    with_transport(rig, main)
    assert not host.exists(WORK)


def test_a_line_that_is_cut_anywhere_during_bootstrap_is_mended_by_the_next_one(rig: Rig) -> None:
    """The cable is pulled as each step begins; each time the next try goes on."""
    host = rig.hosts[1]
    steps = ("making user", "uploading", "starting")
    for step in steps:
        pulled = threading.Event()

        def hear(text: str, step: str = step, pulled: threading.Event = pulled) -> None:
            if text.startswith(step):
                pulled.set()
                host.cut()

        async def main(transport: SshTransport) -> None:
            with pytest.raises(RetryError):
                await transport.bootstrap(node_of(host), fleet=FLEET)

        try:
            with_transport(rig, main, hear)
        finally:
            host.heal()
        assert pulled.is_set(), f"{step} was never begun"

    async def at_last(transport: SshTransport) -> None:
        await _until_done(transport, host)
        link = await transport.connect(node_of(host), fleet=FLEET)
        await link.close()

    with_transport(rig, at_last)
    assert len([args for args in host.processes().values() if "main.py daemon" in args]) == 1
    assert host.must("ls", "-A", f"{WORK}/agents").count("\n") == 1


async def _until_done(transport: SshTransport, host: Host) -> None:
    """The link may need a moment to carry again."""
    end = asyncio.get_running_loop().time() + 60
    while True:
        try:
            await transport.bootstrap(node_of(host), fleet=FLEET)
        except RetryError:
            assert asyncio.get_running_loop().time() < end, "it never ends well"
            await asyncio.sleep(0.2)
        else:
            return


def test_a_key_held_to_the_bridge_talks_to_the_agent_and_does_nothing_else(rig: Rig) -> None:
    host = rig.hosts[0]
    narrow = rig.folder / "narrow"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(narrow)], check=True, timeout=30)
    public = narrow.with_suffix(".pub").read_text()
    wide = host.read("/etc/llnode/authorized_keys")

    async def main(transport: SshTransport) -> None:
        await transport.bootstrap(node_of(host, user="ann", become="sudo"), fleet=FLEET)
        for user, become in (("root", "none"), ("ann", "sudo")):
            node = node_of(host, user=user, become=become)
            host.write("/etc/llnode/authorized_keys", f"{wide}\n{forced_command(node.spec)} {public}")
            assert node.spec.ssh is not None
            held = replace(node.spec.ssh, identity=FromFile(from_file=str(narrow)))
            node = replace(node, spec=replace(node.spec, ssh=held))
            link = await transport.connect(node, fleet=FLEET)
            report = await link.request("report", ReportParams(), Report, timeout=10)
            assert report.agent.node == host.name
            await link.close()
            # Whatever is asked for, the bridge runs, and waits for an agent's words.
            other = await (await transport.connection(node)).run(("touch", "/tmp/got-in"), timeout=2)
            assert (other.code, other.begun) == (None, False)

    try:
        with_transport(rig, main)
    finally:
        host.write("/etc/llnode/authorized_keys", wide)
    assert not host.exists("/tmp/got-in")
