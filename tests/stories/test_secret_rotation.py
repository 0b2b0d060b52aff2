"""Another fleet secret: every replica gets a new key, and whoever asks with the key of the record is never refused."""

import json
import signal
import stat
import urllib.error
import urllib.request

import pytest

from llmgw.model.ids import key_id
from tests.stories.stage import Stage, model, node, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def ids_of(stage: Stage) -> dict[str, str]:
    """Key ids of the secrets on this machine, by file."""
    return {it.name: key_id(it.read_bytes().strip()) for it in sorted(stage.folder.glob("secret*"))}


def hide(stage: Stage, *keys: str) -> None:
    for number, key in enumerate(keys):
        stage.script = [it.replace(key, f"<key {number}>") for it in stage.script]


def every_key_opens(stage: Stage) -> None:
    """Each replica that is published answers to the key that is told for it."""
    told = json.loads(stage.llmgw("endpoints", "--json", golden=False).out)["endpoints"]
    for each in told:
        request = urllib.request.Request(
            f"{each['url']}/models", headers={"Authorization": f"Bearer {each['key']}"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200


def test_every_replica_gets_a_new_key_and_the_old_secret_goes(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model(replicas=2))
    stage.llmgw("apply", "--yes", golden=False)
    old = ids_of(stage)["secret"]
    every_key_opens(stage)
    stage.llmgw("secret", "status")
    assert stage.llmgw("secret", "rotate", "--yes").code == 0
    stage.llmgw("secret", "status")
    kept = ids_of(stage)
    assert set(kept) == {"secret"}
    assert stat.S_IMODE((stage.folder / "secret").stat().st_mode) == 0o600
    every_key_opens(stage)
    assert stage.llmgw("apply", "--yes").code == 0
    hide(stage, old, kept["secret"])
    stage.golden("rotate")


def test_an_interrupted_rotation_goes_on_with_both_keys_known(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model(replicas=2))
    stage.llmgw("apply", "--yes", golden=False)
    old = ids_of(stage)["secret"]
    rotating = stage.begin("secret", "rotate", "--yes")
    until(lambda: ids_of(stage)["secret"] != old, "the new secret to be there")
    rotating.send_signal(signal.SIGKILL)
    rotating.communicate()
    new = ids_of(stage)["secret"]
    assert new != old
    every_key_opens(stage)
    assert stage.llmgw("secret", "rotate", "--yes", golden=False).code == 1, "a rotation began in a rotation"
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    assert ids_of(stage) == {"secret": new}
    every_key_opens(stage)
    keys = json.loads(stage.llmgw("secret", "status", "--json", golden=False).out)
    assert keys["replicas"] == {new: 2}


def test_a_controller_with_the_old_secret_is_told_what_to_copy(stage: Stage) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    stage.llmgw("apply", "--yes", golden=False)
    elsewhere = stage.folder / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    copied = elsewhere / "secret"
    copied.write_bytes((stage.folder / "secret").read_bytes())
    copied.chmod(0o600)
    stage.llmgw("secret", "rotate", "--yes", golden=False)
    ran = stage.llmgw("endpoints", golden=False, LLMGW_SECRET_FILE=str(copied))
    assert ran.code == 1
    assert f"copy the file or value named {ids_of(stage)['secret']} from the machine that applied" in ran.err
    ran = stage.llmgw("apply", "--yes", golden=False, LLMGW_SECRET_FILE=str(copied))
    assert ran.code == 0, "nothing is to be done, so nothing needs a secret"
    stage.commit("Another flag", chat=model(args='"--token-delay", "0.01"'))
    ran = stage.llmgw("apply", "--yes", golden=False, LLMGW_SECRET_FILE=str(copied))
    assert ran.code == 1
    assert "every running replica would refuse its users" in ran.err
