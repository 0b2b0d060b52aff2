"""Headers of weights: what they say is read exactly, and nothing in them is believed blindly."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.wire import gguf, safetensors
from tests.wire import headers


def test_a_gguf_header_tells_settings_and_exact_bytes() -> None:
    found = gguf.read(headers.llama())
    layer = (128 * 128 + 128 * 64 + 128 * 256) * 2
    assert found.parts == {
        "token_embd": 128 * 512 * 2,
        "blk.0": layer,
        "blk.1": layer,
        "output_norm": 128 * 4,
        "output": 128 * 512 * 2,
    }
    assert found.types == {"F16": 2 * layer + 2 * 128 * 512 * 2, "F32": 512}
    assert found.tensors == 9
    assert found.settings["llama.attention.head_count_kv"] == 2
    assert found.settings["llama.rope.freq_base"] == 10000.0
    assert found.settings["tokenizer.ggml.add_bos_token"] is False


@pytest.mark.parametrize(
    ("kind", "dimensions", "size"),
    [
        (12, (256, 4), 4 * 144),
        (14, (256,), 210),
        (8, (32, 3), 3 * 34),
        (39, (64,), 34),
        (2, (33,), 36),
        (30, (5,), 10),
    ],
)
def test_quantized_tensors_are_counted_in_whole_blocks(
    kind: int, dimensions: tuple[int, ...], size: int
) -> None:
    found = gguf.read(headers.gguf({}, [("output.weight", dimensions, kind)]))
    assert found.parts == {"output": size}


def test_a_vocabulary_is_told_by_its_length_and_short_lists_whole() -> None:
    found = gguf.read(headers.llama(vocab=2000, more={"llama.some": [1, 2, 3], "names": ["a", "b"]}))
    assert found.settings["tokenizer.ggml.tokens"] == {"length": 2000}
    assert found.settings["llama.some"] == [1, 2, 3]
    assert found.settings["names"] == ["a", "b"]


@given(cut=st.integers(min_value=0, max_value=len(headers.llama()) - 1))
def test_a_header_that_was_cut_asks_for_more_and_then_is_read(cut: int) -> None:
    whole = headers.llama()
    with pytest.raises(gguf.TooShortError) as wanted:
        gguf.read(whole[:cut])
    assert cut < wanted.value.need <= len(whole)


@given(junk=st.binary(max_size=300))
def test_nothing_but_named_errors_comes_out_of_junk(junk: bytes) -> None:
    for data in (junk, b"GGUF" + struct.pack("<I", 3) + junk):
        with contextlib.suppress(gguf.TooShortError, gguf.BadHeaderError):
            gguf.read(data)
    with contextlib.suppress(safetensors.BadHeaderError):
        safetensors.tensor_bytes(junk)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PK\x03\x04" + bytes(60), "does not begin"),
        (headers.gguf({}, [], version=1), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 10**12, 0), "more than any model has"),
        (headers.gguf({}, [("a", (2,), 99)]), "unknown type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**40), "a text of"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + headers.text("k") + struct.pack("<I", 77),
            "unknown type 77",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + headers.text("k") + struct.pack("<IIQ", 9, 0, 2**50),
            "longer than",
        ),
    ],
)
def test_a_header_that_cannot_be_believed_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(gguf.BadHeaderError, match=why):
        gguf.read(data)


def test_safetensors_count_bytes_by_type_from_the_header_alone() -> None:
    file = headers.safetensors({"a": ("BF16", 200), "b": ("BF16", 50), "c": ("F8_E4M3", 25)})
    length = safetensors.length(file[:8])
    assert safetensors.tensor_bytes(file[8 : 8 + length]) == {"BF16": 250, "F8_E4M3": 25}


@pytest.mark.parametrize("prefix", [b"", b"1234567", b"\xff" * 8, bytes(8)])
def test_what_is_no_safetensors_file_says_so(prefix: bytes) -> None:
    with pytest.raises(safetensors.BadHeaderError):
        safetensors.length(prefix)


def test_an_index_tells_the_sum_and_the_files() -> None:
    index = (
        b'{"metadata": {"total_size": 1000}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}'
    )
    assert safetensors.indexed(index) == (1000, ("m-1.safetensors", "m-2.safetensors"))
    assert safetensors.indexed(b'{"weight_map": {"a": "m"}}') == (None, ("m",))
    for broken in (b"{}", b"[]", b'{"weight_map": {}}', b'{"weight_map": {"a": 1}}'):
        with pytest.raises(safetensors.BadHeaderError):
            safetensors.indexed(broken)
