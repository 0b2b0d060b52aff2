"""What the kernel's log and control groups say of a death; and that nothing there can fail, wait or be forged."""

import asyncio
import os
import signal
import time
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from llmgw.agent.seams import ProcessId, Running
from llmgw.agent.shards.autopsy import NOTHING_SEEN, Evidence, explain
from llmgw.agent.shards.kernellog import KMSG, KernelLog, buses, parse
from llmgw.agent.shards.witness import ROOT_PIDS, Death, Witness, in_first_namespace
from llmgw.core.lifecycle import describe_exit
from llmgw.model.report import Exit

UPTIME = 1_000_000.0
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
UUID = "GPU-509665ad-b600-ac93-3616-d754b23d636d"
OOM = "Out of memory: Killed process {pid} (python3) total-vm:81920kB, anon-rss:40960kB, UID:998 oom_score_adj:0"
MEMCG = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/box,"
    "task_memcg=/box/llmgw-ab12/chat-r0,task=python3,pid={pid},uid=998"
)
XID = "NVRM: Xid (PCI:0000:9b:00): {number}, pid=4711, name=python3, GPU has fallen off the bus."


def kernel_time(ago: float) -> int:
    """Microseconds since boot, as the kernel writes them."""
    return round((UPTIME - ago) * 1e6)


def record(text: str, ago: float = 1.0, priority: int = 6) -> str:
    return f"{priority},1,{kernel_time(ago)},-;{text}\n"


def running(pid: int = 4711, lived: float = 3600) -> Running:
    engine = ProcessId(boot_id="b", pid=pid, start=1)
    return Running(
        shard="chat-r0", process="engine", shim=None, engine=engine, started=NOW - timedelta(seconds=lived)
    )


def death(
    *,
    code: int | None = None,
    ago: float = 0,
    lived: float = 3600,
    cgroup: Path | None = None,
    gpus: Iterable[str] = (),
) -> Death:
    exit_ = Exit(
        at=NOW - timedelta(seconds=ago), code=code, signal=None if code is not None else signal.SIGKILL
    )
    return Death(running=running(lived=lived), exit=exit_, now=NOW, cgroup=cgroup, gpus=tuple(gpus))


def seen(log: Path, of: Death, *, bus: str = "", pids_count: bool = True) -> Evidence:
    witness = Witness(KernelLog(log), bus=lambda _: bus, pids_count=pids_count, uptime=lambda: UPTIME)
    try:
        return asyncio.run(witness.evidence(of))
    finally:
        witness.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "kmsg"


# ---- Lack of memory -----------------------------------------------------------------------------------------


def test_the_line_that_names_its_pid_says_out_of_memory(log: Path) -> None:
    log.write_text(record("usb 1-1: new device") + record(OOM.format(pid=4711)))
    found = seen(log, death())
    assert found.out_of_memory
    assert found.said == (f"the kernel has killed it for lack of memory: {OOM.format(pid=4711)}",)


def test_a_killed_process_of_its_control_group_is_its_own(log: Path) -> None:
    """An engine whose worker was killed ends by itself, with a code and a traceback about something else."""
    log.write_text(
        record(MEMCG.format(pid=4800)) + record("Memory cgroup " + OOM.format(pid=4800).replace("Out", "out"))
    )
    ours = death(code=1, cgroup=Path("/sys/fs/cgroup/llmgw-ab12/chat-r0"))
    found = seen(log, ours)
    assert found.out_of_memory
    assert found.said[0].startswith(
        "the kernel has killed one of its processes for lack of memory: Memory cgroup out of"
    )
    other = death(code=1, cgroup=Path("/sys/fs/cgroup/llmgw-ab12/chat-r01"))
    assert not seen(log, other).out_of_memory


def test_somebody_elses_kill_shortly_before_is_told_and_not_taken_for_its_own(log: Path) -> None:
    log.write_text(record(OOM.format(pid=99)))
    found = seen(log, death(code=1))
    assert not found.out_of_memory
    assert found.said == ("shortly before, the kernel killed pid 99 (python3) for lack of memory",)


@pytest.mark.parametrize("ago", [3600.0, 700.0])
def test_a_kill_long_before_was_of_another_process_with_that_pid(log: Path, ago: float) -> None:
    log.write_text(record(OOM.format(pid=4711), ago=ago))
    assert seen(log, death(lived=7200)) == NOTHING_SEEN


