"""What goes wrong, and what the team sees then: failures, rivals, refusals, deaths."""

import json
import signal
import sys

import pytest

from tests.controller.repo.test_locks import other_process
from tests.stories.stage import PORTS, Stage, gpu_node, model, node, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FAILS = "  startupTimeout: 2s\n  restart: {giveUpAfter: 1}\n"


def test_a_new_replica_that_never_gets_ready_leaves_the_old_one_alone(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model(profile=FAILS))
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    (before,) = stage.engines()
    stage.commit("A flag that is wrong", chat=model(args='"--never-ready"', profile=FAILS))
    failed = stage.llmgw("apply", "--yes")
    assert failed.code == 5
    assert "The last lines of its output:" in failed.err
    assert "sim-engine: serving chat" in failed.err
    assert [it.pid for it in stage.engines()] == [before.pid]
    assert stage.llmgw("apply", "--yes").code == 6
    stage.llmgw("history")
    stage.commit("Back to what worked", chat=model(profile=FAILS))
    assert stage.llmgw("apply", "--yes").code == 0
    assert [it.pid for it in stage.engines()] == [before.pid]
    stage.golden("never-ready")


def test_of_two_applies_at_once_one_works_and_the_other_names_it(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    lock = stage.folder / "state" / "apply.lock"
    first = stage.begin("apply", "--yes")
    until(lambda: lock.exists() and b"ann@desk" in lock.read_bytes(), "the first apply to take the lock")
    first.send_signal(signal.SIGSTOP)
    try:
        held = stage.llmgw("apply", "--yes", LLMGW_HOLDER="bob@desk")
    finally:
        first.send_signal(signal.SIGCONT)
    assert held.code == 4
    assert "ann@desk" in held.errors
    assert str(first.pid) in held.errors
    _, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    assert len(stage.engines()) == 1
    stage.golden("two-at-once")


def test_who_only_looks_does_not_wait_for_who_applies(stage: Stage) -> None:
    """A check that an apply itself has started must not wait for that apply."""
    stage.commit("Serve chat", node=node(stage), chat=model())
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    applying = other_process(stage.folder / "state" / "apply.lock")
    try:
        for words in (["plan"], ["status"], ["history"], ["endpoints"], ["why", "model/chat"], ["validate"]):
            assert stage.llmgw(*words, golden=False).code == 0, words
        assert stage.llmgw("apply", "--yes", golden=False).code == 4
    finally:
        applying.communicate("")


def test_a_saved_plan_is_exact_fresh_and_used_once(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    stage.llmgw("apply", "--yes", golden=False)
    stage.commit("Two of them", chat=model(replicas=2))
    assert stage.llmgw("plan", "--out", "../two.json").code == 0
    assert (stage.folder / "two.json").stat().st_mode & 0o777 == 0o600
    assert stage.llmgw("apply", "../two.json").code == 0
    assert len(stage.engines()) == 2
    stage.say("a saved plan is used once")
    assert stage.llmgw("apply", "../two.json").code == 3
    stage.commit("Three of them", chat=model(replicas=3))
    assert stage.llmgw("plan", "--out", "../three.json", golden=False).code == 0
    stage.say("somebody else applies in between")
    assert stage.llmgw("apply", "--yes", golden=False, LLMGW_HOLDER="bob@laptop").code == 0
    stale = stage.llmgw("apply", "../three.json")
    assert stale.code == 3
    assert "bob@laptop" in stale.errors
    stage.commit("Four of them", chat=model(replicas=4))
    assert stage.llmgw("plan", "--out", "../four.json", golden=False).code == 0
    stage.commit("Three are enough", chat=model(replicas=3))
    stage.say("the branch has moved on")
    assert stage.llmgw("apply", "../four.json").code == 3
    for way in ("--worktree", "--offline"):
        saved = stage.llmgw("plan", way, "--out", f"../{way[2:]}.json", golden=False)
        assert "to read and to compare" in saved.err
        assert "To do exactly this" not in saved.err
    assert stage.llmgw("apply", "../offline.json").code == 1
    stage.golden("saved-plans")


def test_a_remote_that_refuses_the_push_means_that_nothing_is_started(stage: Stage) -> None:
    remote = stage.folder / "hub.git"
    stage.git("init", "--quiet", "--bare", "--initial-branch", "main", str(remote))
    stage.git("remote", "add", "origin", str(remote))
    stage.commit("Serve chat", node=node(stage), chat=model())
    assert stage.llmgw("apply", "--yes").code == 1
    stage.git("push", "--quiet", "--set-upstream", "origin", "main")
    hook = remote / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho 'only the release team may push here' >&2\nexit 1\n")
    hook.chmod(0o755)
    refused = stage.llmgw("apply", "--yes", "--repo", str(remote))
    assert refused.code == 1
    assert "pre-receive hook declined" in refused.errors
    assert not stage.processes()
    hook.unlink()
    assert stage.llmgw("apply", "--yes", "--repo", str(remote), golden=False).code == 0
    stage.golden("refused-push")


def test_an_unreadable_record_stops_everything_and_is_rebuilt_from_the_agents(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    stage.llmgw("apply", "--yes", golden=False)
    (before,) = stage.engines()
    _break_record(stage)
    assert stage.llmgw("plan").code == 1
    assert stage.llmgw("apply", "--yes").code == 1
    assert [it.pid for it in stage.engines()] == [before.pid]
    assert stage.llmgw("recover", "--yes").code == 0
    assert stage.llmgw("apply", "--yes").code == 0
    assert [it.pid for it in stage.engines()] == [before.pid]
    assert stage.llmgw("endpoints", golden=False).out.count("ready") == 1
    stage.golden("unreadable-record")


def test_a_state_branch_that_vanished_starts_nothing_anywhere_and_is_rebuilt(stage: Stage) -> None:
    middle = stage.first_port + PORTS // 2
    here = node(stage).replace(f"to: {stage.first_port + PORTS - 1}", f"to: {middle - 1}")
    two = node(stage, name="two").replace(f"from: {stage.first_port}", f"from: {middle}")
    stage.commit("Serve chat and code", node=here, chat=model(), code=model("code"))
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    assert stage.llmgw("forget", "model/code", "--why", "handed over", "--yes", golden=False).code == 0
    before = sorted(it.pid for it in stage.engines())
    stage.commit("A second machine, and two of chat", two=two, chat=model(replicas=2))
    stage.git("update-ref", "-d", "refs/heads/llmgw/state")
    for words in (("plan",), ("apply", "--yes"), ("sync",), ("status",)):
        assert stage.llmgw(*words, golden=words == ("sync",)).code == 1
    stage.say("a controller that has never read it")
    fresh = str(stage.folder / "fresh")
    for words in (("plan",), ("apply", "--yes"), ("sync",)):
        assert stage.llmgw(*words, golden=words == ("sync",), LLMGW_STATE_DIR=fresh).code == 1
    assert sorted(it.pid for it in stage.engines()) == before
    assert not (stage.folder / "two").exists()
    assert "refs/heads/llmgw/state" not in stage.git("for-each-ref")
    stage.say("the first one still knows what was forgotten")
    assert stage.llmgw("recover", "--yes").code == 0
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    assert set(before) < {it.pid for it in stage.engines()}
    stage.say("no agent knows it: whoever rebuilds the record elsewhere says so")
    stage.git("update-ref", "-d", "refs/heads/llmgw/state")
    assert stage.llmgw("recover", "--yes", "--forget", "code", LLMGW_STATE_DIR=fresh).code == 0
    told = stage.llmgw("status", golden=False, LLMGW_STATE_DIR=fresh).out
    assert "ready (forgotten)" in told
    assert set(before) < {it.pid for it in stage.engines()}
    stage.golden("lost-record")


def _break_record(stage: Stage) -> None:
    """As somebody would who edits the branch by hand."""
    copy = stage.folder / "by-hand"
    stage.git("clone", "--quiet", "--branch", "llmgw/state", str(stage.fleet), str(copy))
    (copy / "record.json").write_text('{"format": 1, "fleet": ')
    stage.git("commit", "--quiet", "--all", "--message", "Tidy up", cwd=copy)
    stage.git("push", "--quiet", "origin", "llmgw/state", cwd=copy)


@pytest.mark.parametrize(
    "point", ["before-intent", "after-intent", "after-command", "before-outcome", "after-outcome"]
)
def test_an_apply_that_is_killed_is_finished_by_the_next_and_the_branch_tells_both(
    stage: Stage, point: str
) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model(gpus=0))
    dying = stage.begin(point, program=(sys.executable, "-m", "tests.stories.dying"))
    _, err = dying.communicate(timeout=60)
    assert dying.returncode == -signal.SIGKILL, err
    finished = stage.llmgw("apply", "--yes", golden=False)
    assert finished.code == 0, finished.err
    (engine,) = stage.engines()
    assert engine.is_running()
    told = [it.get("Llmgw-Outcome", "") for it in stage.trailers()]
    died_in_between = point in ("after-intent", "after-command", "before-outcome")
    assert ("recovered" in told) is died_in_between
    assert told[0] == "done" or died_in_between
    again = stage.llmgw("apply", "--yes", golden=False)
    assert again.code == 0
    assert "Nothing to do" in again.out


def test_a_killed_agent_comes_back_to_its_engine(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    stage.llmgw("apply", "--yes", golden=False)
    (engine,) = stage.engines()
    for agent in stage.agents():
        agent.kill()
    until(lambda: not stage.agents(), "the agent to die")
    stage.say("the agent was killed")
    stage.llmgw("status")
    assert stage.llmgw("apply", "--yes").code == 0
    assert [it.pid for it in stage.engines()] == [engine.pid]
    assert stage.llmgw("plan", "--detailed-exitcode").code == 0
    assert len(stage.agents()) == 1
    stage.golden("killed-agent")


def test_on_a_full_node_the_old_copy_goes_first_and_the_outage_is_told(stage: Stage) -> None:
    stage.commit("Serve chat", node=gpu_node(stage, 1), chat=model(gpus=1))
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    stage.commit("Slower tokens", chat=model(gpus=1, args='"--token-delay", "0.01"'))
    assert "-/+" in stage.llmgw("plan").out
    assert stage.llmgw("apply", "--yes").code == 0
    assert len(stage.engines()) == 1
    stage.golden("full-node")


def test_what_does_not_fit_is_blocked_with_numbers_and_the_rest_goes_on(stage: Stage) -> None:
    stage.commit("Serve two", node=gpu_node(stage, 1), big=model("big", gpus=4), chat=model(gpus=1))
    first = stage.llmgw("apply", "--yes")
    assert first.code == 5
    assert len(stage.engines()) == 1
    assert stage.llmgw("apply", "--yes").code == 6
    stage.golden("does-not-fit")


def test_what_is_wrong_in_the_manifests_is_told_with_its_line_and_nothing_is_done(stage: Stage) -> None:
    stage.commit(
        "A profile that is not there",
        node=node(stage),
        chat=model().replace("profile: sim-chat", "profile: nope"),
    )
    assert stage.llmgw("plan").code == 1
    wrong = stage.llmgw("apply", "--yes")
    assert wrong.code == 1
    assert not stage.processes()
    asked = stage.llmgw("apply", golden=False)
    assert asked.code == 64
    assert json.loads(stage.llmgw("validate", "--json", golden=False).out or "{}") is not None
    stage.golden("wrong-manifests")


def test_status_tells_of_the_newest_commit_while_it_is_not_applied(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    stage.llmgw("apply", "--yes", golden=False)
    stage.commit("Another profile", chat=model().replace("profile: sim-chat", "profile: nope"))
    assert stage.llmgw("apply", "--yes").code == 1
    stage.llmgw("status")
    stage.commit("Two of them", chat=model(replicas=2))
    stage.llmgw("status")
    stage.commit("One is enough, and say why", chat=f"# One serves all of us.\n{model()}")
    assert "Newest commit" not in stage.llmgw("status", golden=False).out, "it asks for what is there"
    stage.golden("newest-not-applied")
