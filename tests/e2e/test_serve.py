"""`llmgw serve` and `llmgw sync` as people run them: real processes, a real repository, a real agent and its engines."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.stories.stage import LLMGW, Stage, model, node, stage_in, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

WITHIN = 90.0
"""Seconds for what takes one on a quiet machine."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as ready:
        yield ready


class Serving:
    """A `serve` of the stage's fleet and what it has said so far."""

    def __init__(self, stage: Stage, process: "subprocess.Popen[str]") -> None:
        self._stage = stage
        self.process = process
        self.told: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.told.extend(self.process.stderr)

    @property
    def text(self) -> str:
        return "".join(self.told)

    def says(self, pattern: str, *, after: int = 0) -> str:
        """The first line with it, waited for."""

        def found() -> str:
            return next((line for line in self.told[after:] if re.search(pattern, line)), "")

        try:
            return str(until(found, f"a line with {pattern}", within=WITHIN))
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.text[-4000:]}") from late

    def serves(self, *names: str) -> None:
        """Exactly these models, each ready."""

        def ready() -> bool:
            try:
                found = json.loads(_endpoints(self._stage).read_text())["endpoints"]
            except FileNotFoundError:
                return False
            return sorted(it["model"] for it in found if it["state"] == "ready") == sorted(names)

        try:
            until(ready, f"{names} to be served", within=WITHIN)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.text[-4000:]}") from late

    def close(self) -> None:
        self._reader.join(timeout=WITHIN)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(timeout=WITHIN)
        self._reader.join(timeout=WITHIN)
        return code


def _endpoints(stage: Stage) -> Path:
    return stage.folder / "endpoints.json"


@contextmanager
def serving(stage: Stage, *words: str, **environment: str) -> Iterator[Serving]:
    given = {"LLMGW_ENDPOINTS_FILE": str(_endpoints(stage)), **environment}
    process = stage.begin("serve", "--listen", "none", *words, program=LLMGW, **given)
    it = Serving(stage, process)
    try:
        yield it
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=WITHIN)
        it.close()


def test_it_follows_the_branch_and_the_engines_until_it_is_told_to_stop(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    with serving(stage) as it:
        it.serves("chat")

        before, said = _descriptors(it), len(it.told)
        stage.commit("Serve embed as well", embed=model("embed"))
        it.serves("chat", "embed")
        assert "trigger=watch" in it.says(r"Started 1 replica of embed", after=said)

        # An engine dies: its agent restarts it, and the loop sees both.
        said = len(it.told)
        engine = next(one for one in stage.engines() if "embed" in " ".join(one.cmdline()))
        engine.kill()
        it.says(r"why='node here: embed-.* is (backoff|failed)", after=said)
        it.serves("chat", "embed")

        # A second one, and a sync beside it.
        second = stage.llmgw("serve", golden=False)
        assert second.code == 4
        assert f"pid {it.process.pid}" in second.err
        until(lambda: stage.llmgw("sync", golden=False).code == 0, "a sync between two passes", within=WITHIN)

        # A broken manifest is told once, with its line, and nothing stops; then it is mended.
        said = len(it.told)
        running = {one.pid for one in stage.engines()}
        stage.commit("Break it", chat="apiVersion: llmgw/v1\nkind: Modle\nmetadata: {name: chat}\n")
        assert "manifests/chat.yaml:2:7" in it.says("refused commit=", after=said)
        stage.commit("Break it more", other="kind: [\n")
        it.says("refused commit=.*manifests/other.yaml", after=said)
        assert it.text.count("manifests/chat.yaml:2:7") == 2  # once for each of the two commits
        assert {one.pid for one in stage.engines()} == running
        stage.commit("Mend it", chat=model(replicas=2), other=None)
        it.serves("chat", "chat", "embed")

        # History that was rewritten is applied and told.
        said = len(it.told)
        (stage.fleet / "manifests" / "embed.yaml").unlink()
        stage.git("add", "--all")
        stage.git("commit", "--quiet", "--amend", "--message", "Mend it otherwise")
        it.serves("chat", "chat")
        it.says(r"Stopped 1 replica of embed|Drained 1 replica of embed", after=said)

        until(lambda: len(stage.engines()) == 2, "the engine of embed to end", within=WITHIN)
        until(lambda: _descriptors(it) <= before + 2, "it to hold no more open than at first", within=WITHIN)
        assert it.stop() == 0
        assert "Traceback" not in it.text
    assert len(stage.engines()) == 2  # they run on
    trailers = stage.trailers()
    assert {entry.get("Llmgw-Trigger") for entry in trailers} <= {"watch", "cron", None}
    assert all(entry.get("Llmgw-Actor", "ann@desk") == "ann@desk" for entry in trailers)


def _descriptors(it: Serving) -> int:
    """What it keeps open; in the middle of a pass a few more."""
    return len(list(Path(f"/proc/{it.process.pid}/fd").iterdir()))


def test_ended_in_the_middle_of_a_pass_it_finishes_what_is_in_flight_and_writes_the_outcome(
    stage: Stage,
) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    with serving(stage) as it:
        # The intent is there, and the node's agent, a program that takes a while to start, is being brought up.
        until(lambda: _serial(stage), "the intent", within=WITHIN)
        assert it.stop() == 0
        assert "Finishing what is in flight" in it.text
    newest = stage.trailers()[0]
    assert newest["Llmgw-Outcome"] in (
        "interrupted",
        "accepted",
    )  # the latter where the machine was faster than we were
    with serving(stage) as it:
        it.serves("chat")
        assert it.stop(signal.SIGINT) == 0


def _serial(stage: Stage) -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "llmgw/state"],
        cwd=stage.fleet,
        env=stage.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout


