"""Changing things from the command line: every edit is a commit in the person's own work tree, pushed and planned."""

import json

import pytest

from tests.stories.stage import Stage, model, node

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CHAT = model(spec="  # of those that fit\n  priority: 5   # see the wiki\n")


def _with_remote(stage: Stage) -> None:
    stage.git("config", "user.name", "Ben")
    stage.git("config", "user.email", "ben@example.org")
    stage.commit("Serve chat", node=node(stage), chat=CHAT)
    stage.git("init", "--quiet", "--bare", "--initial-branch", "main", str(stage.folder / "remote.git"))
    stage.git("remote", "add", "origin", str(stage.folder / "remote.git"))
    stage.git("push", "--quiet", "--set-upstream", "origin", "main")


def _remote_head(stage: Stage) -> str:
    return stage.git("rev-parse", "refs/heads/main", cwd=stage.folder / "remote.git").strip()


def test_an_edit_is_a_commit_that_is_pushed_and_planned(stage: Stage) -> None:
    _with_remote(stage)
    stage.llmgw("apply", "--yes", golden=False)
    other = stage.fleet / "notes.txt"
    other.write_text("not finished")
    stage.git("add", "notes.txt")
    assert stage.llmgw("scale", "chat", "2").code == 0
    assert stage.git("rev-parse", "HEAD").strip() == _remote_head(stage)
    assert stage.git("log", "-1", "--format=%an %ae").strip() == "Ben ben@example.org"
    assert (
        stage.git("diff", "--unified=0", "HEAD~", "HEAD").rstrip().endswith("-  replicas: 1\n+  replicas: 2")
    )
    assert stage.git("diff", "--cached", "--name-only").strip() == "notes.txt", (
        "what was staged was taken along"
    )
    assert stage.llmgw("scale", "chat", "2").code == 0
    assert (
        stage.llmgw(
            "set", "model/chat.spec.priority=9", "--unset", "model/chat.spec.rollout", "--no-push"
        ).code
        == 0
    )
    assert (
        "  # of those that fit\n  priority: 9   # see the wiki\n"
        in (stage.fleet / "manifests" / "chat.yaml").read_text()
    )
    assert stage.git("rev-parse", "HEAD~").strip() == _remote_head(stage)
    stage.llmgw("cordon", "here", "-m", "Its fan is loud")
    stage.llmgw("uncordon", "here", "--json", golden=False)
    assert stage.git("log", "-2", "--format=%s").splitlines() == ["Use node here", "Its fan is loud"]
    assert stage.git("rev-parse", "HEAD").strip() == _remote_head(stage)
    stage.golden("edits")


def test_in_a_clone_of_the_repository_that_is_followed_edits_are_planned_against_its_record(
    stage: Stage,
) -> None:
    """As people work beside a controller elsewhere: the record is where that one keeps it, the edits are made here."""
    _with_remote(stage)
    followed = {"LLMGW_REPO": f"file://{stage.folder}/remote.git"}
    assert stage.llmgw("apply", "--yes", golden=False, **followed).code == 0
    ran = stage.llmgw("set", "model/chat.spec.priority=9", golden=False, **followed)
    assert ran.code == 0, ran.err
    assert "on serial " in ran.out
    assert "spec.priority: 5 -> 9" in ran.out
    assert stage.git("rev-parse", "HEAD").strip() == _remote_head(stage)
    assert stage.llmgw("plan", "--worktree", golden=False, **followed).code == 0
    stage.git("switch", "--quiet", "--create", "idea")
    ran = stage.llmgw("scale", "chat", "3", golden=False, **followed)
    assert ran.code == 1
    assert "is on the branch idea, and the fleet follows main" in ran.err


def test_an_edit_that_cannot_be_is_told_and_leaves_everything_as_it_was(stage: Stage) -> None:
    _with_remote(stage)
    before = stage.git("rev-parse", "HEAD")
    stage.llmgw("scale", "chta", "2")
    stage.llmgw("set", "model/chat.spec.replicas=many")
    stage.llmgw("set", "model/chat.spec.replica=3")
    stage.llmgw("set", "model/chat.spec.profile=large")
    stage.llmgw("set", "chat.replicas=3")
    stage.llmgw("pin", "chat")
    assert stage.git("status", "--porcelain") == ""
    (stage.fleet / "manifests" / "chat.yaml").write_text(CHAT + "\n")
    stage.llmgw("scale", "chat", "3")
    stage.git("checkout", "--quiet", "--", ".")
    stage.git("checkout", "--quiet", "--detach")
    stage.llmgw("scale", "chat", "3")
    stage.git("checkout", "--quiet", "main")
    assert stage.git("rev-parse", "HEAD") == before
    hook = stage.fleet / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho 'not on a Friday' >&2\nexit 1\n")
    hook.chmod(0o755)
    stage.llmgw("scale", "chat", "3")
    assert stage.git("status", "--porcelain") == ""
    hook.unlink()
    _pushed_by_somebody_else(stage)
    ran = stage.llmgw("scale", "chat", "3", golden=False)
    assert ran.code == 1
    assert "it stays committed here; git pull --rebase, then git push" in ran.err
    stage.golden("edits-refused")


