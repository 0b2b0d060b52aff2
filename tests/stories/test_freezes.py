"""Times in which nothing is changed: a fleet that is suspended, and sync windows."""

import json

import pytest

from tests.stories.stage import Stage, model, node

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def fleet(spec: str) -> str:
    return f"apiVersion: llmgw/v1\nkind: Fleet\nmetadata: {{name: lab}}\nspec:\n  {spec}\n"


ALWAYS_CLOSED = 'syncWindows: [{kind: deny, schedule: "* * * * *", duration: 2h, timeZone: Europe/Istanbul}]'


def test_a_suspended_fleet_runs_on_and_changes_nothing(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    stage.llmgw("apply", "--yes", golden=False)
    (before,) = stage.engines()
    stage.commit("Hands off until Monday", fleet=fleet("suspend: true"))
    stage.say("Suspended, and as Git asks: nothing waits.")
    assert stage.llmgw("apply", "--yes").code == 0
    stage.commit("Slower tokens", chat=model(args='"--token-delay", "0.01"'))
    stage.say("A commit that would change something waits.")
    assert stage.llmgw("plan").code == 0
    assert stage.llmgw("plan", "--detailed-exitcode", golden=False).code == 6
    assert stage.llmgw("apply", "--yes").code == 6
    assert [it.pid for it in stage.engines()] == [before.pid]
    stage.llmgw("status")
    told = json.loads(stage.llmgw("plan", "--json", golden=False).out)
    assert told["frozen"] is True
    assert [it["would"] for it in told["changes"]] == ["+/-"]
    stage.say("Somebody has a reason, and the record keeps it.")
    assert stage.llmgw("apply", "--yes", "--override-freeze", "the demo is today").code == 0
    (after,) = stage.engines()
    assert after.pid != before.pid
    assert {it["Llmgw-Override"] for it in stage.trailers() if "Llmgw-Override" in it} == {
        "the demo is today"
    }
    stage.golden("suspended")


def test_outside_the_window_a_commit_waits_and_goes_on_when_it_opens(stage: Stage) -> None:
    stage.commit("Serve chat, at night only", node=node(stage), chat=model(), fleet=fleet(ALWAYS_CLOSED))
    assert stage.llmgw("plan").code == 0
    saved = stage.llmgw("plan", "--out", "frozen.plan", golden=False)
    assert saved.code == 0
    assert stage.llmgw("apply", "--yes").code == 6
    assert not stage.engines()
    stage.commit("At any time", fleet=fleet("syncWindows: []"))
    assert stage.llmgw("apply", "--yes").code == 0
    assert len(stage.engines()) == 1
    stage.golden("window")


def test_a_window_that_can_not_be_is_told_with_its_line(stage: Stage) -> None:
    wrong = 'syncWindows: [{kind: allow, schedule: "0 25 * * *", duration: 8h, timeZone: Europe/Istambul}]'
    stage.commit("Wrong", fleet=fleet(wrong), node=node(stage))
    ran = stage.llmgw("validate", golden=False)
    assert ran.code == 1
    told = ran.out + ran.err
    assert "manifests/fleet.yaml:5:" in told
    assert "did you mean Europe/Istanbul?" in told
    assert "is no cron schedule: bad hour" in told