def test_a_kill_before_it_was_started_was_not_its_own(log: Path) -> None:
    log.write_text(record(OOM.format(pid=4711), ago=60))
    assert not seen(log, death(lived=20)).out_of_memory


def test_a_death_is_explained_also_when_nobody_was_there_to_see_it(log: Path) -> None:
    """The agent was down: the log is read from its start, the time is the exit's."""
    log.write_text(record(OOM.format(pid=4711), ago=1801))
    assert seen(log, death(ago=1800)).out_of_memory


def test_in_a_pid_namespace_the_kernels_pids_are_not_ours(log: Path) -> None:
    log.write_text(record(OOM.format(pid=4711)))
    found = seen(log, death(), pids_count=False)
    assert not found.out_of_memory
    assert found.said == ("shortly before, the kernel killed a process (python3) for lack of memory",)


def test_whether_the_kernels_pids_count_is_seen(tmp_path: Path) -> None:
    (tmp_path / "self" / "ns").mkdir(parents=True)
    link = tmp_path / "self" / "ns" / "pid"
    assert not in_first_namespace(tmp_path)
    link.symlink_to(ROOT_PIDS)
    assert in_first_namespace(tmp_path)
    link.unlink()
    link.symlink_to("pid:[4026532999]")
    assert not in_first_namespace(tmp_path)


def test_the_line_may_come_after_the_death_was_seen(log: Path) -> None:
    """The kernel sends the signal first, and writes of it then."""
    log.write_text("")
    kernel = KernelLog(log)
    witness = Witness(kernel, pids_count=True, uptime=lambda: UPTIME)

    async def main() -> Evidence:
        looking = asyncio.ensure_future(witness.evidence(death()))
        await asyncio.sleep(0.005)
        with log.open("a") as file:
            file.write(record(OOM.format(pid=4711), ago=0))
        return await looking

    assert asyncio.run(main()).out_of_memory
    witness.close()


@pytest.mark.parametrize(
    ("events", "killed"),
    [
        ("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n", 2),
        ("low 0\noom 5\noom_kill 0\n", 0),
        ("oom_kill many\n", 0),
        ("oom_kill\n", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_its_control_group_counts_kills_where_its_memory_is_counted(
    tmp_path: Path, log: Path, events: str | None, killed: int
) -> None:
    log.write_text("")
    if events is not None:
        (tmp_path / "memory.events").write_text(events)
    found = seen(log, death(code=1, cgroup=tmp_path))
    assert found.out_of_memory is bool(killed)
    if killed:
        assert found.said == ("the kernel has killed 2 of its processes for lack of memory (memory.events)",)


# ---- GPUs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bus", ["0000:9b:00.0", ""])
def test_errors_of_its_own_gpus_around_its_death_are_told(log: Path, bus: str) -> None:
    """Where the agent has not seen the GPU yet, the driver's own line says which address its UUID has."""
    named = f"NVRM: GPU at PCI:0000:9b:00: {UUID}"
    other = XID.format(number=31).replace("9b", "9c")
    log.write_text(record(named, ago=9000) + record(other, ago=4) + record(XID.format(number=79), ago=3))
    found = seen(log, death(code=1, gpus=[UUID]), bus=bus)
    assert not found.out_of_memory
    [said] = found.said
    assert said.startswith("an error of its GPU about 3 s before: NVRM: Xid (PCI:0000:9b:00): 79, pid=4711")


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:9B:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: Xid (0000:9b:00): 31, Ch 00000010, engmask 00000101",
        "NVRM: Xid (PCI:0000:9b:00 GPU-I:05): 94, pid=4711, name=python3, Contained: SM error",
        "NVRM: Xid (PCI:00000000:9b:00.0): 48, An uncorrectable double bit error",
    ],
)
def test_errors_are_read_as_drivers_have_written_them(log: Path, text: str) -> None:
    log.write_text(record(text, priority=3))
    assert text in seen(log, death(code=1, gpus=[UUID]), bus="0000:9b:00.0").said[0]


def test_gpus_of_others_and_errors_of_long_ago_are_not_told(log: Path) -> None:
    log.write_text(record(XID.format(number=79), ago=900) + record(XID.format(number=79)))
    assert seen(log, death(code=1, gpus=[UUID]), bus="0000:3b:00.0") == NOTHING_SEEN
    assert seen(log, death(code=1), bus="0000:9b:00.0") == NOTHING_SEEN
    log.write_text(record(XID.format(number=79), ago=900))
    assert seen(log, death(code=1, gpus=[UUID]), bus="0000:9b:00.0") == NOTHING_SEEN


def test_of_many_errors_the_first_ones_are_told_once_each(log: Path) -> None:
    repeated = "".join(record(XID.format(number=13), ago=20) for _ in range(50))
    log.write_text(repeated + "".join(record(XID.format(number=number), ago=9) for number in range(60, 70)))
    said = seen(log, death(code=1, gpus=[UUID]), bus="0000:9b:00.0").said
    assert [text.partition("): ")[2].partition(",")[0] for text in said[:-1]] == ["13", "60", "61"]
    assert said[-1] == "60 such errors in all"


def test_what_was_seen_stands_in_the_line_that_people_read() -> None:
    evidence = Evidence(out_of_memory=True, said=("the kernel has killed it for lack of memory: …",))
    found = explain(Exit(at=NOW, signal=9), "loading\n", evidence)
    assert found.out_of_memory
    assert describe_exit(found) == (
        "engine was ended by signal 9, out of memory (the kernel has killed it for lack of memory: …): loading"
    )
    unseen = Exit(at=NOW, detail="its shim was killed before it could tell")
    assert describe_exit(explain(unseen, "", Evidence(said=("an error",)))) == (
        "engine has ended, unseen (its shim was killed before it could tell; an error)"
    )


# ---- The log itself -------------------------------------------------------------------------------------------


def test_a_log_that_cannot_be_read_is_empty_and_nothing_fails(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "fifo", Path("/proc/self/mem")):
        assert seen(path, death()) == NOTHING_SEEN


def test_a_witness_that_breaks_says_nothing(log: Path) -> None:
    def broken(_: str) -> str:
        raise ZeroDivisionError

    log.write_text(record(XID.format(number=79)))
    witness = Witness(KernelLog(log), bus=broken, pids_count=True, uptime=lambda: UPTIME)
    assert asyncio.run(witness.evidence(death(gpus=[UUID]))) == NOTHING_SEEN
    witness.close()


def test_programs_that_write_into_the_kernels_log_are_not_believed(log: Path) -> None:
    """Whoever may write to /dev/kmsg writes with a facility of its own, never with the kernel's."""
    log.write_text(record(OOM.format(pid=4711), priority=14))
    assert seen(log, death()) == NOTHING_SEEN


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "6;x",
        "6,1;Killed process 1 (a) total-vm",
        "x,1,2,-;Killed process 1 (a) total-vm",
        "6,1,x,-;Killed process 1 (a) total-vm",
        " SUBSYSTEM=pci",
        "6,1,2,-;nothing of interest",
    ],
)
def test_records_that_are_none_are_passed_over(text: str) -> None:
    assert parse(text) is None