def _pushed_by_somebody_else(stage: Stage) -> None:
    other = stage.folder / "other"
    stage.git("clone", "--quiet", str(stage.folder / "remote.git"), str(other))
    (other / "readme").write_text("x")
    stage.git("add", "readme", cwd=other)
    stage.git("commit", "--quiet", "--message", "Say something", cwd=other)
    stage.git("push", "--quiet", cwd=other)


def test_json_names_the_commit(stage: Stage) -> None:
    stage.git("config", "user.name", "Ben")
    stage.git("config", "user.email", "ben@example.org")
    stage.commit("Serve chat", node=node(stage), chat=CHAT)
    ran = stage.llmgw("scale", "model/chat", "3", "--json", golden=False)
    told = json.loads(ran.out)
    assert told["commit"] == stage.git("rev-parse", "--short=10", "HEAD").strip()
    assert (told["files"], told["pushedTo"]) == (["manifests/chat.yaml"], None)
    assert json.loads(stage.llmgw("scale", "chat", "3", "--json", golden=False).out)["commit"] is None


def test_a_rollback_is_a_new_commit_with_the_manifests_of_an_earlier_one(stage: Stage) -> None:
    _with_remote(stage)
    stage.llmgw("apply", "--yes", golden=False)
    stage.commit("Two, and another", chat=model(replicas=2), other=model("other"))
    (stage.fleet / "readme").write_text("stays")
    stage.git("add", "readme")
    stage.git("commit", "--quiet", "--message", "Explain")
    stage.git("push", "--quiet")
    stage.llmgw("apply", "--yes", golden=False)
    assert stage.llmgw("rollback", "1").code == 0
    assert stage.git("rev-parse", "HEAD").strip() == _remote_head(stage)
    assert stage.git("show", "HEAD:manifests/chat.yaml") == CHAT
    assert stage.git("ls-tree", "--name-only", "-r", "HEAD").split() == [
        "manifests/chat.yaml",
        "manifests/node.yaml",
        "readme",
    ]
    assert stage.llmgw("rollback", "1").code == 0
    first = stage.git("rev-list", "--max-parents=0", "HEAD").strip()
    stage.llmgw("rollback", "99")
    stage.llmgw("rollback", "nowhere")
    told = json.loads(stage.llmgw("rollback", first[:12], "--json", "--no-push", golden=False).out)
    assert told == {"formatVersion": 1, "commit": None, "to": first, "pushedTo": None}
    stage.golden("rollback")


def test_what_a_change_would_do_is_told_between_any_two_commits(stage: Stage) -> None:
    """For a reviewer: what has been applied meanwhile, and how the fleet is, does not matter."""
    stage.commit("Serve chat", node=node(stage), chat=CHAT)
    stage.llmgw("apply", "--yes", golden=False)
    stage.commit("Serve code too", code=model("code"))
    stage.git("tag", "before")
    stage.commit("Two of code, and slower", code=model("code", replicas=2, args='"--token-delay", "0.01"'))
    stage.git("tag", "after")
    stage.commit("Something else", chat=None)
    ran = stage.llmgw("plan", "--offline", "--commit", "before..after")
    assert "chat" not in ran.out
    same = stage.llmgw("plan", "--offline", "--commit", "after..after", "--detailed-exitcode", golden=False)
    assert same.code == 0, same.out
    stage.say("and back")
    back = stage.llmgw("plan", "--offline", "--commit", "after..HEAD~2")
    assert "scaled-down" in back.out
    assert stage.llmgw("plan", "--offline", "--commit", "..before", golden=False).code == 0
    assert stage.llmgw("plan", "--commit", "before..after").code == 64
    assert stage.llmgw("plan", "--offline", "--commit", "before...after").code == 64
    assert stage.llmgw("plan", "--offline", "--commit", "before..origin/main").code == 1
    assert stage.llmgw("apply", "--yes", "--commit", "before..after", golden=False).code == 64
    stage.golden("between-commits")
