"""What a machine must be before an agent comes: everything that is wrong at once, in words that say what to do."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

import pytest

from llmgw.clock import FakeClock
from llmgw.controller.nodes.bootstrap.checks import NEEDED, Asked, notes, problems, require, require_space
from llmgw.controller.nodes.bootstrap.look import Wanted, look, read
from llmgw.controller.nodes.bootstrap.machine import Bundles, Folder, Machine, Owner, Python
from llmgw.controller.nodes.bootstrap.shell import LocalEnded, LocalShell
from llmgw.controller.nodes.layout import forced_command, service_name, work_of
from llmgw.model.manifest import Dirs, NodeSpec, Ssh
from llmgw.model.problems import RetryError, StalledError
from llmgw.model.struct import replace
from tests.controller.nodes.machines import WORK, bare, machine

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
ROOT = NodeSpec(ssh=Ssh(host="10.0.0.1"))
SUDO = NodeSpec(ssh=Ssh(host="10.0.0.1", user="ann", become="sudo"))
WANTED = Wanted(node="gpu01", work=WORK, service="llmgw-agent", engine_user="llmgw-engine")
MIB = 1024 * 1024


def asked(spec: NodeSpec = ROOT, *, take_over: bool = False, formerly: tuple[str, ...] = ()) -> Asked:
    return Asked(node="gpu01", formerly=formerly, fleet="fleet-1", spec=spec, take_over=take_over)


def told(found: Machine, spec: NodeSpec = ROOT) -> list[str]:
    return [str(problem) for problem in problems(found, asked(spec))]


def test_a_fresh_machine_is_fine() -> None:
    assert told(machine()) == []
    assert notes(machine()) == ()


def test_everything_that_is_wrong_is_told_at_once() -> None:
    found = machine(
        root=False,
        user="ann",
        writable=False,
        seen=("/usr/bin/python3: 3.8",),
        free=100 * MIB,
        os_ids=("ubuntu", "debian"),
        os_name="Ubuntu 20.04.6 LTS",
    )
    with pytest.raises(StalledError) as caught:
        require(replace(found, inside=None), asked())
    assert str(caught.value) == (
        "node gpu01: this machine can't take an agent as it is:\n"
        "  - user ann is not root and may not write to /var/lib: set ssh.become: sudo, or ssh.user: root, or dirs.work to a"
        " directory of that user\n"
        "  - Python 3.10 or newer is needed; found: /usr/bin/python3: 3.8: on Ubuntu 20.04.6 LTS: `sudo apt install python3"
        " python3-venv`; where that brings an older one, put a newer anywhere and name it in python\n"
        "  - /var/lib has 100 MiB free, 256 MiB are needed: free some, or choose another in dirs"
    )


@pytest.mark.parametrize(
    ("ids", "line"),
    [
        (("debian",), ": on Linux: `sudo apt install python3 python3-venv`"),
        (("rocky", "rhel", "centos", "fedora"), ": on Linux: `sudo dnf install python3.12`"),
        (("opensuse-leap", "suse", "opensuse"), ": on Linux: `sudo zypper install python311`"),
        (("alpine",), ": on Linux: `sudo apk add python3`"),
        (("nixos",), ": install one, or name one in python"),
    ],
)
def test_a_missing_python_comes_with_the_distributions_own_line(ids: tuple[str, ...], line: str) -> None:
    found = replace(machine(os_ids=ids, os_name="Linux"), inside=None)
    assert told(found) == [f"Python 3.10 or newer is needed; found: none{line}"]


def test_a_python_that_the_manifest_names_and_that_will_not_do_is_named() -> None:
    spec = replace(ROOT, python="/opt/py/bin/python")
    found = replace(machine(seen=("/opt/py/bin/python: 3.9",)), inside=None)
    assert told(found, spec) == [
        (
            "python: /opt/py/bin/python won't do, Python 3.10 or newer is needed (/opt/py/bin/python: 3.9): name another, or leave"
            " python out to take the newest there is"
        )
    ]


def test_a_python_without_what_the_agent_needs_is_named() -> None:
    python = Python(version=(3, 13), executable="/opt/p", lacks=("ssl", "ctypes"), free_threaded=True)
    assert told(machine(bare(python=python))) == [
        "/opt/p lacks ssl, ctypes: name a complete Python in python",
        "/opt/p is a free-threaded build, for which too few packages are made: name an ordinary one in python",
    ]


def test_an_engine_user_that_could_not_run_the_python_is_refused_only_when_it_was_asked_for() -> None:
    closed = bare(python=Python(version=(3, 12), executable="/root/py", open=False))
    assert told(machine(closed)) == []
    assert told(machine(closed), replace(ROOT, engine_user="engines")) == [
        (
            "/root/py can't be run by others, so not by engineUser engines: name one in python that everybody may run, such as"
            " /usr/bin/python3"
        )
    ]


def test_sudo_that_is_refused_is_told_beside_the_rest() -> None:
    found = machine(
        bare(folders=(Folder(path=WORK, nearest="/", free=5 * MIB, writable=False),)),
        root=False,
        user="ann",
        writable=False,
        sudo_refused="sudo: a password is required",
    )
    assert told(found, SUDO) == [
        (
            "user ann can't become root by sudo: sudo: a password is required: `ann ALL=(root) NOPASSWD: ALL` in a file of"
            " /etc/sudoers.d allows it; or ssh.user: root"
        ),
        "/ has 5 MiB free, 256 MiB are needed: free some, or choose another in dirs",
    ]


def test_a_full_disk_matters_only_to_a_bundle_that_is_still_to_come() -> None:
    full = bare(folders=(Folder(path=WORK, nearest=WORK, free=0),), bundles=Bundles(agents=("ab12",)))
    assert told(machine(full)) == []
    with pytest.raises(
        StalledError, match=f"node gpu01: this machine can't take a new agent: {WORK} has 0 MiB free"
    ):
        require_space(full, asked())
    require_space(replace(full, folders=(Folder(path=WORK, nearest=WORK, free=NEEDED),)), asked())


def test_a_user_without_root_may_have_an_agent_in_a_directory_of_its_own() -> None:
    assert told(machine(root=False, user="ann", writable=True)) == []


def test_another_fleets_agent_is_named_with_the_way_to_take_it_over() -> None:
    other = bare(owner=Owner(node="old7", fleet="fleet-9", digest=""))
    assert told(machine(other)) == [
        (
            "its agent belongs to fleet fleet-9, as node old7; this is fleet fleet-1: remove it from that fleet, or `llmgw node adopt"
            " gpu01 --take-over`"
        )
    ]
    assert problems(machine(other), asked(take_over=True)) == ()
    renamed = bare(owner=Owner(node="old7", fleet="fleet-1", digest=""))
    assert told(machine(renamed)) == [
        (
            "its agent is that of node old7 of the same fleet: one machine is one node; where that one has become gpu01, write"
            " llmgw/renamed-from: old7 under its metadata.annotations; to make it another node all the same: `llmgw node adopt gpu01"
            " --take-over`"
        )
    ]
    assert problems(machine(renamed), asked(formerly=("old6", "old7"))) == ()
    mine = bare(owner=Owner(node="gpu01", fleet="fleet-1", digest=""))
    assert told(machine(mine)) == []


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        (
            Folder(path="/data/w", nearest="/data", free=NEEDED, read_only=True),
            "/data/w: /data lies on a file system that is mounted read-only: see the kernel's log, or choose another in dirs",
        ),
        (
            Folder(path="/data/w", nearest="/data", free=NEEDED, no_exec=True),
            (
                "/data/w: /data lies on a file system mounted noexec, nothing there can be run: mount it without noexec, or choose"
                " another in dirs"
            ),
        ),
        (
            Folder(path="/data/w", nearest="/data", is_folder=False),
            "/data/w: /data is no directory: choose another in dirs",
        ),
        (
            Folder(path="/data/w", nearest="/data", free=NEEDED, writable=False),
            "/data/w: /data can't be written: choose another in dirs",
        ),
        (
            Folder(path="/data/w", nearest="/data", free=NEEDED - 1),
            "/data has 255 MiB free, 256 MiB are needed: free some, or choose another in dirs",
        ),
    ],
)
def test_directories_that_will_not_do_are_named(folder: Folder, line: str) -> None:
    assert told(machine(bare(folders=(bare().folders[0], folder)))) == [line]


def test_what_is_no_obstacle_is_noted() -> None:
    python = Python(version=(3, 11), executable="/usr/bin/python3.11", makes_environments=False)
    assert notes(machine(bare(python=python, others=("/srv/agent",)), skew=-42.4)) == (
        "its clock is 42 s behind: let it follow a time server",
        (
            "/usr/bin/python3.11 can't make virtual environments, which engines are installed into: on Debian GNU/Linux 12 (bookworm):"
            " `sudo apt install python3.11-venv`"
        ),
        "another agent works on this machine, in /srv/agent: both may hand out the same GPUs",
    )
    assert notes(machine(skew=4.9)) == ()


# ---- looking --------------------------------------------------------------------------------------------


def test_this_machine_can_be_looked_at_and_nothing_of_it_changes() -> None:
    found = asyncio.run(look(LocalShell(), replace(WANTED, work="/var/lib/nobody/here"), FakeClock(NOW)))
    assert found.inside is not None
    assert found.inside.python.version >= (3, 10)
    assert found.nearest == found.inside.folders[0].nearest == "/var/lib"
    assert found.skew > 5, "the clock given here stands in the past"
    assert found.os_ids


def test_a_python_that_is_not_there_is_looked_for_and_told() -> None:
    found = asyncio.run(look(LocalShell(), replace(WANTED, python="/no/python"), FakeClock(NOW)))
    assert found.inside is None
    assert len(found.seen) == 1
    assert found.seen[0].startswith("/no/python: ")
    assert "not found" in found.seen[0]


def answer(text: str, code: int | None = 0) -> LocalEnded:
    return LocalEnded(code=code, out=text.encode(), err=b"boom\n")


def test_what_a_login_shell_prints_before_is_skipped() -> None:
    noise = "WELCOME to gpu01!\nuid 0\nllmgw-look 1\nuid 1000\nuser ann\narch x86_64\nfree 7\nnearest /srv\nos ID=debian\n"
    found = read(answer(noise), WANTED, before=NOW, after=NOW)
    assert (found.root, found.user, found.free, found.nearest) == (False, "ann", 7168, "/srv")
    assert found.os_ids == ("debian",)


def test_no_answer_is_an_error_with_what_was_said_and_a_lost_line_is_worth_another_try() -> None:
    with pytest.raises(StalledError, match=r"node gpu01: looking at the machine: .*ended with 1: boom"):
        read(answer("", code=1), WANTED, before=NOW, after=NOW)
    with pytest.raises(RetryError, match="the line was lost"):
        read(answer("", code=None), WANTED, before=NOW, after=NOW)
    with pytest.raises(StalledError, match=r"not a valid Inside"):
        read(answer("llmgw-look 1\npython /x\nlook {}\n"), WANTED, before=NOW, after=NOW)


@pytest.mark.parametrize(("offset", "skew"), [(0, 0), (2, 0), (100, 97), (-100, -99)])
def test_a_clock_that_differs_is_measured_and_the_questions_own_time_is_not_counted(
    offset: int, skew: float
) -> None:
    text = f"llmgw-look 1\nnow {int(NOW.timestamp()) + offset}\n"
    assert read(answer(text), WANTED, before=NOW, after=NOW + timedelta(seconds=3)).skew == skew


@pytest.mark.parametrize("raises", [True, False])
def test_where_sudo_fails_the_rest_is_looked_at_without_it(raises: bool) -> None:  # noqa: FBT001 - two ways to fail
    class NoSudo:
        async def run(
            self, command: Sequence[str], *, stdin: bytes = b"", timeout: float, sudo: bool = False
        ) -> LocalEnded:
            if sudo and raises:
                raise StalledError(
                    "node gpu01 (ann@10.0.0.1): running sh -c 'python=$1…: sudo wants a password of ann"
                )
            if sudo:
                return LocalEnded(code=1, out=b"", err=b"sudo: a password is required\n")
            return answer("llmgw-look 1\nuid 1000\nuser ann\n")

    found = asyncio.run(look(NoSudo(), replace(WANTED, sudo=True), FakeClock(NOW)))
    assert found.user == "ann"
    assert found.sudo_refused == (
        "sudo wants a password of ann" if raises else "sudo: a password is required"
    )


# ---- names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written", ["relative/x", "/a%b", "/a\nb", "/a$b", "/it's", '/a"b', "/", "/var", "//", "/var/.."]
)
def test_work_directories_that_can_not_be_one_are_refused(written: str) -> None:
    with pytest.raises(StalledError, match=r"dirs\.work"):
        work_of("gpu01", replace(ROOT, dirs=Dirs(work=written)))


def test_one_directory_has_one_name() -> None:
    assert work_of("n", replace(ROOT, dirs=Dirs(work="//srv/./a//b/"))) == "/srv/a/b"
    assert service_name(WORK) == "llmgw-agent"
    assert service_name("/srv/a") != service_name("/srv/b")


def test_a_key_can_be_held_to_the_bridge() -> None:
    assert forced_command(SUDO) == (
        'restrict,command="sudo -n /var/lib/llmgw-agent/current/bin/llmgw-agent bridge --work /var/lib/llmgw-agent"'
    )
    odd = replace(ROOT, dirs=Dirs(work="/srv/a b"))
    assert forced_command(odd) == (
        "restrict,command=\"'/srv/a b/current/bin/llmgw-agent' bridge --work '/srv/a b'\""
    )
