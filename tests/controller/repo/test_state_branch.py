"""The state branch: what plain git sees of it, and what happens when somebody or something gets in between."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.clock import FakeClock
from llmgw.controller.repo.objects import ObjectStore
from llmgw.controller.repo.records import LostRaceError, RecordError
from llmgw.controller.repo.remote import remote_of
from llmgw.controller.repo.state_branch import GitRecordStore, LostRecordError
from llmgw.model.ids import Commit, FleetId
from llmgw.model.problems import RetryError, StalledError
from llmgw.model.record import ModelRecord, NodeRecord, Record
from llmgw.model.struct import replace

Make = Callable[..., Any]
STATE = "llmgw/state"


def record(serial: int = 1, nodes: int = 3) -> Record:
    return Record(
        fleet=FleetId("f1"),
        serial=serial,
        models={"chat": ModelRecord(name="chat", id_prefix="chat", served_name="chat")},
        nodes={f"n{n}": NodeRecord(name=f"n{n}", address=f"10.0.0.{n}") for n in range(nodes)},
    )


@pytest.fixture
def store(make_objects: Make, work: Any, clock: FakeClock) -> GitRecordStore:
    return open_store(make_objects(), str(work.path), clock)


def open_store(objects: ObjectStore, location: str, clock: FakeClock, *, ref: str = STATE) -> GitRecordStore:
    return GitRecordStore(
        objects, remote_of(location, base=Path("/")), ref=ref, author="ann@box", clock=clock
    )


def write(
    store: GitRecordStore, record: Record, after: Commit | None = None, message: str = "Pass\n"
) -> Commit:
    return asyncio.run(store.write(record, after=after, message=message))


def hook(work: Any, name: str, text: str) -> None:
    folder = work.path / ".git" if (work.path / ".git").exists() else work.path
    (folder / "hooks").mkdir(exist_ok=True)
    path = folder / "hooks" / name
    path.write_text(text)
    path.chmod(0o700)


def meddle(work: Any, path: str, content: str | None, message: str = "Meddle") -> str:
    """What a person does to the branch by hand, leaving the work tree alone."""
    env = ("-c", "core.bare=false")
    folder = work.path.parent / "by-hand"
    if not folder.exists():
        work.git(*env, "worktree", "add", "--quiet", str(folder), STATE)
    file = folder / path
    if content is None:
        file.unlink()
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    work.git("-C", str(folder), "add", "--all")
    work.git("-C", str(folder), "commit", "--quiet", "--message", message)
    tip: str = work.git("rev-parse", STATE)
    work.git("worktree", "remove", "--force", str(folder))
    return tip


def test_plain_git_tells_the_whole_story(store: GitRecordStore, work: Any) -> None:
    message = "Start chat on n1\n\nLlmgw-Serial: 1\nLlmgw-Trigger: manual\nLlmgw-Actor: ann\n"
    first = write(store, record(1), None, message)
    changed = record(2)
    write(
        store,
        replace(changed, nodes={**changed.nodes, "n1": replace(changed.nodes["n1"], boot_id="b")}),
        first,
    )
    files = work.git("ls-tree", "-r", "--name-only", first).splitlines()
    assert files == ["endpoints.json", "nodes/n0.json", "nodes/n1.json", "nodes/n2.json", "record.json"]
    log = work.git("log", "--format=%an <%ae>|%cn|%at|%s|%(trailers:key=Llmgw-Serial,valueonly)", first)
    assert log.strip() == "ann@box <ann@box>|llmgw|1795953600|Start chat on n1|1"
    assert work.git("show", "--name-only", "--format=", STATE).splitlines() == [
        "nodes/n1.json",
        "record.json",
    ]
    head = json.loads(work.git("show", f"{STATE}:record.json"))
    assert (head["format"], head["serial"], head["fleet"]) == (1, 2, "f1")
    assert work.git("fsck", "--strict") == ""


def test_the_work_tree_and_its_branch_are_left_alone(store: GitRecordStore, work: Any) -> None:
    head = work.git("rev-parse", "main")
    write(store, record())
    assert work.git("status", "--porcelain", "--branch") == "## main"
    assert work.git("rev-parse", "main") == head


def test_files_of_others_on_the_branch_stay(store: GitRecordStore, work: Any) -> None:
    first = write(store, record(1))
    tip = Commit(meddle(work, "README.md", "written by hand\n"))
    assert tip != first
    assert asyncio.run(store.read()).record == record(1)
    write(store, record(2), tip)
    assert work.git("show", f"{STATE}:README.md") == "written by hand"


def test_fields_of_a_newer_llmgw_do_no_harm(store: GitRecordStore, work: Any) -> None:
    write(store, record(1))
    head = json.loads(work.git("show", f"{STATE}:record.json"))
    meddle(work, "record.json", json.dumps({**head, "fromTheFuture": {"x": 1}}))
    assert asyncio.run(store.read()).record == record(1)


@pytest.mark.parametrize(
    ("path", "content", "told"),
    [
        ("record.json", "{", "record.json: it is not JSON"),
        ("record.json", None, "record.json: it is missing"),
        ("record.json", "[]", "record.json: not a valid Head"),
        (
            "record.json",
            '{"format": 1, "fleet": "f", "serial": "1"}',
            "record.json: not a valid Head.*serial",
        ),
        ("endpoints.json", None, "endpoints.json: it is missing"),
        ("nodes/n1.json", '{"name": "n1", "address": 3}', "nodes/n1.json: not a valid NodeRecord.*address"),
        (
            "nodes/n1.json",
            '{"name": "n2", "address": "x"}',
            "nodes/n1.json: the name inside is not the file's",
        ),
        ("replicas/chat/x.json", "{}", "replicas/chat/x.json: not a valid ReplicaRecord"),
        ("plan.json", "{}", "plan.json: not a valid Plan"),
    ],
)
def test_a_record_that_can_not_be_read_is_never_taken_for_none(
    store: GitRecordStore, work: Any, path: str, content: str | None, told: str
) -> None:
    write(store, record())
    tip = meddle(work, path, content)
    with pytest.raises(StalledError, match=rf"at {tip[:12]} on llmgw/state of .*{told}.*llmgw recover"):
        asyncio.run(store.read())
    rebuilt = record(9)
    write(store, rebuilt, asyncio.run(store.tip()), "Rebuild the record\n")
    assert asyncio.run(store.read()).record == rebuilt, "recover writes over what can't be read"


def test_a_record_of_a_newer_format_is_neither_read_nor_written_over(
    store: GitRecordStore, work: Any
) -> None:
    write(store, record())
    head = json.loads(work.git("show", f"{STATE}:record.json"))
    tip = Commit(meddle(work, "record.json", json.dumps({**head, "format": 2, "toolVersion": "7.0"})))
    with pytest.raises(StalledError, match=r"format 2, written by llmgw 7\.0.*upgrade"):
        asyncio.run(store.read())
    with pytest.raises(StalledError, match="upgrade"):
        write(store, record(2), tip)
    assert work.git("rev-parse", STATE) == tip


def test_a_branch_that_is_not_llmgws_is_not_touched(make_objects: Make, work: Any, clock: FakeClock) -> None:
    work.git("branch", "theirs")
    store = open_store(make_objects(), str(work.path), clock, ref="theirs")
    with pytest.raises(StalledError, match=r"record\.json: it is missing.*--state-ref"):
        asyncio.run(store.read())


# ---- pushing -------------------------------------------------------------------------------------------------


def test_a_refused_push_says_what_to_do_and_changes_nothing(store: GitRecordStore, work: Any) -> None:
    first = write(store, record(1))
    hook(work, "pre-receive", "#!/bin/sh\necho 'this branch is protected' >&2\nexit 1\n")
    refused = rf"this controller may not write {STATE} of .*pre-receive hook declined.*stateRepo"
    with pytest.raises(RecordError, match=refused):
        write(store, record(2), first)
    assert work.git("rev-parse", STATE) == first
    assert asyncio.run(store.read()).record == record(1)


def test_the_branch_that_is_checked_out_is_refused_with_what_to_do(
    make_objects: Make, make_work: Make, clock: FakeClock
) -> None:
    work = make_work("state-work", branch=STATE)
    tip = work.commit({"x": ""})
    work.git("rm", "--quiet", "x")
    objects = make_objects()
    store = open_store(objects, str(work.path), clock)
    with pytest.raises(StalledError, match="checked out there: choose another name with --state-ref"):
        write(store, record(1), tip)


def test_a_repository_out_of_reach_may_come_back(make_objects: Make, clock: FakeClock) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        store = open_store(make_objects(), f"ssh://git@127.0.0.1:{closed.getsockname()[1]}/fleet.git", clock)
        with pytest.raises(RetryError):
            asyncio.run(store.read())
        with pytest.raises(RetryError):
            write(store, record())


def test_the_record_is_readable_from_memory_while_the_repository_is_away(
    store: GitRecordStore, work: Any
) -> None:
    version = write(store, record())
    work.path.rename(work.path.with_name("away"))
    with pytest.raises(StalledError):
        asyncio.run(store.read())
    assert asyncio.run(store.read_cached()).version == version


def test_history_rewritten_by_hand_makes_the_writer_lose(store: GitRecordStore, work: Any) -> None:
    first = write(store, record(1))
    second = write(store, record(2), first)
    other = work.git("commit-tree", "-p", first, "-m", "By hand", f"{second}^{{tree}}")
    work.git("update-ref", f"refs/heads/{STATE}", other)
    with pytest.raises(LostRaceError):
        write(store, record(3), second)
    assert work.git("rev-parse", STATE) == other, "nothing is ever forced"
    assert asyncio.run(store.read()).version == other


def test_a_branch_that_vanishes_is_no_new_fleet(
    make_objects: Make, store: GitRecordStore, work: Any, clock: FakeClock
) -> None:
    """Machines without an agent were set up for another fleet then: whoever has read it once knows, in later runs too."""
    first = write(store, record(4))
    work.git("update-ref", "-d", f"refs/heads/{STATE}")
    gone = r"the branch is gone, and it held serial 4.*llmgw recover"
    for reader in (store, store, open_store(make_objects(), str(work.path), clock)):
        with pytest.raises(LostRecordError, match=gone) as told:
            asyncio.run(reader.read())
        assert asyncio.run(reader.tip()) is None
        assert asyncio.run(reader.read_cached()).record == record(4)
    push = re.search(r"\(git (.*)\), or", str(told.value))
    assert push is not None
    work.git(*push[1].split())
    assert asyncio.run(store.read()).version == first


def test_a_branch_that_vanished_is_made_anew_by_whoever_writes_without_one(
    make_objects: Make, store: GitRecordStore, work: Any, clock: FakeClock
) -> None:
    write(store, record(4))
    work.git("update-ref", "-d", f"refs/heads/{STATE}")
    again = open_store(make_objects(), str(work.path), clock)
    made = write(again, record(5))
    assert work.git("rev-parse", STATE) == made
    assert asyncio.run(store.read()).record == record(5)


# ---- interruptions -------------------------------------------------------------------------------------------

WRITER = """
import asyncio, os, sys
from datetime import datetime, timezone
from pathlib import Path
from llmgw.clock import FakeClock
from llmgw.controller.repo.git import Git, GitEnvironment
from llmgw.controller.repo.objects import ObjectStore
from llmgw.controller.repo.remote import remote_of
from llmgw.controller.repo.state_branch import GitRecordStore, LostRecordError
from llmgw.model.ids import FleetId
from llmgw.model.record import Record
state, location, path = sys.argv[1:]
clock = FakeClock(datetime(2026, 11, 29, tzinfo=timezone.utc))
objects = ObjectStore(Path(state), git=Git(GitEnvironment(path=path)), clock=clock, holder="bob@box")
store = GitRecordStore(objects, remote_of(location, base=Path("/")), ref="llmgw/state", author="bob@box", clock=clock)
async def main():
    stored = await store.read()
    await store.write(Record(fleet=FleetId("f1"), serial=99), after=stored.version, message="From bob")
