"""A person at a terminal: who is asked, who changes their mind, and who presses Ctrl-C."""

import json
import signal

import pytest

from tests.stories.stage import Stage, model, node
from tests.stories.terminal import terminal

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_apply_shows_the_plan_and_asks_and_no_means_that_nothing_is_done(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    with terminal(stage, "apply") as seen:
        seen.shows("Do this? [y/N]:")
        assert "model/chat/0" in seen.screen
        seen.type("n\n")
        assert seen.ends() == 1
        assert "Nothing was done." in seen.screen
    assert not stage.processes()
    with terminal(stage, "apply") as seen:
        seen.shows("Do this? [y/N]:")
        seen.type("y\n")
        assert seen.ends() == 0
        assert "chat/0.1 on here: ready" in seen.screen
        assert "Applied" in seen.screen
    assert len(stage.engines()) == 1


def test_what_changed_while_somebody_was_reading_is_not_done(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    with terminal(stage, "apply") as seen:
        seen.shows("Do this? [y/N]:")
        stage.commit("Two of them", chat=model(replicas=2))
        seen.type("y\n")
        assert seen.ends() == 3
        assert "the plan changed while you were reading it" in seen.screen.replace("\n", " ")
    assert not stage.processes()


def test_one_ctrl_c_ends_the_waiting_in_order_and_the_next_apply_goes_on(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model(args='"--load-seconds", "6"'))
    waiting = stage.begin("apply", "--yes")
    assert waiting.stderr is not None
    for line in waiting.stderr:
        if "loading" in line:
            break
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=30)
    assert waiting.returncode == 5, err
    assert "interrupted" in err
    assert stage.trailers()[0]["Llmgw-Outcome"] == "accepted"
    assert len(stage.engines()) == 1, "what was started goes on"
    finished = stage.llmgw("apply", "--yes", golden=False)
    assert finished.code == 0, finished.err
    assert stage.trailers()[0]["Llmgw-Outcome"] == "done"


def test_the_file_of_endpoints_is_true_after_an_apply_and_logs_can_be_followed(stage: Stage) -> None:
    (stage.fleet / "llmgw.yaml").write_text(f"endpointsFile: {stage.folder}/endpoints.json\n")
    stage.commit("Serve chat", node=node(stage), chat=model())
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    path = stage.folder / "endpoints.json"
    (told,) = json.loads(path.read_text())["endpoints"]
    assert told["url"] == f"http://127.0.0.1:{stage.first_port}/v1"
    assert path.stat().st_mode & 0o777 == 0o600
    for name in ("chat", "model/chat", "model/chat/0", "chat/0.1"):
        assert "sim-engine: serving chat" in stage.llmgw("logs", name, golden=False).out
    with terminal(stage, "logs", "chat", "-f", "-n", "1") as seen:
        seen.shows("sim-engine:")
        seen.type("\x03")
        seen.process.send_signal(signal.SIGINT)
        assert seen.ends() == 0
    unknown = stage.llmgw("logs", "cat", golden=False)
    assert unknown.code == 1
    assert "name a model (chat)" in unknown.err
    as_json = json.loads(stage.llmgw("status", "--json", golden=False).out)
    assert as_json["replicas"][0]["state"] == "ready"
    serial = stage.llmgw("history", "1", golden=False).out
    assert "Start 1 replica of chat on here" in serial
    assert "Outcome: done" in serial
