"""Each thing that may be wrong with a node is one line that says what to do."""

from pathlib import Path

import pytest

from llmgw.agent.doctor.checks import Seen, checks
from llmgw.agent.doctor.looking import Entry, Looks, User, gaps, look
from llmgw.agent.settings import layout, make_folders
from llmgw.model.checkup import Check, Level, lines, worst
from llmgw.model.facts import Disk, Facts, Gpu, GpuProcess, HcaPort
from llmgw.model.localpolicy import LocalPolicy
from llmgw.model.report import AgentInfo, ByHand, JobReport, Report, ShardReport
from llmgw.model.struct import replace
from llmgw.wire.messages import PROTOCOL
from llmgw.wire.setup import AgentSettings
from tests.agent.agents import NOON

GIB = 1024**3
SOCKET = Entry(path="/w/agent.sock", wanted=0o600, mode=0o600, owner=0)
LOOKS = Looks(
    socket=SOCKET,
    entries=(Entry(path="/w", wanted=0o711, mode=0o711, owner=0),),
    user=User(name="llmgw-engine", uid=900),
    own_user=0,
    clock_kept=True,
)
FACTS = Facts(
    shm_total=8 * GIB,
    disks=(Disk(path="/w", total=100 * GIB, free=50 * GIB),),
    ephemeral_ports=(32768, 60999),
)
AGENT = AgentInfo(
    version="1", protocol=PROTOCOL, fleet=None, node="n1", boot_id="b", pid=7, started=NOON, user="root"
)
GPU = Gpu(uuid="GPU-1", index=0, name="A", gpu_class="a-1g", memory_total=GIB)


def seen(**changes: object) -> Seen:
    given: dict[str, object] = {
        "node": "n1",
        "work": "/w",
        "settings": AgentSettings(node="n1"),
        "facts": FACTS,
        "looks": LOOKS,
        "policy": "/etc/llmgw/agent.yaml",
        "report": Report(agent=AGENT, at=NOON, facts=FACTS),
        **changes,
    }
    return Seen(**given)  # type: ignore[arg-type]


def amiss(one: Seen) -> list[Check]:
    return [check for check in checks(one) if check.level is not Level.OK]


def shard(**changes: object) -> ShardReport:
    given: dict[str, object] = {
        "shard": "chat-1f0c9a2b-0.1-r0",
        "replica": "chat-1f0c9a2b-0.1",
        "rank": 0,
        "ranks": 1,
        "model": "chat",
        "profile": "small",
        "spec_digest": "",
        "state": "ready",
        "reason": "",
        "since": NOON,
        **changes,
    }
    return ShardReport(**given)  # type: ignore[arg-type]


def reporting(**changes: object) -> Report:
    return replace(Report(agent=AGENT, at=NOON, facts=FACTS), **changes)  # type: ignore[arg-type]


def test_a_sound_node_is_told_line_by_line_and_nothing_is_amiss() -> None:
    found = checks(seen())
    assert amiss(seen()) == []
    assert worst(found) is Level.OK
    named = [check.name for check in found]
    assert named == [
        *(
            "agent",
            "socket",
            "directories",
            "engine user",
            "policy",
            "disk",
            "shared memory",
            "ports",
            "driver",
        ),
        *("orders", "leftovers", "journal", "clock"),
    ]
    assert all(line.startswith("ok    ") for line in lines(found))


FAILING = HcaPort(device="mlx5_0", port=1, link_layer="InfiniBand", state="DOWN", physical="Polling")
STRANGER = replace(GPU, processes=(GpuProcess(pid=9, user="bob", memory=GIB, command="python"),))


