"""LoRA adapters of a shard on a pretended node: loaded one by one, again after each start, and never at the engine's cost."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.seams import JournalEvent
from llmgw.agent.shards import late, lorafile
from llmgw.agent.shards.orders import needed
from llmgw.model.ids import JobId
from llmgw.model.launch import HttpProbe, LaunchSpec, LoraAdapter, LoraCalls, LoraListing, LoraOrder
from llmgw.model.problems import AgentError
from llmgw.model.report import LoraReport
from llmgw.model.struct import replace
from llmgw.wire.messages import AdaptersParams
from tests.agent.shards.rig import COMMAND, Rig, behaving, on_node, spec, start, until

LISTING = LoraListing(probe=HttpProbe(path="/v1/models"), at="data", name="id", place="root", parent="parent")
CALLS = LoraCalls(
    load=HttpProbe(
        path="/v1/load_lora_adapter", method="POST", body='{"lora_name":"${name}","lora_path":"${path}"}'
    ),
    unload=HttpProbe(path="/v1/unload_lora_adapter", method="POST", body='{"lora_name":"${name}"}'),
    most=3,
    highest_rank=16,
    already="already loaded",
)


def lora(name: str, path: str | None = "", rank: int = 8) -> LoraAdapter:
    path = f"/adapters/{name}" if path == "" else path
    job = JobId(f"fetch-{name}") if path is None else None
    return LoraAdapter(name=name, digest=f"of-{name}-{path}", rank=rank, send="{}", path=path, job=job)


def chat(*adapters: LoraAdapter, calls: LoraCalls | None = CALLS, **changes: Any) -> LaunchSpec:
    return spec(lora=LoraOrder(adapters=adapters, listing=LISTING, calls=calls, form="peft"), **changes)


def change(of: LaunchSpec, *adapters: LoraAdapter) -> AdaptersParams:
    return AdaptersParams(command=COMMAND, shard=of.shard, adapters=adapters)


def told(rig: Rig, of: LaunchSpec) -> dict[str, str]:
    return {each.name: each.state for each in rig.report(of).adapters}


def one(rig: Rig, of: LaunchSpec, name: str) -> LoraReport:
    return next(each for each in rig.report(of).adapters if each.name == name)


def loaded(rig: Rig, of: LaunchSpec) -> dict[str, str]:
    return dict(rig.node.processes[of.shard, "engine"].adapters)


def notes(rig: Rig) -> list[str]:
    return [event.text for event in rig.events if isinstance(event, JournalEvent) and event.kind == "adapter"]


async def serving(rig: Rig, of: LaunchSpec, **secrets: str) -> None:
    await (rig.shards or await rig.agent()).start(start(of, **secrets))
    await rig.reaches(of, "ready")


# ---- loaded, and loaded again --------------------------------------------------------------------------


def test_it_is_ready_with_its_adapters_in_their_order() -> None:
    async def story(rig: Rig) -> None:
        of = chat(lora("sql"), lora("team/legal"))
        await serving(rig, of)
        assert loaded(rig, of) == {"sql": "/adapters/sql", "team/legal": "/adapters/team/legal"}
        assert told(rig, of) == {"sql": "routable", "team/legal": "routable"}
        assert [text.split()[1] for text in notes(rig)] == ["sql", "team/legal"]

    on_node(story)


def test_a_new_list_is_brought_about_while_the_engine_serves_and_survives_the_agent() -> None:
    async def story(rig: Rig) -> None:
        of = chat(lora("sql"), lora("old"))
        await serving(rig, of)
        assert rig.shards is not None
        accepted = await rig.shards.adapters(change(of, lora("sql"), lora("new")))
        assert accepted.shard is not None
        assert [each.name for each in accepted.shard.adapters] == ["sql", "new"]
        await until(lambda: set(told(rig, of).values()) == {"routable"})
        assert list(loaded(rig, of)) == ["sql", "new"]
        await rig.shards.close()
        rig.shards = None
        await rig.agent()
        await rig.reaches(of, "ready")
        assert told(rig, of) == {"sql": "routable", "new": "routable"}
        assert len([text for text in notes(rig) if "sql was loaded" in text]) == 1
        assert len(rig.node.starts) == 1

    on_node(story)


def test_another_start_of_the_engine_gets_what_was_ordered_last() -> None:
    async def story(rig: Rig) -> None:
        of = chat(lora("sql"))
        await serving(rig, of)
        assert rig.shards is not None
        await rig.shards.adapters(change(of, lora("new")))
        await until(lambda: told(rig, of) == {"new": "routable"})
        rig.node.end(rig.node.processes[of.shard, "engine"], 1, None)
        await rig.reaches(of, "backoff")
        assert told(rig, of) == {"new": "waiting"}
        await rig.reaches(of, "ready")
        assert loaded(rig, of) == {"new": "/adapters/new"}

    on_node(story)


def test_one_that_lies_elsewhere_now_is_loaded_anew() -> None:
    async def story(rig: Rig) -> None:
        of = chat(lora("sql"))
        await serving(rig, of)
        assert rig.shards is not None
        await rig.shards.adapters(change(of, lora("sql", "/adapters/newer")))
        await until(lambda: loaded(rig, of) == {"sql": "/adapters/newer"})
        await until(lambda: told(rig, of) == {"sql": "routable"})

    on_node(story)


def test_one_that_somebody_else_unloaded_comes_back() -> None:
    async def story(rig: Rig) -> None:
        of = chat(lora("sql"))
        await serving(rig, of)
        rig.node.processes[of.shard, "engine"].adapters.clear()
        await until(lambda: loaded(rig, of) == {"sql": "/adapters/sql"}, within=120)

    on_node(story)


# ---- what can't be loaded ------------------------------------------------------------------------------


def test_what_an_engine_refuses_is_told_in_its_words_tried_again_and_costs_it_nothing() -> None:
    async def story(rig: Rig) -> None:
        of = chat(lora("sql"), lora("bad"))
        await serving(rig, of)
        assert told(rig, of) == {"sql": "routable", "bad": "failed"}
        assert one(rig, of, "bad").reason == "/v1/load_lora_adapter answered 400: no room for bad"
        process = rig.node.processes[of.shard, "engine"]
        process.script = replace(process.script, refuses_adapters=frozenset())
        await until(lambda: told(rig, of)["bad"] == "routable", within=60)
        assert rig.states(of)[-1] == "ready"
        assert len(rig.node.starts) == 1

    on_node(story, behave=behaving(refuses_adapters=frozenset({"bad"})))


def test_an_engine_that_never_answers_about_adapters_gets_ready_without() -> None:
    async def story(rig: Rig) -> None:
        of = chat(lora("sql"), calls=replace(CALLS, timeout=1000), token=False)
        await serving(rig, of)
        assert told(rig, of) == {"sql": "failed"}

    on_node(story, behave=behaving(answers_token=False))


def test_what_is_fetched_is_loaded_when_it_is_there_and_waited_for_meanwhile() -> None:
    async def story(rig: Rig) -> None:
        far = lora("far", None)
        of = chat(lora("sql"), far)
        await serving(rig, of)
        assert told(rig, of) == {"sql": "routable", "far": "waiting"}
        assert one(rig, of, "far").reason == "waits for fetch-far"
        rig.jobs.weights[far.digest] = "/weights/far"
        await until(lambda: told(rig, of)["far"] == "routable", within=30)
        assert loaded(rig, of)["far"] == "/weights/far"

    on_node(story)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda node: node.missing_paths.add("/adapters/sql"), "where nothing is: copy it there"),
        (lambda node: node.closed_paths.add("/adapters/sql"), "may not read /adapters/sql: chmod"),
        (lambda node: node.bad_adapters.update({"/adapters/sql": "says rank 64"}), "says rank 64"),
    ],
)
def test_files_that_can_not_be_used_are_named_and_no_engine_is_asked(spoil: Any, why: str) -> None:
    async def story(rig: Rig) -> None:
        spoil(rig.node)
        of = chat(lora("sql"))
        await serving(rig, of)
        assert why in one(rig, of, "sql").reason
        assert not loaded(rig, of)
        at_start = chat(lora("sql"), calls=None, n=2, port=18001)
        assert rig.shards is not None
        await rig.shards.start(start(at_start))
        report = await rig.reaches(at_start, "failed")
        assert "mismatch: adapter sql" in report.last_error
        assert why in report.last_error

    on_node(story)


# ---- at the start only ---------------------------------------------------------------------------------


def test_what_an_engine_is_started_with_is_believed_when_it_is_listed() -> None:
    async def story(rig: Rig) -> None:
        listing = LoraListing(probe=HttpProbe(path="/v1/models"), at="data", place="root")
        order = LoraOrder(adapters=(lora("sql"),), listing=listing)
        of = spec(lora=order, argv=("engine", "--port", "18000", "${adapter:sql}"))
        await serving(rig, of)
        assert rig.node.processes[of.shard, "engine"].order.argv[-1] == "/adapters/sql"
        assert told(rig, of) == {"sql": "failed"}
        rig.node.processes[of.shard, "engine"].adapters["x"] = "/adapters/sql"
        await until(lambda: told(rig, of) == {"sql": "routable"}, within=30)

    on_node(story)


def test_a_rank_that_does_not_serve_only_holds_them() -> None:
    async def story(rig: Rig) -> None:
        of = chat(lora("sql", None), port=None, rank=1, ranks=2)
        await serving(rig, of)
        assert told(rig, of) == {"sql": "held"}
        assert needed([of], ()) == {"of-sql-None": (of.shard,)}

    on_node(story)


# ---- commands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "adapters", "why"),
    [
        (chat(calls=None), (lora("a"),), "loads adapters only when it starts"),
        (spec(), (), "loads adapters only when it starts"),
        (chat(), tuple(lora(f"a{n}") for n in range(4)), "4 are more than the 3"),
        (chat(), (lora("a"), lora("a")), "two of them have one name"),
        (chat(), (lora("a", rank=17),), "rank 17 of a is above the 16"),
    ],
)
def test_what_the_engine_was_not_started_for_is_refused(
    of: LaunchSpec, adapters: tuple[LoraAdapter, ...], why: str
) -> None:
    async def story(rig: Rig) -> None:
        await serving(rig, of)
        assert rig.shards is not None
        with pytest.raises(AgentError, match=why):
            await rig.shards.adapters(change(of, *adapters))

    on_node(story)


def test_a_list_that_can_not_be_written_is_refused_and_nothing_changes() -> None:
    async def story(rig: Rig) -> None:
        of = chat(lora("sql"))
        await serving(rig, of)
        assert rig.shards is not None
        rig.disk.full = True
        with pytest.raises(AgentError, match="No space left"):
            await rig.shards.adapters(change(of, lora("new")))
        assert told(rig, of) == {"sql": "routable"}

    on_node(story)


def test_only_adapters_of_the_order_are_late_values() -> None:
    of = chat(lora("sql"), argv=("x", "${adapter:sql}", "${adapter:other}"))
    assert late.unknown(of) == ("adapter:other",)


def test_names_and_paths_stand_in_json_as_they_are() -> None:
    async def story(rig: Rig) -> None:
        odd = lora('a"b\\${path}', '/x/"y"')
        of = chat(odd)
        await serving(rig, of)
        assert loaded(rig, of) == {odd.name: odd.path}

    on_node(story)


# ---- files ---------------------------------------------------------------------------------------------


def peft(folder: Path, text: str) -> str:
    (folder / "adapter_config.json").write_text(text)
    return str(folder)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"r": 8}, ""),
        ({"r": 4, "rank_pattern": {"q_proj": 8}}, ""),
        ({}, ""),
        ({"r": 32}, "says rank 32, the manifest 8: write rank: 32"),
        ({"r": 8, "rank_pattern": {"q_proj": 64}}, "says rank 64"),
    ],
)
def test_the_rank_that_peft_writes_is_held_against_the_stated_one(
    tmp_path: Path, config: dict[str, Any], why: str
) -> None:
    found = lorafile.problem(peft(tmp_path, json.dumps(config)), "peft", 8)
    assert (why in found) if why else not found


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, " " * (lorafile.MAX_CONFIG + 1)])
def test_what_peft_did_not_write_is_named(tmp_path: Path, text: str) -> None:
    assert "is not the JSON that PEFT writes" in lorafile.problem(peft(tmp_path, text), "peft", 8)


def test_other_things_than_adapters_are_named(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"")
    assert "is no directory" in lorafile.problem(str(file), "peft", 8)
    assert "holds no adapter_config.json" in lorafile.problem(str(tmp_path), "peft", 8)
    assert str(file) in lorafile.problem(str(file), "gguf", 8)
    file.write_bytes(b"GGUF\3\0\0\0")
    assert "ends within its header" in lorafile.problem(str(file), "gguf", 8)
    file.write_bytes(b"no such thing at all, but long enough")
    assert "does not begin as a GGUF file does" in lorafile.problem(str(file), "gguf", 8)
    assert "is no file" in lorafile.problem(str(tmp_path), "gguf", 8)
    assert not lorafile.problem("/nowhere", "", 8)
