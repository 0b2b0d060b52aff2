"""LoRA adapters of a model that serves: come and go without a restart, stay after one, and are told where they can't."""

import json
from pathlib import Path

import pytest

from tests.stories.stage import Stage, model, node, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def adapter(stage: Stage, name: str, *, rank: int = 8) -> str:
    """One that lies on the node, as PEFT writes it, and its lines of the manifest."""
    folder: Path = stage.folder / "adapters" / name.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank}))
    return f"    - {{name: {name}, source: {{path: {folder}}}, rank: {rank}}}\n"


def chat(*adapters: str, most: int = 2, args: str = "") -> str:
    listed = "  adapters:\n" + "".join(adapters) if adapters else ""
    return model(args=args, spec=f"  maxLoadedAdapters: {most}\n{listed}")


def routable(stage: Stage) -> list[str]:
    told = json.loads(stage.llmgw("endpoints", "--json", golden=False).out)
    return [each["name"] for endpoint in told["endpoints"] for each in endpoint["adapters"]]


def test_adapters_come_and_go_while_the_engine_serves(stage: Stage) -> None:
    sql, legal, more = (adapter(stage, name) for name in ("sql", "team/legal", "more"))
    stage.commit("Serve chat with an adapter", node=node(stage), chat=chat(sql))
    assert stage.llmgw("apply", "--yes").code == 0
    (engine,) = stage.engines()
    stage.commit("One more, whose name has a slash", chat=chat(sql, legal))
    assert stage.llmgw("plan").code == 0
    assert stage.llmgw("apply", "--yes").code == 0
    assert routable(stage) == ["sql", "team/legal"]
    assert stage.llmgw("plan", "--detailed-exitcode").code == 0
    stage.commit("Three, of which two may be loaded", chat=chat(more, legal, sql))
    assert stage.llmgw("apply", "--yes").code == 0
    assert routable(stage) == ["more", "team/legal"]
    stage.llmgw("status")
    stage.llmgw("endpoints")
    stage.commit("A rank that it was not started for", chat=chat(adapter(stage, "big", rank=64)))
    stage.llmgw("plan")
    assert [it.pid for it in stage.engines()] == [engine.pid]
    stage.llmgw("history")
    stage.golden("adapters")


def test_what_an_engine_refuses_costs_the_others_nothing_and_another_start_gets_them_again(
    stage: Stage,
) -> None:
    good, bad = adapter(stage, "good"), adapter(stage, "bad")
    args = '"--refuse-adapter", "bad"'
    stage.commit("Serve chat", node=node(stage), chat=chat(good, bad, args=args))
    ran = stage.llmgw("apply", "--yes", golden=False)
    assert ran.code == 5, ran.out + ran.err
    told = stage.llmgw("plan", golden=False).out
    assert "adapter-failed" in told
    assert "can't be loaded (told to by --refuse-adapter)" in told
    assert routable(stage) == ["good"]
    (engine,) = stage.engines()
    engine.kill()
    until(lambda: [it for it in stage.engines() if it.pid != engine.pid], "another engine")
    until(lambda: "adapter good: routable" in stage.llmgw("status", golden=False).out, "its adapter")
    stage.commit("Without it", chat=chat(good, args=args))
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    assert stage.llmgw("plan", "--detailed-exitcode", golden=False).code == 0