@pytest.mark.parametrize(
    ("one", "name", "level", "text", "do"),
    [
        (seen(report=None, silence="No such file"), "agent", "fail", "no agent answers", "bootstrap n1"),
        (seen(report=reporting(problems=("full",))), "agent", "warn", "full", "agent.log"),
        (
            seen(looks=replace(LOOKS, socket=replace(SOCKET, mode=0o666))),
            "socket",
            "warn",
            "0666",
            "chmod 600",
        ),
        (seen(looks=replace(LOOKS, socket=replace(SOCKET, mode=None))), "socket", "fail", "gone", "anew"),
        (seen(looks=replace(LOOKS, socket=replace(SOCKET, owner=5))), "socket", "warn", "number 5", "chown"),
        (
            seen(looks=replace(LOOKS, entries=(Entry(path="/w/logs", wanted=0o700),))),
            *("directories", "fail", "/w/logs is missing", "anew"),
        ),
        (
            seen(looks=replace(LOOKS, entries=(Entry(path="/w", wanted=0o711, error="denied"),))),
            *("directories", "warn", "denied", "root"),
        ),
        (
            seen(looks=replace(LOOKS, user=User(name="x", uid=None))),
            "engine user",
            "fail",
            "no user x",
            "bootstrap",
        ),
        (
            seen(looks=replace(LOOKS, user=User(name="root", uid=0))),
            "engine user",
            "warn",
            "as root",
            "useradd",
        ),
        (
            seen(facts=replace(FACTS, policy=LocalPolicy(file="/p", obstacle="/p:3: no"))),
            *("policy", "fail", "/p:3: no", "line"),
        ),
        (
            seen(facts=replace(FACTS, disks=(Disk(path="/w", total=GIB, free=5),))),
            *("disk", "fail", "0.0 GiB of 1.0 GiB", "gc"),
        ),
        (
            seen(facts=replace(FACTS, disks=(Disk(path="/w", total=90 * GIB, free=5 * GIB),))),
            *("disk", "warn", "5.0 GiB", "gc"),
        ),
        (seen(facts=replace(FACTS, shm_total=64 * 1024**2)), "shared memory", "warn", "64 MiB", "remount"),
        (seen(facts=replace(FACTS, shm_total=None)), "shared memory", "fail", "no /dev/shm", "tmpfs"),
        (
            seen(facts=replace(FACTS, ephemeral_ports=(1024, 60999))),
            *("ports", "warn", "1024 to 60999", "ip_local_reserved_ports=18000-18999"),
        ),
        (seen(facts=replace(FACTS, problems=("NVML hangs",))), "driver", "fail", "NVML hangs", "nvidia-smi"),
        (
            seen(facts=replace(FACTS, problems=("looking at ports: x",))),
            "facts",
            "warn",
            "ports",
            "agent.log",
        ),
        (
            seen(facts=replace(FACTS, gpus=(replace(GPU, health=("lost",)),))),
            "gpu",
            "fail",
            "lost",
            "docs/nodes.md",
        ),
        (seen(facts=replace(FACTS, gpus=(STRANGER,))), "gpu processes", "warn", "pid 9 of user bob", "ask"),
        (seen(facts=replace(FACTS, hca_ports=(FAILING,))), "adapters", "warn", "DOWN (Polling)", "cable"),
        (
            seen(looks=replace(LOOKS, unreadable=("/w/shards/s.json",))),
            "orders",
            "fail",
            "shard s can't be read",
            "apply",
        ),
        (
            seen(report=reporting(shards=(shard(state="failed", last_error="died"),))),
            *("shards", "fail", "is failed: died", "llmgw-agent logs"),
        ),
        (
            seen(report=reporting(shards=(shard(by_hand=ByHand(verb="stopped", by="ann", at=NOON)),))),
            *("shards", "warn", "stopped by hand by ann", "apply"),
        ),
        (
            seen(
                report=reporting(
                    jobs=(
                        JobReport(
                            job="fetch-1",  # type: ignore[arg-type]
                            kind="fetch",
                            target="",
                            description="w",
                            state="failed",
                            error="404",
                        ),
                    )
                )
            ),
            *("jobs", "fail", "fetch-1 (w): 404", "apply"),
        ),
        (seen(strays=("chat-1-r0",)), "leftovers", "warn", "chat-1-r0", "`llmgw-agent stop chat-1-r0`"),
        (seen(looks=replace(LOOKS, gaps=((3, 5),))), "journal", "warn", "entries 3 to 5", "know"),
        (seen(looks=replace(LOOKS, journal_error="broken")), "journal", "fail", "broken", "disk"),
        (seen(looks=replace(LOOKS, clock_kept=False)), "clock", "warn", "nothing keeps it", "chrony"),
    ],
)
def test_what_is_amiss_is_one_line_with_what_to_do(
    one: Seen, name: str, level: str, text: str, do: str
) -> None:
    (found,) = amiss(one)
    assert (found.name, found.level.value) == (name, level)
    assert text in found.text
    assert do in found.do


def test_ports_that_the_kernel_keeps_are_no_reason_to_warn() -> None:
    wide = replace(FACTS, ephemeral_ports=(1024, 60999))
    assert amiss(seen(facts=wide, looks=replace(LOOKS, kept_ports=((18000, 18999),)))) == []
    assert len(amiss(seen(facts=wide, looks=replace(LOOKS, kept_ports=((18000, 18998),))))) == 1


def test_what_fails_ends_a_command_and_what_warns_does_not() -> None:
    assert worst(checks(seen(strays=("s",)))) is Level.WARN
    assert worst(checks(seen(report=None))) is Level.FAIL


def test_the_look_reads_a_real_work_directory(tmp_path: Path) -> None:
    settings = AgentSettings(node="n1")
    places = layout(tmp_path, settings)
    make_folders(places)
    (tmp_path / "agent.json").touch(0o600)
    (tmp_path / "logs").chmod(0o755)
    (tmp_path / "shards" / "unreadable" / "s.json").touch()
    (tmp_path / "shards" / "half.json").write_bytes(b'{"spec": ')
    (tmp_path / "shards" / ".written-now.json.new").touch()
    places.journal.write_bytes(
        b"".join(
            b'{"number": %d, "at": "2030-01-01T00:00:00Z", "kind": "x", "subject": "", "text": ""}\n' % number
            for number in (1, 2, 5)
        )
        + b'{"number": 9'
    )
    found = look(places, engine_user="nobody-of-that-name")
    assert found.socket.mode is None
    assert [entry.path for entry in found.entries if entry.mode != entry.wanted] == [str(tmp_path / "logs")]
    folder = tmp_path / "shards"
    assert found.unreadable == (str(folder / "half.json"), str(folder / "unreadable" / "s.json"))
    assert found.gaps == ((3, 4),)
    assert found.user == User(name="nobody-of-that-name", uid=None)
    assert places.journal.read_bytes().endswith(b'{"number": 9')


def test_gaps_are_found_between_numbers_whatever_their_order() -> None:
    assert gaps([]) == gaps([7]) == gaps([1, 2, 3]) == ()
    assert gaps([1, 4, 4, 3, 9]) == ((2, 3), (5, 8))
