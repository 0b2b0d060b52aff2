"""Bootstrap on bare machines: from nothing to an agent that answers, whatever is in the way, and back."""

import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import llmgw
from llmgw import __version__
from llmgw.agent.shards.traces import FIRST_GROUP, GROUPS
from llmgw.controller.nodes.bootstrap.bundle import Bundles
from llmgw.controller.nodes.bootstrap.install import Installed
from llmgw.controller.nodes.bootstrap.programs import Place, call
from llmgw.controller.nodes.bootstrap.shell import LocalEnded, LocalShell, Shell
from llmgw.controller.nodes.bootstrap.target import target_of
from llmgw.model.manifest import Dirs, Pip, PortRange, Secret
from llmgw.model.problems import LlmgwError, RetryError, StalledError
from llmgw.model.struct import replace
from tests.controller.nodes.bareagent import report, shard_when, start_engine, stop_engine
from tests.controller.nodes.barehost import (
    FLEET,
    WORK,
    BareHost,
    bare_host,
    bootstrap,
    bundles,
    link,
    node,
    why_not,
)

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be proved here")
BOOT_NOTE = "its agent starts at boot by /etc/init.d; process 1 is python3: see that it runs what lies there"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[BareHost]:
    with bare_host(tmp_path / "host") as made:
        yield made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """Built once for all: it is the same each time."""
    return bundles(tmp_path_factory.mktemp("controller"))


@dataclass(slots=True)
class Watched:
    """A shell that counts commands, and from the given one on dies like a cut line: ``after`` what it did, or before."""

    shell: Shell
    dies_at: int | None = None
    after: bool = True
    commands: list[Sequence[str]] = field(default_factory=list)

    async def run(
        self, command: Sequence[str], *, stdin: bytes = b"", timeout: float, sudo: bool = False
    ) -> LocalEnded:
        self.commands.append(tuple(command))
        dead = self.dies_at is not None and len(self.commands) >= self.dies_at
        if dead and not self.after:
            raise RetryError("the line is cut")
        ended = await self.shell.run(command, stdin=stdin, timeout=timeout, sudo=sudo)
        if dead:
            return LocalEnded(code=None, out=b"", err=b"")
        return LocalEnded(code=ended.code, out=ended.out, err=ended.err)


def verbs(shell: Watched) -> list[str]:
    """What was called, after the looks."""
    return [words[7] for words in shell.commands if words[0] != "sh"]


