"""Flags are compared on word boundaries, as the kind of program takes them."""

import pytest

from llmgw.core.enginecheck.compare import (
    asked_flags,
    must_know,
    nearest,
    plain,
    unknown_flags,
    words_after,
)
from llmgw.model.launch import HelpSpec

PYTHON = HelpSpec(argv=("${engine}/bin/vllm", "serve", "--help=all"), sure=(), argparse=True)
OTHER = HelpSpec(argv=("${engine}/bin/llama-server", "--help"), sure=())


def test_flags_are_words_that_begin_like_one_without_their_values() -> None:
    words = ("model", "--port", "18000", "--temp=-1", "-1", "-", "--port", "-np", "2", "--", "--not-one")
    assert asked_flags(words) == ("--port", "--temp", "-np")


@pytest.mark.parametrize("spec", [PYTHON, OTHER], ids=["python", "other"])
def test_a_longer_flag_does_not_stand_for_a_shorter_one_nor_the_other_way(spec: HelpSpec) -> None:
    assert unknown_flags(spec, ("--port", "1"), {"--port-range"}) == ("--port",)
    assert unknown_flags(spec, ("--port-range", "1"), {"--port"}) == ("--port-range",)
    assert unknown_flags(spec, ("--port", "1"), {"--port", "--port-range"}) == ()


@pytest.mark.parametrize("word", ["--max_num_seqs", "--hf-overrides.a.b", "-O3", "-O.mode", "-tp"])
def test_python_programs_take_underscores_dots_and_values_behind_short_flags(word: str) -> None:
    known = {"--max-num-seqs", "--hf-overrides", "-O", "-tp"}
    assert unknown_flags(PYTHON, (word,), known) == ()
    if word != "-tp":
        assert unknown_flags(OTHER, (word,), known) == (word,)


def test_what_must_stand_in_the_help_is_spelt_as_it_stands_there() -> None:
    words = ("--max_num_seqs", "4", "--hf-overrides.a=1", "--hf-overrides.b=2", "-O3")
    assert must_know(PYTHON, words) == ("--max-num-seqs", "--hf-overrides")
    assert must_know(OTHER, ("-ngl", "0", "--port", "1")) == ("-ngl", "--port")


def test_only_the_command_whose_help_was_asked_is_compared() -> None:
    assert words_after(PYTHON, ("${engine}/bin/vllm", "serve", "${weights}", "--x")) == ("${weights}", "--x")
    assert words_after(PYTHON, ("${engine}/bin/ray", "start", "--block")) is None


def test_the_nearest_flag_goes_on_or_is_spelt_alike() -> None:
    known = {"--load-seconds", "--port", "--token-delay"}
    assert nearest("--load-secs", known) == "--load-seconds"
    assert nearest("--token", known) == "--token-delay"
    assert nearest("--enable-everything", known) == ""


def test_escaped_dollars_are_seen_as_the_program_sees_them_and_late_values_stay() -> None:
    assert plain("--a$$b") == "--a$b"
    assert plain("${weights}") == "${weights}"
