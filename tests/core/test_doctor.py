"""What a controller adds to a node's own checkup."""

from typing import Any

from llmgw.core.adapter import OpenPath
from llmgw.core.show.doctor import Examined, Knock, examined, paths_to_ask
from llmgw.model.checkup import Check, Checkup, Level, well, worst
from llmgw.model.manifest import Expect, Ssh
from llmgw.model.report import Reach
from llmgw.model.struct import replace
from llmgw.wire.messages import Knocked
from tests.core.builders import NodeState, facts, node

GUARDED = "/v1/models"
OPEN = {
    "vllm": (
        OpenPath(path="/health", gives="whether it lives"),
        OpenPath(path="/invocations", gives="the use of the model", harmful=True),
    )
}
STATE = NodeState("gpu01", replace(facts("gpu01"), shm_total=10**12))
SSH = Ssh(host="10.0.0.1", host_keys=("ssh-ed25519 AAAA",))
SHARD = "chat-1f0c9a2b-0.1-r0"


def one(state: NodeState = STATE, **changes: Any) -> Examined:
    given: dict[str, Any] = {
        "node": node("gpu01", ssh=SSH),
        "seen": replace(state.observation(), skew=0.1),
        "tool_version": "0.1.0",
        "seconds": 0.2,
        "checkup": Checkup(checks=(well("agent", "runs"),)),
        "versions": {"gpu02": "0.1.0"},
        **changes,
    }
    return Examined(**given)


def amiss(found: Examined) -> list[Check]:
    return [check for check in examined(found, OPEN, guarded=GUARDED) if check.level is not Level.OK]


def knocked(port: str = "open", **statuses: int) -> Knock:
    names = {"models": GUARDED, "invocations": "/invocations", "health": "/health"}
    answers = {names[name]: status for name, status in statuses.items()}
    return Knock(
        by="gpu02",
        port=18000,
        shard=SHARD,
        engine="vllm",
        knocked=Knocked(port=port, statuses=answers),
    )


def only(found: Examined) -> Check:
    (check,) = amiss(found)
    return check


def test_a_sound_node_is_told_from_here_and_from_there() -> None:
    found = examined(one(knocks=(knocked(models=401, health=200),)), OPEN, guarded=GUARDED)
    assert worst(found) is Level.OK
    assert [check.name for check in found] == [
        *(
            "host key",
            "reach",
            "agent version",
            "clock skew",
            "as in Git",
            "port band",
            "open paths",
            "agent",
        ),
    ]
    assert "open and harmless: /health (whether it lives)" in found[6].text


def test_a_node_that_does_not_answer_is_a_failure_and_nothing_is_made_up_about_it() -> None:
    gone = NodeState("gpu01", facts("gpu01"), reach=Reach.UNREACHABLE, error="no route")
    asked = one(gone, seen=gone.observation(), seconds=None, checkup=None, versions={})
    found = examined(asked, OPEN, guarded=GUARDED)
    assert [(check.name, check.level) for check in found] == [("reach", Level.FAIL)]
    assert "no route" in found[0].text


def test_a_machine_without_an_agent_is_examined_by_its_facts() -> None:
    bare = NodeState("gpu01", replace(STATE.facts, shm_total=1), reach=Reach.NO_AGENT, error="no agent there")
    found = {check.name: check for check in amiss(one(bare, seconds=None, checkup=None, versions={}))}
    assert found["agent version"].level is Level.FAIL
    assert "bootstrap gpu01" in found["agent version"].do
    assert found["shared memory"].level is Level.WARN


def test_an_agent_of_another_version_is_told() -> None:
    older = NodeState("gpu01", STATE.facts, agent="0.0.9")
    assert "0.0.9, this llmgw 0.1.0" in only(one(older)).text
    assert "gpu02 have another" in only(one(versions={"gpu02": "0.0.9", "gpu03": "0.1.0"})).text


def test_slow_ways_and_wrong_clocks_are_told() -> None:
    assert only(one(seconds=3.0)).name == "reach"
    skewed = replace(one().seen, skew=-60.0)
    assert "1m behind" in only(one(seen=skewed)).text


def test_a_machine_that_is_not_what_git_says_fails() -> None:
    wanted = node("gpu01", ssh=SSH, expect=Expect(gpus=8))
    check = only(one(node=wanted))
    assert (check.level, check.name) == (Level.FAIL, "as in Git")
    assert "its manifest expects 8" in check.text


def test_a_port_that_another_node_can_not_reach_fails() -> None:
    silent = Knock(by="gpu02", port=18999, knocked=Knocked(port="no answer within 3 s"))
    check = only(one(knocks=(silent,)))
    assert (check.level, check.name) == (Level.FAIL, "port band")
    assert "18000 to 18999/tcp" in check.do
    refused = only(one(knocks=(knocked("refused"),)))
    assert "where chat-1f0c9a2b-0.1-r0 should listen" in refused.text
    assert amiss(one(knocks=(Knock(by="gpu02", port=18999, knocked=Knocked(port="refused")),))) == []
    assert (
        "could not be asked: too old" in only(one(knocks=(Knock(by="gpu02", port=1, error="too old"),))).text
    )


def test_an_engine_that_answers_without_its_key_fails_and_what_it_leaves_open_warns() -> None:
    naked = {check.level: check for check in amiss(one(knocks=(knocked(models=200, invocations=405),)))}
    assert "/v1/models answers" in naked[Level.FAIL].text
    assert "/invocations (the use of the model)" in naked[Level.WARN].text
    assert amiss(one(knocks=(knocked(models=401, invocations=401, health=404),))) == []
    assert "no answer for /v1/models" in only(one(knocks=(knocked(models=0),))).text


def test_engines_on_loopback_are_reached_by_nobody_else() -> None:
    here = replace(node("gpu01", transport="local"), address="127.0.0.1")
    found = examined(one(node=here, knocks=(knocked(models=401),)), OPEN, guarded=GUARDED)
    assert "only this machine can reach them" in next(c.text for c in found if c.name == "port band")
    assert not any(check.name == "host key" for check in found)


def test_an_agent_that_gives_no_checkup_is_told_and_facts_stand_in() -> None:
    found = amiss(one(checkup=None, silence="its agent can't examine its node yet"))
    assert [check.name for check in found] == ["node"]


def test_each_path_is_asked_once_the_guarded_one_first() -> None:
    assert paths_to_ask(OPEN["vllm"], guarded=GUARDED) == (GUARDED, "/health", "/invocations")