def test_newer_kernels_put_more_into_a_records_head() -> None:
    line = parse("3,77,5000000,-,caller=T1;" + OOM.format(pid=7))
    assert line is not None
    assert (line.at, line.killed) == (5.0, (7, "python3"))


def test_only_what_is_new_is_read_again_and_half_a_line_waits_for_its_rest(log: Path) -> None:
    first, second = record(OOM.format(pid=1)), record(OOM.format(pid=2))
    log.write_text(first + second[:20])
    kernel = KernelLog(log)
    assert [line.killed for line in kernel.lines()] == [(1, "python3")]
    with log.open("a") as file:
        file.write(second[20:])
    assert [line.killed for line in kernel.lines()] == [(1, "python3"), (2, "python3")]
    assert len(kernel.lines()) == 2
    kernel.close()


def test_a_flood_is_bounded_and_the_newest_lines_are_kept(log: Path) -> None:
    log.write_text("".join(record(OOM.format(pid=pid)) for pid in range(5000)) + "x" * 1_000_000 + "\n")
    kernel = KernelLog(log)
    lines = kernel.lines()
    assert len(lines) == 512
    assert lines[-1].killed == (4999, "python3")
    kernel.close()


def test_the_driver_tells_which_gpu_is_where() -> None:
    line = parse(record(f"NVRM: GPU at PCI:0000:9b:00: {UUID}").strip())
    assert line is not None
    assert buses([line]) == {UUID: "0000:9b:00.0"}


@pytest.mark.skipif(
    not os.access(KMSG, os.R_OK), reason="the kernel's real log can't be read here: only files were"
)
def test_the_real_log_is_read_to_its_end_without_waiting() -> None:
    kernel = KernelLog()
    begin = time.monotonic()
    kernel.lines()
    kernel.lines()
    assert time.monotonic() - begin < 10
    kernel.close()