def older(folder: Path, version: str = "0.0.9") -> Bundles:
    """The same llmgw under another version."""
    package = folder / version / "llmgw"
    shutil.copytree(Path(llmgw.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    init = package / "__init__.py"
    init.write_text(init.read_text().replace(f'"{__version__}"', f'"{version}"'))
    return bundles(folder / version, package=package)


# ---- the story ------------------------------------------------------------------------------------------


def test_from_a_bare_machine_to_an_engine_of_its_own_user_and_back(host: BareHost, made: Bundles) -> None:
    told: list[str] = []
    tool = bootstrap(made, told=told.append)

    async def main() -> None:
        done = await tool.install(host.shell, node(), fleet=FLEET)
        assert (done.changed, done.notes) == (True, (BOOT_NOTE,))
        assert told[0] == "making user llmgw-engine"
        agent = (await report(host)).agent
        assert (agent.version, agent.node, agent.fleet, agent.user) == (__version__, "gpu01", FLEET, "root")
        shard = await start_engine(host)
        user, group = host.run("stat", "-c", "%U %g", f"/proc/{shard.pid}").split()
        assert user == "llmgw-engine"
        assert FIRST_GROUP <= int(group) < FIRST_GROUP + GROUPS, "the shard's own, see docs/adr/0008"
        with pytest.raises(StalledError, match="1 shards have orders there: stop them first"):
            await tool.uninstall(host.shell, node(), fleet=FLEET, everything=True)
        await tool.install(host.shell, node(), fleet=FLEET)
        await stop_engine(host, shard.shard)

    asyncio.run(main())
    modes = host.run("find", WORK, "-maxdepth", "2", "-printf", "%m %u %P\n").splitlines()
    assert {
        "711 root ",
        "755 root agents",
        "755 root weights",
        "755 root engines",
        "711 root home",
        "700 llmgw-engine home/llmgw-engine",
        "700 root shards",
        "700 root logs",
        "600 root agent.json",
        "600 root agent.log",
        "600 root agent.sock",
        "777 root current",
    } <= set(modes)
    assert "llmgw engines:" + WORK + "/home/llmgw-engine:/usr/sbin/nologin" in host.run("cat", "/etc/passwd")


def test_a_dead_agent_is_started_again_on_a_full_disk(host: BareHost, made: Bundles) -> None:
    host.run("mkdir", "-p", WORK)
    host.run("mount", "-t", "tmpfs", "-o", "size=400m,mode=711", "tmpfs", WORK)

    async def main() -> None:
        tool = bootstrap(made)
        await tool.install(host.shell, node(), fleet=FLEET)
        shard = await start_engine(host)
        fill(host)
        (dead,) = host.pids("main.py daemon")
        host.run("kill", "-9", str(dead))
        done = await tool.install(host.shell, node(), fleet=FLEET)
        assert done.changed
        (adopted,) = (await report(host)).shards
        assert adopted.pid == shard.pid
        assert host.pids("main.py daemon") not in ([], [dead])
        changed = node(ports=PortRange(from_port=31000, to_port=31999))
        named = rf"writing its settings: settings: {WORK}/agent\.json: No space left on device: free some space there"
        with pytest.raises(StalledError, match=named):
            await tool.install(host.shell, changed, fleet=FLEET)
        assert not host.run("find", WORK, "-name", "*.new*"), "no part is left to fill it further"
        host.run("mount", "-o", "remount,size=400m", WORK)
        await tool.install(host.shell, changed, fleet=FLEET)
        await stop_engine(host, shard.shard)

    asyncio.run(main())


def fill(host: BareHost) -> None:
    """To the last block: what its work directory holds becomes all that it can hold."""
    blocks = int(host.run("df", "--output=used", "-k", WORK).splitlines()[-1])
    host.run("mount", "-o", f"remount,size={blocks}k", WORK)
    assert host.run("df", "--output=avail", "-k", WORK).split()[-1] == "0"


def test_a_second_bootstrap_looks_and_does_nothing(host: BareHost, made: Bundles) -> None:
    async def main() -> None:
        tool = bootstrap(made)
        first = await tool.install(host.shell, node(), fleet=FLEET)
        agents = host.pids("main.py daemon")
        shell = Watched(host.shell)
        again = await tool.install(shell, node(), fleet=FLEET)
        assert again == Installed(changed=False, digest=first.digest, notes=first.notes)
        assert len(shell.commands) == 1
        assert host.pids("main.py daemon") == agents

    asyncio.run(main())


def test_as_a_transport_calls_it_the_greeting_is_the_proof(host: BareHost, made: Bundles) -> None:
    told: list[str] = []

    async def greet() -> object:
        connection = await link(host)
        await connection.close()
        told.append("greeted")
        return connection.hello

    asyncio.run(bootstrap(made, told=told.append).bootstrap(node(), host.shell, fleet=FLEET, greet=greet))  # type: ignore[arg-type] # any answer
    assert told[-2:] == [BOOT_NOTE, "greeted"]


def test_an_upgrade_restarts_the_agent_keeps_one_earlier_and_leaves_engines_alone(
    host: BareHost, made: Bundles, tmp_path: Path
) -> None:
    async def main() -> None:
        for version in ("0.0.8", "0.0.9"):
            await bootstrap(older(tmp_path, version)).install(host.shell, node(), fleet=FLEET)
        assert (await report(host)).agent.version == "0.0.9"
        before = await start_engine(host)
        done = await bootstrap(made).install(host.shell, node(), fleet=FLEET)
        assert done.changed
        assert (await report(host)).agent.version == __version__
        after = await shard_when(host, lambda shard: shard.state == "ready")
        assert (after.pid, after.attempts) == (before.pid, before.attempts)
        kept = host.run("ls", f"{WORK}/agents").split()
        assert len(kept) == 2
        assert done.digest in kept
        await stop_engine(host, after.shard)

    asyncio.run(main())


def test_other_settings_restart_the_agent_without_an_upload(host: BareHost, made: Bundles) -> None:
    async def main() -> None:
        tool = bootstrap(made)
        await tool.install(host.shell, node(), fleet=FLEET)
        before = host.pids("main.py daemon")
        shell = Watched(host.shell)
        changed = node(ports=PortRange(from_port=20000, to_port=20009))
        assert (await tool.install(shell, changed, fleet=FLEET)).changed
        assert "unpack" not in verbs(shell)
        assert host.pids("main.py daemon") != before
        assert not (await tool.install(shell, changed, fleet=FLEET)).changed

    asyncio.run(main())


def test_a_newer_agent_stays_unless_a_person_asks_for_the_older_one(
    host: BareHost, made: Bundles, tmp_path: Path
) -> None:
    async def main() -> None:
        await bootstrap(older(tmp_path, "99.0.0")).install(host.shell, node(), fleet=FLEET)
        tool = bootstrap(made)
        assert not (await tool.install(host.shell, node(), fleet=FLEET)).changed
        other = node(ports=PortRange(from_port=20000, to_port=20009))
        with pytest.raises(StalledError, match=r"of version 99\.0\.0, newer than this llmgw"):
            await tool.install(host.shell, other, fleet=FLEET)
        assert (await report(host)).agent.version == "99.0.0"
        assert (await tool.install(host.shell, other, fleet=FLEET, downgrade=True)).changed
        assert (await report(host)).agent.version == __version__

    asyncio.run(main())


def test_an_agent_that_died_or_did_not_come_back_after_a_power_cut_is_started(
    host: BareHost, made: Bundles
) -> None:
    async def main() -> None:
        tool = bootstrap(made)
        await tool.install(host.shell, node(), fleet=FLEET)
        host.run("kill", "-9", *map(str, host.pids("main.py daemon")))
        shell = Watched(host.shell)
        assert (await tool.install(shell, node(), fleet=FLEET)).changed
        assert "unpack" not in verbs(shell)
        host.run("kill", "-9", *map(str, host.pids("main.py daemon")))
        host.run("sh", "-c", 'set -- /etc/rc2.d/S*llmgw-agent; exec "$1" start </dev/null >/dev/null 2>&1')
        end = asyncio.get_running_loop().time() + 30
        while True:
            assert asyncio.get_running_loop().time() < end, "it does not come up at boot"
            try:
                assert (await report(host)).agent.version == __version__
            except (OSError, LlmgwError):
                await asyncio.sleep(0.1)
            else:
                break
        assert not (await tool.install(host.shell, node(), fleet=FLEET)).changed

    asyncio.run(main())


# ---- interruptions --------------------------------------------------------------------------------------

COMMANDS = ["look", "user", "lay-out", "unpack", "settings", "switch", "name", "serve", "start", "prune"]


def test_these_are_the_commands(host: BareHost, made: Bundles) -> None:
    shell = Watched(host.shell)
    asyncio.run(bootstrap(made).install(shell, node(), fleet=FLEET))
    assert ["look", *verbs(shell)] == COMMANDS


@pytest.mark.parametrize("number", range(1, len(COMMANDS) + 1), ids=COMMANDS)
def test_cut_off_after_any_command_the_next_one_ends_well(host: BareHost, made: Bundles, number: int) -> None:
    async def main() -> None:
        tool = bootstrap(made)
        with pytest.raises(RetryError):
            await tool.install(Watched(host.shell, dies_at=number), node(), fleet=FLEET)
        with suppress(
            RetryError
        ):  # and again, before it has done anything more; after the last there is nothing left
            await tool.install(Watched(host.shell, dies_at=2, after=False), node(), fleet=FLEET)
        done = await tool.install(host.shell, node(), fleet=FLEET)
        assert not (await tool.install(host.shell, node(), fleet=FLEET)).changed
        assert host.run("ls", "-A", f"{WORK}/agents").split() == [done.digest]
        assert len(host.pids("main.py daemon")) == 1
        assert (await report(host)).agent.version == __version__

    asyncio.run(main())


async def place_of(tool_shell: Shell) -> Place:
    return Place(node="gpu01", shell=tool_shell, python="/usr/bin/python3", sudo=False)


def test_a_bundle_that_came_in_part_or_damaged_never_gets_its_name(host: BareHost, made: Bundles) -> None:
    @dataclass(slots=True)
    class Cut:
        """Standard input ends early, as when a connection dies."""

        shell: Shell
        missing: int

        async def run(
            self, command: Sequence[str], *, stdin: bytes = b"", timeout: float, sudo: bool = False
        ) -> LocalEnded:
            cut = stdin[: len(stdin) - self.missing]
            ended = await self.shell.run(command, stdin=cut, timeout=timeout, sudo=sudo)
            return LocalEnded(code=ended.code, out=ended.out, err=ended.err)

    async def main() -> None:
        look = await bootstrap(made).look(host.shell, node())
        assert look.inside is not None
        bundle = await made.bundle(target_of(look.inside), Pip())
        place = await place_of(host.shell)
        await call(place, "setup", "lay-out", WORK, "", doing="making")
        words = ("unpack", WORK, bundle.digest)
        for missing in (1, len(bundle.data) // 2, len(bundle.data) + 10):
            with pytest.raises(StalledError, match=r"bytes came|came in part only"):
                await call(
                    await place_of(Cut(host.shell, missing)),
                    "setup",
                    *words,
                    payload=bundle.data,
                    doing="uploading",
                )
        for damaged in (bundle.data[:-9] + b"123456789", b"nonsense"):
            with pytest.raises(StalledError, match="came through damaged: try again"):
                await call(place, "setup", *words, payload=damaged, doing="uploading")
        host.run("mkdir", f"{WORK}/agents/.new-{bundle.digest}")  # killed in the middle of unpacking
        assert host.run("ls", f"{WORK}/agents") == ""
        await bootstrap(made).install(host.shell, node(), fleet=FLEET)
        assert host.run("ls", "-A", f"{WORK}/agents").split() == [bundle.digest]

    asyncio.run(main())


def test_two_controllers_at_once_end_with_one_agent(host: BareHost, made: Bundles) -> None:
    async def main() -> None:
        tool = bootstrap(made)
        done = await asyncio.gather(
            *(tool.install(host.shell, node(), fleet=FLEET) for _ in range(3)), return_exceptions=True
        )
        assert any(isinstance(one, Installed) for one in done), done
        assert all(isinstance(one, Installed | LlmgwError) for one in done), done
        await tool.install(host.shell, node(), fleet=FLEET)
        assert len(host.pids("main.py daemon")) == 1

    asyncio.run(main())


# ---- what is in the way ---------------------------------------------------------------------------------


def test_a_renamed_nodes_agent_is_told_and_another_nodes_is_refused(host: BareHost, made: Bundles) -> None:
    async def main() -> None:
        tool = bootstrap(made)
        await tool.install(host.shell, node("old7"), fleet=FLEET)
        with pytest.raises(StalledError, match=r"write llmgw/renamed-from: old7"):
            await tool.install(host.shell, node(), fleet=FLEET)
        renamed = replace(node(), formerly=("old7",))
        assert (await tool.install(host.shell, renamed, fleet=FLEET)).changed
        assert (await report(host)).agent.node == node().name
        assert not (await tool.install(host.shell, renamed, fleet=FLEET)).changed

    asyncio.run(main())


def test_another_fleets_node_is_refused_before_anything_is_touched_and_taken_over_on_a_persons_word(
    host: BareHost, made: Bundles
) -> None:
    async def main() -> None:
        tool = bootstrap(made)
        await tool.install(host.shell, node("old7"), fleet="fleet-9")
        before = host.run("cat", f"{WORK}/agent.json")
        with pytest.raises(
            StalledError, match=r"belongs to fleet fleet-9, as node old7; this is fleet fleet-1"
        ):
            await tool.install(host.shell, node(), fleet=FLEET)
        with pytest.raises(StalledError, match="belongs to fleet fleet-9"):
            await tool.uninstall(host.shell, node(), fleet=FLEET)
        assert host.run("cat", f"{WORK}/agent.json") == before
        await tool.install(host.shell, node(), fleet=FLEET, take_over=True)
        assert (await report(host)).agent.fleet == FLEET

    asyncio.run(main())


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        ("mount -t tmpfs -o size=64k tmpfs {work}", "has 0 MiB free, 256 MiB are needed"),
        ("mount -t tmpfs -o size=300m,ro tmpfs {work}", "mounted read-only"),
        ("mount -t tmpfs -o size=300m,noexec tmpfs {work}", "mounted noexec"),
        ("rmdir {work} && touch {work}", "/var/lib/llmgw-agent is no directory"),
        ("rm -f /usr/bin/python3* && mkdir {work}/here", "Python 3.10 or newer is needed"),
    ],
    ids=["full", "read-only", "noexec", "file", "no python"],
)
def test_a_machine_that_will_not_do_is_left_as_it_is(
    host: BareHost, made: Bundles, prepare: str, told: str
) -> None:
    host.run("mkdir", "-p", WORK)
    host.run("sh", "-c", prepare.format(work=WORK))
    before = host.run("find", WORK, "/etc/passwd", "/etc/init.d", "-printf", "%p %T@\n")
    shell = LocalShell(prefix=(*host.prefix, "env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"))
    with pytest.raises(StalledError, match=told) as caught:
        asyncio.run(bootstrap(made).install(shell, node(), fleet=FLEET))
    assert "\n  - " in str(caught.value)
    assert host.run("find", WORK, "/etc/passwd", "/etc/init.d", "-printf", "%p %T@\n") == before


def test_where_no_user_can_be_made_engines_run_as_root_and_it_says_so(host: BareHost, made: Bundles) -> None:
    host.run(
        "sh",
        "-c",
        "printf '#!/bin/sh\\necho policy forbids it >&2\\nexit 9\\n' >/usr/sbin/useradd; rm /usr/sbin/adduser",
    )

    async def main() -> None:
        tool = bootstrap(made)
        done = await tool.install(host.shell, node(), fleet=FLEET)
        assert done.notes == (
            "engines run as root, as the agent does: user llmgw-engine could not be made: policy forbids it",
            BOOT_NOTE,
        )
        shard = await start_engine(host)
        assert host.run("stat", "-c", "%U", f"/proc/{shard.pid}") == "root\n"
        await stop_engine(host, shard.shard)
        with pytest.raises(
            StalledError, match="making engineUser vips: policy forbids it: make that user by hand"
        ):
            await tool.install(host.shell, node(engine_user="vips"), fleet=FLEET)

    asyncio.run(main())


def test_a_user_without_root_gets_an_agent_in_a_directory_of_its_own(host: BareHost, made: Bundles) -> None:
    host.run("useradd", "--create-home", "ann")
    uid = host.run("id", "-u", "ann").strip()
    as_ann = (*host.prefix, "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--")
    shell = LocalShell(prefix=as_ann)

    async def main() -> None:
        tool = bootstrap(made)
        with pytest.raises(StalledError, match="user ann is not root and may not write to /var/lib"):
            await tool.install(shell, node(), fleet=FLEET)
        own = node(work="/home/ann/agent")
        done = await tool.install(shell, own, fleet=FLEET)
        assert done.notes[0].startswith("engines run as ann, as the agent does")
        assert done.notes[1].startswith("nothing here starts its agent at boot")
        assert (await report(host, "/home/ann/agent")).agent.user == "ann"
        with pytest.raises(StalledError, match="engineUser x: only root may start engines as another user"):
            await tool.install(shell, replace(own, spec=replace(own.spec, engine_user="x")), fleet=FLEET)
        assert await tool.uninstall(shell, own, fleet=FLEET, everything=True) == ()

    asyncio.run(main())


def test_an_agent_that_does_not_come_up_is_explained_by_its_own_log(host: BareHost, made: Bundles) -> None:
    async def main() -> None:
        tool = bootstrap(made)
        await tool.install(host.shell, node(), fleet=FLEET)
        host.run("kill", "-9", *map(str, host.pids("main.py daemon")))
        host.run("sh", "-c", f"mkdir -p {WORK}/state && echo nonsense >{WORK}/state/owner.json")
        with pytest.raises(
            StalledError, match=r"(?s)starting its agent: .*it ended with 1; the end of its log:.*"
        ):
            await tool.install(host.shell, node(), fleet=FLEET)

    asyncio.run(main())


def test_a_login_that_prints_a_banner_does_not_matter(host: BareHost, made: Bundles) -> None:
    noisy = LocalShell(
        prefix=(*host.prefix, "sh", "-c", 'echo "WELCOME to gpu01"; echo noise >&2; exec "$@"', "sh")
    )
    assert asyncio.run(bootstrap(made).install(noisy, node(), fleet=FLEET)).changed


# ---- secrets and leaving --------------------------------------------------------------------------------


def test_the_nodes_secrets_stand_in_its_settings_only(host: BareHost, made: Bundles) -> None:
    told: list[str] = []
    tool = bootstrap(made, told=told.append, environ={"TOKEN": "canary-1"})

    async def main() -> None:
        shell = Watched(host.shell)
        with_secret = node(env={"HF_TOKEN": Secret(from_env="TOKEN")})
        with pytest.raises(StalledError, match="NOWHERE"):
            await tool.install(shell, node(env={"A": Secret(from_env="NOWHERE")}), fleet=FLEET)
        assert [words[0] for words in shell.commands] == ["sh"], "nothing was begun"
        done = await tool.install(shell, with_secret, fleet=FLEET)
        assert "canary" not in repr((shell.commands, told, done))
        kept = json.loads(host.run("cat", f"{WORK}/agent.json"))
        assert kept["env"] == {"HF_TOKEN": "canary-1"}
        agent = host.pids("main.py daemon")[0]
        places = f"{WORK} /etc /var/log /tmp"
        look = f"grep -rl 'canary-[1]' {places} /proc/{agent}/environ /proc/[0-9]*/cmdline 2>/dev/null; true"
        found = host.run("sh", "-c", look)
        assert found.split() == [f"{WORK}/agent.json"]

    asyncio.run(main())


def test_removing_the_agent_leaves_engines_weights_and_orders(host: BareHost, made: Bundles) -> None:
    async def main() -> None:
        tool = bootstrap(made)
        dirs = Dirs(work=WORK, weights="/data/weights", engines="/data/engines")
        there = node(dirs=dirs)
        await tool.install(host.shell, there, fleet=FLEET)
        host.run("touch", "/data/weights/big")
        shard = await start_engine(host)
        left = await tool.uninstall(host.shell, there, fleet=FLEET)
        assert not {"agents", "current", "agent.json", "agent.sock"} & set(left)
        assert {"shards", "home", "logs"} <= set(left)
        assert host.pids("main.py daemon") == []
        assert host.run("find", "/etc", "-name", "*llmgw*") == ""
        assert host.run("ls", "/data/weights") == "big\n"
        assert host.run("ps", "-o", "pid=", "-p", str(shard.pid)).strip() == str(shard.pid)
        await tool.uninstall(host.shell, there, fleet=FLEET)  # a second time is no error
        await tool.install(host.shell, there, fleet=FLEET)  # and the next agent adopts what runs
        again = await shard_when(host, lambda one: one.state == "ready")
        assert again.pid == shard.pid
        await stop_engine(host, shard.shard)
        host.run("sh", "-c", f"rm -r {WORK}/shards/*")
        assert await tool.uninstall(host.shell, there, fleet=FLEET, everything=True) == ()
        assert (
            host.run("sh", "-c", "ls /var/lib | grep llmgw; grep llmgw /etc/passwd; ls /data/weights")
            == "big\n"
        )

    asyncio.run(main())


@pytest.mark.parametrize("way", ["crontab", "rc.local", "local.d"])
def test_every_way_to_start_at_boot_is_written_once_and_taken_away(
    host: BareHost, made: Bundles, way: str
) -> None:
    kept = "/etc/kept"
    fake = f'#!/bin/sh\nif [ "$1" = -l ]; then cat {kept}; else cat >{kept}; fi\n'
    if way == "crontab":
        host.run(
            "sh",
            "-c",
            f"cat >/usr/bin/crontab; chmod 755 /usr/bin/crontab; echo '0 1 * * * own' >{kept}",
            stdin=fake,
        )
    elif way == "rc.local":
        kept = "/etc/rc.local"
        host.run("sh", "-c", f"cat >{kept}", stdin="#!/bin/sh -e\nown\nexit 0\n")
    else:
        kept = "/etc/local.d/llmgw-agent.start"
        host.run("mkdir", "/etc/local.d")

    async def main() -> None:
        tool = bootstrap(made)
        before = host.run("sh", "-c", f"cat {kept} 2>/dev/null || true")
        done = await tool.install(host.shell, node(), fleet=FLEET)
        assert any(("cron" if way == "crontab" else way) in note for note in done.notes)
        await tool.install(host.shell, node(ports=PortRange(from_port=20000, to_port=20009)), fleet=FLEET)
        text = host.run("cat", kept)
        assert text.count("current/bin/llmgw-agent daemon --work /var/lib/llmgw-agent") == 1
        if way == "rc.local":
            assert text.splitlines()[0] == "#!/bin/sh -e"
            assert text.splitlines()[-1] == "exit 0"
            assert host.run("stat", "-c", "%a", kept) == "755\n"
        again = node(ports=PortRange(from_port=20000, to_port=20009))
        assert not (await tool.install(host.shell, again, fleet=FLEET)).changed
        tidy = f"rm {kept}" if way == "local.d" else f"sed -i '/llmgw-agent/d' {kept}"
        host.run("sh", "-c", tidy)  # somebody has tidied up
        assert (await tool.install(host.shell, again, fleet=FLEET)).changed
        assert "current/bin/llmgw-agent daemon" in host.run("cat", kept)
        await tool.uninstall(host.shell, node(), fleet=FLEET)
        assert host.run("sh", "-c", f"cat {kept} 2>/dev/null || true") == before

    asyncio.run(main())