def test_killed_in_the_middle_of_a_pass_the_next_one_carries_on(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    with serving(stage) as it:
        until(lambda: _serial(stage), "the intent", within=WITHIN)
        it.process.kill()
        it.process.wait(timeout=WITHIN)
    with serving(stage) as it:
        it.serves("chat")
        assert it.stop() == 0


def test_a_service_manager_is_told_that_it_is_up_alive_and_ending(stage: Stage, tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(WITHIN)
        stage.commit("Serve nothing")
        watchdog = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "300000", "JOURNAL_STREAM": "8:1"}
        with serving(stage, **watchdog) as it:
            assert manager.recv(100) == b"READY=1"
            assert manager.recv(100) == b"WATCHDOG=1"
            it.says("^INFO pass=1")  # the journal writes the time down itself
            assert it.stop() == 0
        said = manager.recv(100)
        while said == b"WATCHDOG=1":
            said = manager.recv(100)
        assert said == b"STOPPING=1"


def test_sync_says_one_line_when_it_did_something_and_none_when_not(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    done = stage.llmgw("sync", "--wait", golden=False)
    assert (done.code, done.out.count("\n")) == (0, 1), done.err
    assert re.match(r"[0-9a-f]{10} serial \d+ \w+: ", done.out)
    assert [one for one in stage.trailers() if one.get("Llmgw-Trigger") == "cron"]
    again = stage.llmgw("sync", "--jitter", "10ms", golden=False)
    assert (again.code, again.out, again.err) == (0, "", "")
    told = stage.llmgw("sync", "--verbose", golden=False)
    assert "nothing to do" in told.out

    # A commit that can't be applied ends with 1 and its problems, and what was applied is kept.
    stage.commit("Break it", chat="kind: Modle\n")
    stage.engines()[0].kill()
    broken = stage.llmgw("sync", golden=False)
    assert broken.code == 1
    assert "manifests/chat.yaml:1:7" in broken.err
    assert "is refused" in broken.out


def test_never_two_syncs_at_once(stage: Stage) -> None:
    stage.commit("Serve nothing")
    first = stage.begin("sync", "--jitter", "1h")
    try:
        lock = stage.folder / "state" / "sync.lock"
        until(lambda: lock.exists() and lock.read_text(), "the first to hold the lock", within=WITHIN)
        second = stage.llmgw("sync", golden=False)
        assert second.code == 4
        assert second.err.count("\n") == 1
        assert f"pid {first.pid}" in second.err
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=WITHIN) == 130
    finally:
        if first.poll() is None:
            os.kill(first.pid, signal.SIGKILL)
        first.communicate(timeout=WITHIN)
