"""The shim by itself, run as a node runs it."""

import json
import marshal
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.shards.shims import LOADER, SHIM


class Bench:
    """Runs shims below one directory and ends what they started."""

    def __init__(self, folder: Path, *prefix: str) -> None:
        self.folder = folder
        self.prefix = prefix
        self.status_file = folder / "status.json"
        self.log = folder / "engine.log"

    def order(self, *argv: str, **changes: Any) -> dict[str, Any]:
        order = {
            "shard": "s",
            "process": "engine",
            "argv": list(argv),
            "env": {"PATH": "/usr/bin:/bin"},
            "home": str(self.folder / "home" / "me"),
            "directory": str(self.folder / "home" / "me" / "s"),
            "files": {},
            "log": str(self.log),
            "statusFile": str(self.status_file),
            "user": None,
            "cgroup": None,
            "bootId": "boot",
            "shimOomScoreAdj": 0,
        }
        return {**order, **changes}

    def run(self, order: dict[str, Any] | bytes) -> dict[str, Any]:
        data = order if isinstance(order, bytes) else marshal.dumps(order)
        done = subprocess.run(
            [*self.prefix, sys.executable, "-I", "-S", "-c", LOADER, str(SHIM)],
            input=data,
            capture_output=True,
            check=False,
            timeout=60,
            env={"PATH": "/usr/bin:/bin"} if self.prefix else {},
        )
        assert done.stderr == b""
        return {"ok": True} if done.stdout == b"ok" else {"error": done.stdout.decode()}

    def status(self) -> dict[str, Any]:
        status = json.loads(self.status_file.read_text())
        assert isinstance(status, dict)
        return status

    def ended(self, within: float = 20) -> dict[str, Any]:
        end = time.monotonic() + within
        while "exit" not in self.status():
            assert time.monotonic() < end, f"no end on record: {self.status()}"
            time.sleep(0.02)
        ended = self.status()["exit"]
        assert isinstance(ended, dict)
        return ended

    def end(self) -> None:
        if not self.status_file.exists():
            return
        for who in ("engine", "shim"):
            process = self.status().get(who)
            if process and _start(process["pid"]) == process["start"]:
                os.kill(process["pid"], signal.SIGKILL)


def _start(pid: int) -> int | None:
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(data[data.rindex(b")") + 2 :].split()[19])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.end()


def test_it_imports_only_what_a_bare_python_has_at_hand() -> None:
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", "-c", LOADER.removesuffix("main()"), str(SHIM)],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "shim" in loaded
    slow = {"subprocess", "typing", "asyncio", "logging", "threading", "llmgw", "site"}
    slow |= {"json", "re", "signal", "enum", "functools"}
    assert not loaded & slow


def test_the_status_names_shim_and_engine_before_the_engine_is_executed(bench: Bench) -> None:
    code = f"import json; s = json.load(open({str(bench.status_file)!r})); import os; assert s['engine']['pid'] == os.getpid()"
    assert bench.run(bench.order(sys.executable, "-c", code)) == {"ok": True}
    assert bench.ended()["code"] == 0
    status = bench.status()
    assert status["bootId"] == "boot"
    assert abs(status["startedAt"] - time.time()) < 60
    assert status["shim"]["pid"] != status["engine"]["pid"]
    assert oct(bench.status_file.stat().st_mode & 0o777) == "0o600"


def test_code_and_signal_are_told_apart(bench: Bench) -> None:
    bench.run(bench.order("sh", "-c", "exit 7"))
    assert bench.ended()["code"] == 7
    bench.run(bench.order("sh", "-c", "kill -11 $$"))
    assert bench.ended()["signal"] == 11


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"argv": ["/no/such"]}, "executing /no/such: No such file or directory"),
        ({"argv": ["no-such-engine"]}, "executing no-such-engine: No such file or directory"),
        ({"argv": ["/proc/version"]}, "executing /proc/version: Permission denied"),
        ({"log": "/no/such/folder/log"}, "opening the log /no/such/folder/log: No such file"),
        ({"files": {"/proc/x": ""}}, "laying the file /proc/x"),
    ],
)
def test_what_hinders_the_start_is_said_and_on_record(
    bench: Bench, changes: dict[str, Any], says: str
) -> None:
    answer = bench.run(bench.order("true", **changes))
    assert says in answer["error"]
    assert says in bench.status()["error"]


@pytest.mark.parametrize(
    "data", [b"", marshal.dumps({"shard": "s", "argv": ["true"]})[:-3], marshal.dumps([]), b"\xff{}"]
)
def test_an_order_that_was_cut_off_starts_nothing(bench: Bench, data: bytes) -> None:
    assert "not a whole one" in bench.run(data)["error"]
    assert not list(bench.folder.iterdir())


def test_a_status_can_be_read_whatever_stands_in_it(bench: Bench) -> None:
    odd = '/no/\n"\\ü\x7f\U0001f600\udcff'
    says = 'executing /no/\n"\\ü'
    assert says in bench.run(bench.order(odd))["error"]
    assert says in bench.status()["error"]
    status = {"a": odd, "b": None, "c": {"d": 1, "e": 1.5e9, "f": -11}}
    code = f"import sys; sys.path.append({str(SHIM.parent)!r}); import shim; print(shim.as_json({status!r}))"
    said = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True).stdout
    assert json.loads(said) == status


