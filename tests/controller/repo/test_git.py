"""The runner: what git gets, what it may do, and how it is ended."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmgw.controller.repo.failures import FailureKind, GitError, explained, kind_of
from llmgw.controller.repo.git import Git, GitEnvironment, How
from llmgw.controller.repo.remote import Remote
from llmgw.model.problems import RetryError, StalledError
from llmgw.redaction import Redactor

HERE = Remote(address="/srv/fleet.git")


def run(git: Git, *arguments: str, **rest: Any) -> Any:
    return asyncio.run(git.run(*arguments, doing="trying", **rest))


def script(folder: Path, text: str) -> str:
    """A program that stands in for git."""
    path = folder / "pretended-git"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_git_gets_exactly_the_environment_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    monkeypatch.setenv("LLMGW_SECRET", "not for git")
    environment = GitEnvironment(path=os.environ["PATH"], home="/home/ann", ssh_auth_sock="/run/agent")
    git = Git(environment, binary=script(tmp_path, "env"))
    lines = dict(line.split("=", 1) for line in run(git, "any").text.splitlines())
    for shell_made in ("PWD", "SHLVL", "_", "OLDPWD"):
        lines.pop(shell_made, None)
    settings = {name: lines.pop(name) for name in list(lines) if name.startswith("GIT_CONFIG_")}
    assert lines == {
        "PATH": os.environ["PATH"],
        "HOME": "/home/ann",
        "SSH_AUTH_SOCK": "/run/agent",
        "LC_ALL": "C",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
    }
    assert settings.pop("GIT_CONFIG_GLOBAL") == "/dev/null"
    assert settings.pop("GIT_CONFIG_NOSYSTEM") == "1"
    assert settings["GIT_CONFIG_KEY_0"] == "core.hooksPath"
    assert settings["GIT_CONFIG_VALUE_0"] == "/dev/null"


def test_programs_named_by_an_address_are_never_run(git: Git, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    with pytest.raises(GitError, match="transport 'ext' not allowed"):
        run(git, "ls-remote", "--", f"ext::touch {proof}", how=How(remote=HERE))
    assert not proof.exists()


def test_a_call_that_names_no_remote_can_talk_to_nobody(git: Git, work: Any) -> None:
    for address in (f"file://{work.path}", "https://localhost:1/x", "ssh://localhost:1/x"):
        with pytest.raises(GitError, match=r"transport '(file|https|ssh)' not allowed"):
            run(git, "ls-remote", "--", address)
    assert "refs/heads/main" in run(git, "ls-remote", "--", str(work.path), how=How(remote=HERE)).text


def test_the_users_own_configuration_changes_nothing(git: Git, tmp_path: Path) -> None:
    (tmp_path / "home" / ".gitconfig").write_text("[user]\n\tname = From The File\n")
    answer = run(git, "config", "--get", "user.name", how=How(ok=frozenset({0, 1})))
    assert answer.code == 1


def test_a_call_that_does_not_end_is_ended_with_all_it_started(tmp_path: Path) -> None:
    git = Git(
        GitEnvironment(path=os.environ["PATH"]), binary=script(tmp_path, "sleep 300 & echo $! >&2; sleep 300")
    )
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    begun = time.monotonic()
    with pytest.raises(GitError, match=r"no end after 0\.3 s") as caught:
        run(git, "any", how=How(timeout=0.3))
    assert caught.value.kind is FailureKind.TIMEOUT
    assert time.monotonic() - begun < 10
    assert isinstance(explained(caught.value), RetryError)
    left = {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert not left


def test_a_call_that_is_ended_may_remove_its_locks_before_it_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "index.lock"
    text = f"trap 'rm {lock}; exit 143' TERM; touch {lock}; echo 1% >&2; while :; do sleep 0.05; done"
    git = Git(GitEnvironment(path=os.environ["PATH"]), binary=script(tmp_path, text))

    async def main() -> None:
        begun = asyncio.Event()
        how = How(told=lambda _: begun.set(), tell_every=0)
        task = asyncio.ensure_future(git.run("any", doing="trying", how=how))
        async with asyncio.timeout(30):
            await begun.wait()
        assert lock.exists()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert not lock.exists()


def test_a_cancelled_call_leaves_no_process(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    git = Git(
        GitEnvironment(path=os.environ["PATH"]),
        binary=script(tmp_path, f"echo $$ > {pid_file}; exec sleep 300"),
    )

    async def main() -> int:
        task = asyncio.ensure_future(git.run("any", doing="trying"))
        async with asyncio.timeout(10):
            while not (pid_file.exists() and pid_file.read_text().strip()):  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return int(pid_file.read_text())

    assert not psutil.pid_exists(asyncio.run(main()))


def test_output_is_bounded(tmp_path: Path) -> None:
    git = Git(GitEnvironment(path=os.environ["PATH"]), binary=script(tmp_path, "yes"))
    with pytest.raises(GitError, match="more than 1 MiB") as caught:
        run(git, "any", how=How(max_output=1024 * 1024))
    assert caught.value.kind is FailureKind.TOO_LARGE


def test_messages_are_bounded_and_the_end_is_kept(tmp_path: Path) -> None:
    text = "yes filler | head -n 100000 >&2; echo 'fatal: the reason' >&2; exit 128"
    git = Git(GitEnvironment(path=os.environ["PATH"]), binary=script(tmp_path, text))
    with pytest.raises(GitError, match=r"^trying: fatal: the reason$"):
        run(git, "any")


def test_a_reader_that_stops_early_is_no_failure_of_ours(tmp_path: Path) -> None:
    git = Git(GitEnvironment(path=os.environ["PATH"]), binary=script(tmp_path, "echo done"))
    assert run(git, "any", stdin=b"x" * 10_000_000).out == b"done\n"


def test_secrets_are_taken_out_of_what_git_says(tmp_path: Path) -> None:
    canary = "canary-5f2c9e"
    text = f"echo 'fatal: could not set https://ann:{canary}@host/x and {canary} to that' >&2; exit 1"
    git = Git(
        GitEnvironment(path=os.environ["PATH"]), redact=Redactor([canary]), binary=script(tmp_path, text)
    )
    with pytest.raises(GitError) as caught:
        run(git, "any")
    assert canary not in str(caught.value)
    assert "https://***@host/x" in str(caught.value)


def test_without_git_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    git = Git(GitEnvironment(path=str(tmp_path)))
    with pytest.raises(GitError) as caught:
        run(git, "version")
    assert "apt install git" in str(explained(caught.value))


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("fatal: unable to access 'https://h/': Could not resolve host: h", FailureKind.UNREACHABLE),
        (
            "ssh: connect to host h port 22: Connection refused\nfatal: Could not read from remote repository.",
            "unreachable",
        ),
        ("fatal: Could not read from remote repository.", FailureKind.UNREACHABLE),
        (
            "git@h: Permission denied (publickey).\nfatal: Could not read from remote repository.",
            FailureKind.DENIED,
        ),
        (
            "Host key verification failed.\nfatal: Could not read from remote repository.",
            FailureKind.HOST_KEY,
        ),
        (
            "fatal: '/x' does not appear to be a git repository\nfatal: Could not read from remote repository.",
            "no-repository",
        ),
        (" ! [remote rejected] a -> b (pre-receive hook declined)", FailureKind.DENIED),
        (" ! [rejected] a -> b (fetch first)", FailureKind.LOST_RACE),
        (" ! [remote rejected] a -> b (failed to update ref)", FailureKind.LOST_RACE),
        ("fatal: detected dubious ownership in repository at '/x'", FailureKind.UNTRUSTED),
        ("fatal: cannot write: No space left on device", FailureKind.FULL),
        ("fatal: Unable to create '/m/packed-refs.lock': File exists.", FailureKind.LOCKED),
        ("error: object file objects/ab/cd is empty", FailureKind.CORRUPT),
        ("fatal: something nobody has seen before", FailureKind.OTHER),
    ],
)
def test_gits_words_are_told_apart(said: str, kind: FailureKind | str) -> None:
    assert kind_of(said) is FailureKind(kind)


def test_only_what_may_pass_is_tried_again() -> None:
    for kind in FailureKind:
        error = explained(GitError("trying", "fatal: x", kind=kind))
        passing = kind in {FailureKind.UNREACHABLE, FailureKind.TIMEOUT, FailureKind.LOCKED}
        assert isinstance(error, RetryError if passing else StalledError)
        assert str(error).startswith("trying: fatal: x: ")


def test_a_question_is_answered_by_the_exit_code(git: Git, work: Any) -> None:
    assert git.succeeds("ls-files", "--error-unmatch", "--", "manifests/a.yaml", directory=work.path)
    assert not git.succeeds("ls-files", "--error-unmatch", "--", "other", directory=work.path)
    with pytest.raises(GitError):
        git.succeeds("ls-files", directory=work.path.parent)
