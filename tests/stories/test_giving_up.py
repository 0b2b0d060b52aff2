"""A replica that served and that its agent has started in vain often enough: another node, a rest, and the way to cut it short."""

import json
import re
import signal

import pytest

from tests.stories.stage import Stage, model, until
from tests.stories.test_gangs import nodes

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ONCE = "  restart: {giveUpAfter: 1, maxBackoff: 10m}\n"


def kill_engine(stage: Stage) -> None:
    (engine,) = stage.engines()
    engine.send_signal(signal.SIGKILL)
    until(lambda: "failed" in states(stage), "its agent to give it up")


def without_requests(text: str) -> str:
    """How often it was asked for its health before it was killed is no part of the story."""
    request = r'sim-engine: "[A-Z]+ [^"]*" 200 -'
    return re.sub(request, "<its last line>", re.sub(rf"^ +{request}\n", "", text, flags=re.MULTILINE))


def states(stage: Stage) -> list[str]:
    told = json.loads(stage.llmgw("status", "--json", golden=False).out)
    return [row["state"] for row in told["replicas"]]


def test_what_is_given_up_on_one_node_is_tried_on_another_and_then_rests(stage: Stage) -> None:
    stage.commit("Serve chat", **nodes(stage), chat=model(profile=ONCE))
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    kill_engine(stage)
    stage.say("its engine was killed, and restart.giveUpAfter is 1")
    assert stage.llmgw("apply", "--yes").code == 0
    assert states(stage) == ["ready"]
    kill_engine(stage)
    stage.say("and once more")
    assert stage.llmgw("apply", "--yes").code == 6
    stage.llmgw("status")
    assert stage.llmgw("apply", "--yes", "--replace", "model/chat/0", golden=False).code == 0
    assert states(stage) == ["ready"]
    stage.say("somebody has asked for a new copy")
    stage.llmgw("status")
    stage.script = [without_requests(text) for text in stage.script]
    stage.golden("gave-up")