asyncio.run(main())
"""

KILL_UPWARD = """#!{python}
import os, signal
def parent(pid):
    with open(f"/proc/{{pid}}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
def argv(pid):
    with open(f"/proc/{{pid}}/cmdline", "rb") as file:
        return file.read().split(b"\\0")
pid = os.getppid()
while not ({match}):
    pid = parent(pid)
os.kill(pid, signal.SIGKILL)
"""


@pytest.mark.parametrize("moment", ["pre-receive", "post-receive"])
def test_a_controller_killed_while_pushing_leaves_the_next_one_able_to_go_on(
    store: GitRecordStore, make_objects: Make, work: Any, clock: FakeClock, tmp_path: Path, moment: str
) -> None:
    first = write(store, record(1))
    state = tmp_path / "state"
    hook(
        work,
        moment,
        KILL_UPWARD.format(python=sys.executable, match="b'-c' == argv(pid)[1] and b'llmgw' in argv(pid)[2]"),
    )
    killed = subprocess.run(
        [sys.executable, "-c", WRITER, str(state), str(work.path), "/usr/bin:/bin"],
        check=False,
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    (work.path / ".git" / "hooks" / moment).unlink()
    stored = asyncio.run(store.read())
    assert stored.record is not None
    assert stored.record.serial == (99 if stored.version != first else 1)
    try:
        write(store, record(2), stored.version)
    except LostRaceError:  # the dead controller's push was still on its way, and has arrived meanwhile
        stored = asyncio.run(store.read())
        assert stored.record is not None
        assert stored.record.serial == 99
        write(store, record(2), stored.version)
    assert asyncio.run(open_store(make_objects("fresh"), str(work.path), clock).read()).record == record(2)


def test_a_push_whose_answer_was_lost_is_asked_about(store: GitRecordStore, work: Any) -> None:
    first = write(store, record(1))
    hook(work, "post-receive", KILL_UPWARD.format(python=sys.executable, match="b'push' in argv(pid)"))
    version = write(store, record(2), first)
    assert work.git("rev-parse", STATE) == version


def test_a_push_that_broke_off_before_it_arrived_may_be_tried_again(store: GitRecordStore, work: Any) -> None:
    first = write(store, record(1))
    hook(
        work,
        "pre-receive",
        KILL_UPWARD.format(python=sys.executable, match="b'push' in argv(pid)") + "\nraise SystemExit(1)\n",
    )
    with pytest.raises((RetryError, StalledError)):
        write(store, record(2), first)
    (work.path / ".git" / "hooks" / "pre-receive").unlink()
    assert work.git("rev-parse", STATE) == first
    write(store, record(2), first)
    assert asyncio.run(store.read()).record == record(2)


def test_a_record_made_but_never_pushed_is_as_if_it_never_was(store: GitRecordStore, work: Any) -> None:
    first = write(store, record(1))

    async def half() -> None:
        files, anew = await store._changes(_kept(record(2)), first)
        async with store._objects.writing() as keep:
            await store._commit(files, first, "Never pushed\n", keep, anew=anew)

    asyncio.run(half())
    stored = asyncio.run(store.read())
    assert (stored.version, stored.record) == (first, record(1))
    write(store, record(3), first)
    assert asyncio.run(store.read()).record == record(3)


def _kept(value: Record) -> Any:
    from llmgw.controller.repo.layout import Kept  # noqa: PLC0415 - only this test looks inside

    return Kept(record=value)


# ---- size ----------------------------------------------------------------------------------------------------


def test_many_writes_do_not_pile_up_in_the_mirror(store: GitRecordStore) -> None:
    version = write(store, record(1))
    for serial in range(2, 12):
        version = write(store, record(serial), version)
    objects = list(store._objects.path.glob("objects/??/*"))
    assert len(objects) < 100


def test_a_name_that_is_no_file_name_is_refused(store: GitRecordStore) -> None:
    wrong = replace(record(), nodes={"x": NodeRecord(name="../x", address="")})
    with pytest.raises(ValueError, match="can't be the name of a file"):
        write(store, wrong)


def test_an_author_can_not_break_the_commit(make_objects: Make, work: Any, clock: FakeClock) -> None:
    remote = remote_of(str(work.path), base=Path("/"))
    store = GitRecordStore(make_objects(), remote, ref=STATE, author="a <b>\nfrom x", clock=clock)
    write(store, record(), None, "Line\n\ndata 5\nM 100644 inline x\n")
    assert work.git("log", "-1", "--format=%B", STATE) == "Line\n\ndata 5\nM 100644 inline x"
    assert work.git("ls-tree", "--name-only", STATE).splitlines() == [
        "endpoints.json",
        "nodes",
        "record.json",
    ]


def test_a_mirror_that_broke_between_reading_and_writing_is_mended(store: GitRecordStore, work: Any) -> None:
    first = write(store, record(1))
    for path in store._objects.path.glob("objects/??/*"):
        path.unlink()
    write(store, record(2), first)
    assert asyncio.run(store.read()).record == record(2)
