"""What the agent tells of weights: from headers alone, exactly, and in words where it can't."""

import asyncio
import json
import os
import re
from pathlib import Path

import pytest

from llmgw.agent import inspecting
from llmgw.agent.inspecting import Inspector
from llmgw.agent.seams import Anything
from llmgw.model.facts import WeightsFact
from llmgw.model.launch import FetchSpec
from llmgw.model.weights import MAX_CONFIG, Inspection
from llmgw.wire import codec
from llmgw.wire.messages import MAX_LINE, Inspected
from tests.agent.agents import Node
from tests.wire import headers


def inspect(path: Path | str) -> Inspection:
    return asyncio.run(Inspector().inspect(str(path)))


def padded(header: bytes) -> bytes:
    """A GGUF file as long as its tensors."""
    return header + bytes(4 * 1024 * 1024)


def model(folder: Path, *, files: int = 2, index: bool = True) -> Path:
    folder.mkdir()
    names = [f"model-{n + 1:05}-of-{files:05}.safetensors" for n in range(files)]
    for number, name in enumerate(names):
        (folder / name).write_bytes(
            headers.safetensors({f"t{number}": ("BF16", 100), f"s{number}": ("F32", 4)})
        )
    if index:
        weight_map = {f"t{n}": name for n, name in enumerate(names)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text('{"hidden_size": 8}')
    return folder


def test_a_directory_tells_its_tensors_and_its_config(tmp_path: Path) -> None:
    seen = inspect(model(tmp_path / "m"))
    assert (seen.problem, seen.format, seen.files) == ("", "safetensors", 2)
    assert seen.tensors == {"BF16": 200, "F32": 8}
    assert seen.config == '{"hidden_size": 8}'


def test_a_second_copy_in_one_file_is_not_counted(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", index=False)
    (folder / "consolidated.safetensors").write_bytes(headers.safetensors({"t": ("BF16", 10_000)}))
    assert inspect(folder).tensors == {"BF16": 200, "F32": 8}


def test_a_missing_part_is_told_by_name(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", files=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert (
        "lacks model-00002-of-00003.safetensors of 3 files: copy the whole model" in inspect(folder).problem
    )


def test_an_index_that_names_files_elsewhere_is_not_half_believed(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "m-1.safetensors", "b": "../other/m-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "m-1.safetensors").write_bytes(headers.safetensors({"a": ("BF16", 2)}))
    assert "names ../other/m-2.safetensors, which is not beside it" in inspect(tmp_path).problem


def test_a_file_that_is_longer_than_its_header_says_is_told(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(headers.safetensors({"a": ("BF16", 2)}) + b"more")
    assert re.search(r"has \d+ bytes, its header names \d+: copy it again", inspect(tmp_path).problem)


def test_a_file_that_was_cut_is_told(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", files=1)
    file = folder / "model-00001-of-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert "copy it again" in inspect(folder).problem


def test_a_gguf_file_is_read_by_its_header(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(padded(headers.llama(vocab=5000)))
    seen = inspect(file)
    assert (seen.problem, seen.format, seen.metadata["llama.block_count"]) == ("", "gguf", 2)
    assert seen.metadata["tokenizer.ggml.tokens"] == {"length": 5000}
    assert seen.parts["token_embd"] == 128 * 5000 * 2


def test_a_header_longer_than_a_chunk_is_read_piece_by_piece(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    header = headers.llama(vocab=40_000)
    assert len(header) > 2 * inspecting.CHUNK
    file.write_bytes(header + bytes(2 * 128 * 40_000 * 2))
    assert inspect(file).metadata["tokenizer.ggml.tokens"] == {"length": 40_000}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (headers.llama()[:200], "ends within its header"),
        (headers.llama(), "its tensors need"),
        (b"nothing", "within its header"),
    ],
)
def test_a_gguf_file_that_is_not_whole_is_told(tmp_path: Path, data: bytes, why: str) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(data)
    assert why in inspect(file).problem or "does not begin" in inspect(file).problem


def test_all_parts_of_a_split_gguf_are_one_model(tmp_path: Path) -> None:
    first = tmp_path / "x-00001-of-00002.gguf"
    first.write_bytes(padded(headers.llama()))
    assert "lacks x-00002-of-00002.gguf" in inspect(first).problem
    (tmp_path / "x-00002-of-00002.gguf").write_bytes(
        padded(headers.gguf({}, [("blk.2.a.weight", (128, 128), 1)]))
    )
    seen = inspect(first)
    assert (seen.files, seen.parts["blk.2"]) == (2, 128 * 128 * 2)
    assert seen.metadata["llama.block_count"] == 2


def test_of_several_gguf_files_one_must_be_named(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(padded(headers.llama()))
    assert "holds 2 GGUF files (a.gguf, b.gguf): name the one to serve" in inspect(tmp_path).problem


def test_older_weights_are_counted_by_their_files(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(77))
    (tmp_path / "config.json").write_text("{}")
    seen = inspect(tmp_path)
    assert (seen.format, seen.size, seen.files) == ("other", 77, 1)


def test_what_is_not_there_or_no_file_is_told_in_words(tmp_path: Path) -> None:
    assert "nothing is at" in inspect(tmp_path / "none").problem
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a directory" in inspect(tmp_path / "pipe").problem
    (tmp_path / "config.json").write_text(" " * (MAX_CONFIG + 1))
    assert "no model's config.json" in inspect(tmp_path).problem


def test_files_are_read_again_only_when_they_have_changed(tmp_path: Path) -> None:
    async def main() -> None:
        inspector = Inspector()
        file = tmp_path / "x.gguf"
        file.write_bytes(padded(headers.llama()))
        first = await inspector.inspect(str(file))
        assert await inspector.inspect(str(file)) is first
        file.write_bytes(padded(headers.llama(layers=3)))
        assert (await inspector.inspect(str(file))).metadata["llama.block_count"] == 3

    asyncio.run(main())


# ---- as a method of the agent --------------------------------------------------------------------------


class NotThere(Anything):
    """People who let nothing be read below /secret."""

    def fetch(self, spec: FetchSpec) -> str:
        return "paths: /secret is not allowed" if (spec.path or "").startswith("/secret") else ""


def test_the_agent_answers_for_paths_and_for_what_it_has_fetched(tmp_path: Path) -> None:
    lying = model(tmp_path / "fetched")
    named = model(tmp_path / "named", files=1)

    async def main() -> None:
        node = Node(rules=NotThere())
        node.targets.weights_facts["f" * 64] = WeightsFact(digest="f" * 64, path=str(lying), size=1)
        agent = await node.agent()
        paths = {"f" * 64: "", "n" * 64: str(named), "s" * 64: "/secret/x", "m" * 64: ""}
        answer = await agent.call("inspect", {"paths": paths})
        found = codec.from_json(Inspected, answer, strict=False).inspections
        assert found["f" * 64].tensors == {"BF16": 200, "F32": 8}
        assert found["n" * 64].tensors == {"BF16": 100, "F32": 4}
        assert found["s" * 64].problem == "paths: /secret is not allowed"
        assert found["m" * 64].problem == "they are not on this node: fetch them"
        await agent.close()

    asyncio.run(main())


def test_an_answer_that_would_be_too_long_is_given_in_parts(tmp_path: Path) -> None:
    many = {}
    for number in range(12):
        folder = model(tmp_path / str(number), files=1)
        (folder / "config.json").write_text(json.dumps({"x": "y" * (MAX_CONFIG - 100)}))
        many[str(number)] = str(folder)

    async def main() -> None:
        agent = await Node().agent()
        left, parts = dict(many), 0
        while left:
            answer = await agent.call("inspect", {"paths": left})
            assert len(json.dumps(answer)) < MAX_LINE
            parts += 1
            left = {digest: path for digest, path in left.items() if digest not in answer["inspections"]}
        assert parts == 2
        await agent.close()

    asyncio.run(main())
