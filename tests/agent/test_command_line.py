"""What ``llmgw-agent`` says of itself: each command has an example, and the example is one that it takes."""

import pytest

from llmgw.agent.__main__ import COMMANDS, main


@pytest.mark.parametrize(("name", "words"), [(name, words) for name, _, words in COMMANDS])
def test_every_command_has_an_example_that_it_understands(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, *words.split(), "--help"]) == 0
    told = capsys.readouterr().out
    assert f"Example: llmgw-agent {name} {words}".strip() in told
    for word in words.split():
        assert not word.startswith("-") or word in told.partition("Example:")[0]


def test_where_no_agent_was_set_up_its_directory_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A local node has a directory of its own, and the error sent people to bootstrap a node that was well."""
    assert main(["status", "--work", "/nowhere/at/all"]) == 1
    assert "name its directory with --work DIR" in capsys.readouterr().err
