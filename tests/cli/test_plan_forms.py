"""The forms that a plan is printed in exclude each other."""

import pytest

from llmgw.cli import output
from llmgw.cli.main import run


def test_a_plan_is_printed_in_one_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--json", "--markdown"]) == output.USAGE
    assert "choose one" in capsys.readouterr().err
