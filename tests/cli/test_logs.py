"""What the parts of a daemon log comes out as one line each, redacted, whatever error it is about."""

import logging

import pytest

from llmgw.cli import output


@pytest.fixture
def name() -> str:
    return "llmgw.test-of-logs"


def test_no_secret_and_no_password_of_an_address_comes_into_the_log(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output.redactor().learn("c4n4ry-in-a-log")
    output.tell_of(name, logging.INFO)
    log = logging.getLogger(f"{name}.part")
    log.debug("not told")
    log.info("pass=1 why=%r", "https://ann:pass-of-ann@git.example.org")
    log.error("it broke", exc_info=RuntimeError("c4n4ry-in-a-log"))
    told = capsys.readouterr().err
    assert "c4n4ry" not in told
    assert "pass-of-ann" not in told
    lines = told.splitlines()
    assert lines[0].endswith("Z INFO pass=1 why='https://***@git.example.org'")
    assert "ERROR it broke" in lines[1]
    assert lines[-1] == "RuntimeError: ***"
