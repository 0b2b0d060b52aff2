"""Commits in a person's own work tree: one file, their name, and nothing else touched."""

import os
import subprocess
from pathlib import Path

import pytest

from llmgw.controller.repo.remote import Remote
from llmgw.controller.worktree import WorkTree
from llmgw.model.problems import StalledError

WHO = {"GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "ann@example.org"}
WHO |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in WHO.items()}


class Repo:
    def __init__(self, top: Path, **environ: str) -> None:
        self.top = top
        top.mkdir()
        base = {"PATH": os.environ["PATH"], "HOME": str(top.parent), "GIT_CONFIG_NOSYSTEM": "1"}
        self.environ = {**base, **(environ or WHO)}
        self.git("init", "-q", "-b", "main")
        self.tree = WorkTree(top=top, environ=self.environ)

    def git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words],
            cwd=self.top,
            env={**self.environ, **WHO},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def write(self, name: str, text: str = "x\n") -> None:
        (self.top / name).parent.mkdir(parents=True, exist_ok=True)
        (self.top / name).write_text(text)


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path / "fleet")
    made.write("first")
    made.git("add", "first")
    made.git("commit", "-qm", "first")
    return made


def test_only_the_one_file_is_committed_whatever_else_is_staged(repo: Repo) -> None:
    repo.write("staged")
    repo.git("add", "staged")
    repo.write("first", "edited\n")
    repo.write("nodes/gpu01.yaml")
    commit = repo.tree.commit("nodes/gpu01.yaml", message="Add node gpu01", doing="test")
    assert repo.git("show", "--format=%an %s", "--name-only", "HEAD").split("\n")[0] == "Ann Add node gpu01"
    assert repo.git("show", "--format=", "--name-only", "HEAD").split() == ["nodes/gpu01.yaml"]
    assert repo.git("rev-parse", "HEAD").startswith(commit)
    assert repo.git("status", "--porcelain").splitlines() == [" M first", "A  staged"]


def test_a_removal_is_a_commit_too(repo: Repo) -> None:
    (repo.top / "first").unlink()
    repo.tree.commit("first", message="Remove", doing="test")
    assert repo.git("show", "--format=", "--name-status", "HEAD").split() == ["D", "first"]


def test_the_first_commit_of_a_repository_works(tmp_path: Path) -> None:
    new = Repo(tmp_path / "new")
    new.write("a.yaml")
    new.tree.check("a.yaml", branch="main", doing="test")
    new.tree.commit("a.yaml", message="First", doing="test")
    assert new.git("log", "--format=%s") == "First\n"


@pytest.mark.parametrize("born", [True, False])
def test_a_hook_that_refuses_leaves_nothing_staged_and_is_heard(tmp_path: Path, *, born: bool) -> None:
    refused = Repo(tmp_path / "refused")
    if born:
        refused.git("commit", "-q", "--allow-empty", "-m", "first")
    hook = refused.top / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'no commits on Sundays' >&2\nexit 1\n")
    hook.chmod(0o755)
    refused.write("a.yaml")
    with pytest.raises(StalledError, match="no commits on Sundays"):
        refused.tree.commit("a.yaml", message="x", doing="committing a.yaml")
    assert refused.git("status", "--porcelain").split() == ["??", "a.yaml"]


def test_who_commits_must_be_known_before_anything_is_done(tmp_path: Path) -> None:
    nobody = Repo(
        tmp_path / "nobody",
        GIT_CONFIG_COUNT="1",
        GIT_CONFIG_KEY_0="user.useConfigOnly",
        GIT_CONFIG_VALUE_0="true",
    )
    with pytest.raises(StalledError, match=r"user\.email"):
        nobody.tree.check("a.yaml", branch=None, doing="adding")


def test_a_commit_on_another_branch_than_the_fleets_is_refused(repo: Repo) -> None:
    repo.tree.check("a.yaml", branch="main", doing="adding")
    with pytest.raises(StalledError, match="git switch live"):
        repo.tree.check("a.yaml", branch="live", doing="adding")
    repo.git("checkout", "-q", "--detach")
    with pytest.raises(StalledError, match="on no branch"):
        repo.tree.check("a.yaml", branch=None, doing="adding")


def test_an_ignored_file_and_an_unfinished_merge_are_told_before(repo: Repo) -> None:
    repo.write(".gitignore", "nodes/\n")
    with pytest.raises(StalledError, match=r"\.gitignore"):
        repo.tree.check("nodes/a.yaml", branch=None, doing="adding")
    repo.git("checkout", "-qb", "other")
    repo.write("first", "other\n")
    repo.git("commit", "-qam", "other")
    repo.git("checkout", "-q", "main")
    repo.write("first", "main\n")
    repo.git("commit", "-qam", "main")
    subprocess.run(
        ["git", "merge", "-q", "other"], cwd=repo.top, env=repo.environ, capture_output=True, check=False
    )
    with pytest.raises(StalledError, match="merge is not finished"):
        repo.tree.check("a.yaml", branch=None, doing="adding")


def test_what_to_push_is_said_as_git_wants_it(repo: Repo, tmp_path: Path) -> None:
    assert repo.tree.push_hint() == ""
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path / "r.git")], env=repo.environ, check=True)
    repo.git("remote", "add", "origin", str(tmp_path / "r.git"))
    assert repo.tree.push_hint() == "git push --set-upstream origin main"
    repo.git("push", "-q", "--set-upstream", "origin", "main")
    assert repo.tree.push_hint() == "git push"
    assert repo.tree.unchanged("first")
    repo.write("first", "edited\n")
    assert not repo.tree.unchanged("first")


def test_a_clone_is_known_by_any_address_of_its_remotes(repo: Repo) -> None:
    followed = Remote(address="ssh://git@host.example/lab/fleet.git")
    assert not repo.tree.is_clone_of(followed)
    repo.git("remote", "add", "mine", "git@host.example:ann/fleet.git")
    repo.git("remote", "add", "odd", "ext::sh -c x")
    assert not repo.tree.is_clone_of(followed)
    repo.git("remote", "add", "origin", "https://ann:canary@host.example/lab/fleet")
    assert repo.tree.is_clone_of(followed)
