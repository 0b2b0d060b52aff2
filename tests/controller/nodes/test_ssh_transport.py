"""Agents over SSH: from a bare machine to reports and streams, as root and as a user with sudo, and what is said when there is none."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from llmgw.clock import SystemClock
from llmgw.controller.nodes.bootstrap.bundle import Bundles
from llmgw.controller.nodes.bootstrap.install import Bootstrap
from llmgw.controller.nodes.bootstrap.wheels import Wheels
from llmgw.controller.nodes.ssh.connection import SessionsError
from llmgw.controller.nodes.ssh.login import Surroundings
from llmgw.controller.nodes.ssh.transport import MAX_CONNECTIONS, SshTransport
from llmgw.model.manifest import NodeSpec
from llmgw.model.problems import NoAgentError, RetryError, StalledError, UnknownOutcomeError
from llmgw.model.report import Report
from llmgw.model.struct import replace
from llmgw.wire.messages import ReportParams
from tests.controller.nodes.sshnodes import inside, node_of
from tests.rig.host import wait_for
from tests.rig.options import Options, User
from tests.rig.rig import Rig, require_rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FLEET = "fleet-1"
USERS = (User(name="ann", bashrc="printf WELCOME\n"), User(name="bob", sudo="password"))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    require_rig("agents that are reached over SSH")
    hosts = [Options(users=USERS), Options(users=USERS, max_sessions=1)]
    with Rig(tmp_path_factory.mktemp("rig"), hosts=hosts) as made:
        yield made


def with_transport(rig: Rig, main: Callable[[SshTransport], Awaitable[None]]) -> None:
    state = rig.folder / "state"
    environ = {"PATH": os.environ["PATH"]}
    bundles = Bundles(state / "bundles", Wheels(cache=state / "wheels", home=state, environ=environ))
    bootstrapper = Bootstrap(bundles=bundles, environ=environ, clock=SystemClock())

    async def body() -> None:
        around = Surroundings(home=Path("/nowhere"), environ=environ, identity=rig.identity)
        transport = SshTransport(around, bootstrapper=lambda: bootstrapper)
        try:
            await main(transport)
        finally:
            await transport.close()

    inside(rig, body)


def test_a_machine_without_an_agent_says_so_and_tells_what_it_is(rig: Rig) -> None:
    async def main(transport: SshTransport) -> None:
        for ssh in ({}, {"user": "ann", "become": "sudo"}):
            node = node_of(rig.hosts[0], spec=NodeSpec(), **ssh)
            with pytest.raises(NoAgentError, match="no agent is installed in /var/lib/llmgw-agent"):
                await transport.connect(node, fleet=FLEET)
            facts = await transport.probe(node)
            assert facts.hostname == rig.hosts[0].name
            assert facts.boot_id == rig.hosts[0].read("/proc/sys/kernel/random/boot_id").strip()
            assert rig.hosts[0].address in {one for face in facts.interfaces for one in face.addresses}
            assert [disk.path for disk in facts.disks] == ["/var/lib/llmgw-agent"]

    with_transport(rig, main)


def test_a_python_that_is_not_there_is_named(rig: Rig) -> None:
    async def main(transport: SshTransport) -> None:
        node = node_of(rig.hosts[0], spec=NodeSpec(python="/opt/python9"))
        with pytest.raises(StalledError, match=r"looking at the machine.*127.*/opt/python9"):
            await transport.probe(node)

    with_transport(rig, main)


def test_a_user_with_sudo_brings_an_agent_to_a_bare_machine_and_talks_to_it(rig: Rig) -> None:
    host = rig.hosts[0]
    node = node_of(host, user="ann", become="sudo")

    async def main(transport: SshTransport) -> None:
        await transport.bootstrap(node, fleet=FLEET)
        link = await transport.connect(node, fleet=FLEET)
        report = await link.request("report", ReportParams(), Report, timeout=10)
        assert report.facts.hostname == host.name
        await link.close()
        # As root no sudo is needed; as a user who is not root and has none it is said.
        link = await transport.connect(node_of(host), fleet=FLEET)
        await link.close()
        with pytest.raises(StalledError, match=r"bob@.* may not talk to the agent.*become: sudo"):
            await transport.connect(node_of(host, user="bob"), fleet=FLEET)
        with pytest.raises(StalledError, match="sudo wants a password of bob"):
            await transport.connect(node_of(host, user="bob", become="sudo"), fleet=FLEET)

    with_transport(rig, main)


def test_a_server_with_one_session_a_connection_still_serves_a_few_channels(rig: Rig) -> None:
    host = rig.hosts[1]
    node = node_of(host)

    async def main(transport: SshTransport) -> None:
        await transport.bootstrap(node, fleet=FLEET)
        links = [await transport.connect(node, fleet=FLEET) for _ in range(MAX_CONNECTIONS)]
        with pytest.raises(SessionsError, match="MaxSessions"):
            await transport.connect(node, fleet=FLEET)
        for link in links:
            told = await link.request("report", ReportParams(), Report, timeout=10)
            assert told.facts.hostname == host.name
        await links.pop().close()
        links.append(await transport.connect(node, fleet=FLEET))
        await asyncio.gather(*(link.close() for link in links))

    with_transport(rig, main)


def test_a_link_that_is_cut_says_that_nobody_knows_and_the_next_one_works(rig: Rig) -> None:
    host = rig.hosts[1]
    node = node_of(host)

    async def main(transport: SshTransport) -> None:
        await transport.bootstrap(node, fleet=FLEET)
        link = await transport.connect(node, fleet=FLEET)
        host.cut()
        with pytest.raises(UnknownOutcomeError, match="no answer for 3 s"):
            await link.request("report", ReportParams(), Report, timeout=30)
        await link.close()
        with pytest.raises(RetryError, match="no answer in 5 s"):
            await transport.connect(node, fleet=FLEET)
        host.heal()
        link = await transport.connect(node, fleet=FLEET)
        assert (await link.request("report", ReportParams(), Report, timeout=10)).facts.hostname == host.name
        await link.close()

    with_transport(rig, main)


def test_an_agent_that_does_not_run_is_told_from_one_that_is_not_installed(rig: Rig) -> None:
    host = rig.hosts[0]
    node = node_of(host)

    async def main(transport: SshTransport) -> None:
        await transport.bootstrap(node, fleet=FLEET)
        host.must("kill", "-9", str(json.loads(host.read("/var/lib/llmgw-agent/agent.lock"))["pid"]))
        with pytest.raises(NoAgentError, match=r"an agent is installed in .*, and none runs there"):
            await transport.connect(node, fleet=FLEET)
        await transport.bootstrap(node, fleet=FLEET)
        await (await transport.connect(node, fleet=FLEET)).close()

    with_transport(rig, main)


def test_another_fleets_agent_is_refused(rig: Rig) -> None:
    node = node_of(rig.hosts[0])

    async def main(transport: SshTransport) -> None:
        await transport.bootstrap(node, fleet=FLEET)
        with pytest.raises(StalledError, match=FLEET):
            await transport.connect(node, fleet="fleet-2")

    with_transport(rig, main)


def test_a_node_whose_way_changes_gets_another_connection_and_a_dead_one_is_replaced(rig: Rig) -> None:
    host = rig.hosts[0]

    async def main(transport: SshTransport) -> None:
        first = await transport.connection(node_of(host))
        assert await transport.connection(replace(node_of(host), labels={"rack": "a1"})) is first
        assert await transport.connection(node_of(host, user="ann")) is not first
        host.must("pkill", "-f", "sshd: root")
        await asyncio.to_thread(wait_for, "the connection's end", lambda: first.lost is not None)
        again = await transport.connection(node_of(host))
        assert again is not first
        assert (await again.run(["true"], timeout=10)).code == 0

    with_transport(rig, main)