def test_a_second_shim_for_the_same_process_is_refused_while_the_first_lives(bench: Bench) -> None:
    assert bench.run(bench.order("sleep", "60")) == {"ok": True}
    first = bench.status()
    assert "another shim already runs" in bench.run(bench.order("sleep", "61"))["error"]
    assert bench.status() == first
    os.kill(first["engine"]["pid"], signal.SIGKILL)
    bench.ended()
    end = time.monotonic() + 20
    while bench.run(bench.order("sleep", "60")) != {"ok": True}:
        assert time.monotonic() < end


def test_output_is_appended_and_survives_emptying(bench: Bench) -> None:
    bench.log.write_text("before\n")
    go = bench.folder / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.02; done"
    bench.run(bench.order("sh", "-c", f"echo one; echo two >&2; {wait}; echo three"))
    end = time.monotonic() + 20
    while bench.log.read_text() != "before\none\ntwo\n":
        assert time.monotonic() < end
        time.sleep(0.02)
    os.truncate(bench.log, 0)
    go.touch()
    bench.ended()
    assert bench.log.read_text() == "three\n"
    assert oct(bench.log.stat().st_mode & 0o777) == "0o600"


def test_an_end_is_on_record_although_no_new_file_can_be_written(bench: Bench) -> None:
    """As on a full disk: what was reserved at the start takes it."""
    bench.run(bench.order("sh", "-c", "while [ ! -d status.d ]; do sleep 0.02; done; exit 5"))
    blocked = bench.status_file.with_name("status.json.new")
    blocked.mkdir()  # the way that needs new blocks is barred
    (Path(bench.order("x")["directory"]) / "status.d").mkdir()
    assert bench.ended()["code"] == 5


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_it_becomes_the_engine_user_with_a_home_of_its_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    user = {"uid": 65534, "gid": 65534, "groups": [65534]}
    order = bench.order(
        "sh", "-c", "id -u; id -g; id -G; pwd; cat conf", user=user, files={"conf": "hello\n"}
    )
    assert bench.run(order) == {"ok": True}
    assert bench.ended() == {"at": bench.ended()["at"], "code": 0}
    assert bench.log.read_text().splitlines() == ["65534", "65534", "65534", order["directory"], "hello"]
    home = Path(order["home"])
    assert (home.stat().st_uid, oct(home.stat().st_mode & 0o777)) == (65534, "0o700")
    assert oct(home.parent.stat().st_mode & 0o777) == "0o711"
    assert bench.log.stat().st_uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a process another group")
@pytest.mark.parametrize("user", [None, {"uid": 65534, "gid": 65534, "groups": [44]}])
def test_a_shards_own_group_comes_first_and_the_users_stay_beside_it(
    tmp_path: Path, user: dict[str, object] | None
) -> None:
    bench = Bench(tmp_path)
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    order = bench.order("sh", "-c", "id -u; id -g; id -G; touch mine; stat -c %g mine", user=user)
    assert bench.run({**order, "group": 2013265921}) == {"ok": True}
    assert bench.ended()["code"] == 0
    uid, gid, groups, made = bench.log.read_text().splitlines()
    assert uid == ("65534" if user else "0")
    assert gid == made == "2013265921"
    own = {"65534", "44"} if user else {"0"}
    assert own <= set(groups.split())


def test_in_a_user_namespace_without_that_number_an_engine_starts_as_before(tmp_path: Path) -> None:
    """There a root that is not the machine's may not change groups."""
    bench = Bench(tmp_path, "unshare", "--user", "--map-root-user")
    if subprocess.run([*bench.prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here")
    assert bench.run(bench.order("sh", "-c", "id -u; id -g", group=2013265921)) == {"ok": True}
    assert bench.ended()["code"] == 0
    assert bench.log.read_text().split() == ["0", "0"]


def test_an_engine_has_every_signal_as_the_kernel_gives_it(tmp_path: Path) -> None:
    """Whatever the agent or Python had made of them."""
    bench = Bench(tmp_path, "env", "--block-signal=USR1", "--ignore-signal=USR2")
    assert bench.run(bench.order("cat", "/proc/self/status")) == {"ok": True}
    assert bench.ended()["code"] == 0
    told = dict(line.split(":", 1) for line in bench.log.read_text().splitlines())
    own = (
        1 << 31 | 1 << 32
    )  # 32 and 33 are the C library's, which lets nobody set them: make starts its children without
    assert [int(told[name], 16) & ~own for name in ("SigBlk", "SigIgn", "SigCgt")] == [0, 0, 0]


def test_an_engine_that_cannot_be_born_into_its_control_group_joins_it(bench: Bench) -> None:
    """As under an old kernel, or where a sandbox forbids the call: a plain folder is no control group."""
    group = bench.folder / "group"
    assert bench.run(bench.order("/bin/sleep", "30", cgroup=str(group))) == {"ok": True}
    engine = bench.status()["engine"]["pid"]
    assert (group / "cgroup.procs").read_text() == str(engine)
    assert bench.status()["cgroup"] == str(group)
