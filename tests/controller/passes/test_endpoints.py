"""Where models answer, in the words of those who want to reach them."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from llmgw.controller.passes.endpoints import (
    FORMATS,
    Reachable,
    as_env,
    as_format,
    as_json,
    as_table,
    reachable,
    write,
)
from llmgw.controller.passes.keyring import Keyring
from llmgw.controller.secrets import replica_key
from llmgw.model.ids import FleetId, ReplicaId
from llmgw.model.problems import StalledError
from llmgw.model.record import Endpoint, EndpointAdapter, ModelRecord, Record
from llmgw.model.struct import replace

SECRET = b"a secret that is long enough for any purpose"
KEYS = Keyring(secrets={"abcd1234": SECRET})


def endpoint(
    replica: str, *, model: str = "chat", state: str = "ready", address: str = "10.0.0.1"
) -> Endpoint:
    return Endpoint(
        model=model,
        served_name=f"org/{model}",
        aliases=("default",) if model == "chat" else (),
        replica=ReplicaId(replica),
        address=address,
        port=18000,
        key_id="abcd1234",
        state=state,
    )


RECORD = Record(
    fleet=FleetId("fleet-1"),
    serial=4,
    models={
        name: ModelRecord(name=name, id_prefix=name, served_name=f"org/{name}")
        for name in ("chat", "code", "slow")
    },
    endpoints=(
        endpoint("chat-00000001-1.1", state="draining"),
        endpoint("chat-00000001-0.1"),
        endpoint("chat-00000001-2.1", address="fd00::1"),
        endpoint("code-00000002-0.1", model="code"),
    ),
)


def found(model: str | None = None) -> tuple[Reachable, ...]:
    return reachable(RECORD, KEYS, model)


def test_each_replica_has_its_own_key() -> None:
    keys = [it.key for it in found()]
    assert len(set(keys)) == len(keys) == 4
    assert keys[0] == replica_key(SECRET, ReplicaId("chat-00000001-0.1"))


@pytest.mark.parametrize("name", ["chat", "org/chat", "default", "model/chat"])
def test_a_model_is_known_by_name_served_name_and_alias(name: str) -> None:
    assert {it.endpoint.model for it in found(name)} == {"chat"}


@pytest.mark.parametrize("name", ["chat-00000001-0.1", "chat/0", "model/chat/0", "chat/0.1"])
def test_one_replica_is_known_by_what_status_plans_and_progress_call_it(name: str) -> None:
    assert [it.endpoint.replica for it in found(name)] == ["chat-00000001-0.1"]


def test_a_name_that_nobody_has_is_answered_with_the_names_there_are() -> None:
    with pytest.raises(StalledError, match="there is: chat, code"):
        found("cat")
    with pytest.raises(StalledError, match="slow has no replica that serves"):
        found("slow")


def test_the_environment_is_the_first_ready_replicas_and_survives_a_shell(tmp_path: Path) -> None:
    text = as_env(found("chat"))
    said = subprocess.run(
        ["sh", "-c", f'{text}\necho "$OPENAI_BASE_URL $OPENAI_MODEL $OPENAI_API_KEY"'],
        capture_output=True,
        text=True,
        check=True,
    )
    key = replica_key(SECRET, ReplicaId("chat-00000001-0.1"))
    assert said.stdout.split() == ["http://10.0.0.1:18000/v1", "org/chat", key]


def test_without_a_ready_replica_there_is_no_environment() -> None:
    draining = [it for it in found("chat") if it.endpoint.state == "draining"]
    with pytest.raises(StalledError, match="no replica is ready"):
        as_env(draining)


def test_json_holds_everything_and_urls_that_work_for_ipv6() -> None:
    document = json.loads(as_json(found(), RECORD))
    assert document["serial"] == 4
    assert {it["url"] for it in document["endpoints"]} == {
        "http://10.0.0.1:18000/v1",
        "http://[fd00::1]:18000/v1",
    }


def test_a_table_shows_every_replica_with_its_state() -> None:
    lines = as_table(found()).splitlines()
    assert lines[0].split() == ["MODEL", "REPLICA", "STATE", "URL", "KEY"]
    assert len(lines) == 5
    assert "draining" in lines[2]
    assert as_table(()) == "No replica serves yet.\n"


def test_litellm_balances_over_ready_replicas_under_every_name() -> None:
    entries = json.loads(as_format(found(), "litellm"))["model_list"]
    assert [it["model_name"] for it in entries] == ["org/chat", "default", "org/chat", "default", "org/code"]
    assert all(it["litellm_params"]["model"].startswith("openai/") for it in entries)


def test_nginx_sends_each_request_with_the_key_of_the_replica_it_goes_to() -> None:
    text = as_format(found(), "nginx")
    key = replica_key(SECRET, ReplicaId("chat-00000001-2.1"))
    assert f'    "[fd00::1]:18000" "Bearer {key}";' in text
    assert '    50% "10.0.0.1:18000";' in text
    assert '    * "[fd00::1]:18000";' in text
    assert text.count("split_clients") == 2
    assert text.count("{") == text.count("}")


def test_models_whose_names_differ_in_a_dot_do_not_share_an_nginx_variable() -> None:
    """They did: nginx then sent the requests of both to the one that came last."""
    one, other = (it for it in found("chat") if it.endpoint.state == "ready")
    dashed = replace(one, endpoint=replace(one.endpoint, model="qwen2-5"))
    dotted = replace(other, endpoint=replace(other.endpoint, model="qwen2.5"))
    text = as_format((dashed, dotted), "nginx")
    named = re.findall(r'^split_clients "\$request_id" (\$\w+) {', text, re.MULTILINE)
    assert named[0] == "$llmgw_qwen2_5"
    assert len(set(named)) == 2


def test_prometheus_scrapes_draining_replicas_too_and_gets_no_key() -> None:
    text = as_format(found(), "prometheus-sd")
    targets = json.loads(text)
    assert len(targets) == 4
    assert {it["labels"]["state"] for it in targets} == {"ready", "draining"}
    assert not any(it.key in text for it in found())


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_an_answer_for_nothing_at_all(name: str) -> None:
    assert as_format((), name).strip()


def test_a_file_with_keys_is_private_and_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    path.write_text("old")
    path.chmod(0o644)
    write("new\n", path)
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [it.name for it in tmp_path.iterdir()] == ["endpoints.json"]


# ---- adapters ------------------------------------------------------------------------------------------


def with_adapters(*adapters: EndpointAdapter) -> tuple[Reachable, ...]:
    record = replace(RECORD, endpoints=(replace(endpoint("chat-00000001-0.1"), adapters=adapters),))
    return reachable(record, KEYS, adapters[0].name)


SQL = EndpointAdapter(name="sql", send={"model": "chat:sql"})
POLITE = EndpointAdapter(name="polite", send={"lora": [{"id": 0, "scale": 1.0}], "cache_prompt": False})


def test_adapters_are_told_with_what_a_request_sends() -> None:
    (first, *told) = as_table(with_adapters(SQL, POLITE)).splitlines()[1:]
    assert first.startswith("org/chat ")
    assert told == [
        '    adapter sql: send {"model": "chat:sql"}',
        '    adapter polite: send {"lora": [{"id": 0, "scale": 1.0}], "cache_prompt": false}',
    ]
    (entry,) = json.loads(as_json(with_adapters(SQL), RECORD))["endpoints"]
    assert entry["adapters"] == [{"name": "sql", "send": {"model": "chat:sql"}}]


def test_a_proxy_gets_each_adapter_as_a_model_of_its_own() -> None:
    entries = json.loads(as_format(with_adapters(SQL, POLITE), "litellm"))["model_list"]
    told = {entry["model_name"]: entry["litellm_params"] for entry in entries}
    assert set(told) == {"org/chat", "default", "sql", "polite"}
    assert told["sql"]["model"] == "openai/chat:sql"
    assert told["polite"]["model"] == "openai/org/chat"
    assert told["polite"]["extra_body"] == POLITE.send
