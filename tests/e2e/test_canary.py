"""The instrument itself: a leak of every kind is found, and what is private is let be."""

import secrets
import subprocess
import sys
from pathlib import Path

from tests.e2e.canary import Canary

SECRET = f"canary-{secrets.token_hex(8)}"  # other runs have others


def canary() -> Canary:
    return Canary({"the token": SECRET})


def test_a_secret_in_a_command_line_is_seen_while_it_runs() -> None:
    program = [sys.executable, "-c", "input()", SECRET]
    with canary().watching() as watcher, subprocess.Popen(program, stdin=subprocess.PIPE) as running:
        before = watcher.looks
        while watcher.looks < before + 2:
            assert running.poll() is None
        running.communicate(b"\n")
    assert [found.split(":")[0] for found in watcher.found] == ["the token in a command line"]


def test_a_secret_in_git_is_found_also_when_nothing_points_to_it(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path)], check=True)
    command = ["git", "--git-dir", str(tmp_path), "hash-object", "-w", "--stdin"]
    subprocess.run(command, input=f"token {SECRET}", text=True, check=True, capture_output=True)
    watcher = canary()
    watcher.repository(tmp_path)
    assert len(watcher.found) == 1


def test_files_may_hold_secrets_only_where_they_are_private(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    for name, mode in (("secrets/a.json", 0o600), ("secrets/b.json", 0o644), ("agent.log", 0o600)):
        (tmp_path / name).write_text(SECRET)
        (tmp_path / name).chmod(mode)
    watcher = canary()
    watcher.files(tmp_path, private=("secrets/",))
    assert watcher.found == {
        f"the token in file {tmp_path}/agent.log",
        f"the token in file {tmp_path}/secrets/b.json, which others can read",
    }
    assert watcher.kept == {tmp_path / "secrets/a.json"}
    watcher = canary()
    watcher.text("what was printed", f"Bearer {SECRET}")
    assert watcher.found == {"the token in what was printed: Bearer "}
