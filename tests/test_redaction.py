"""The last line of defence: a canary that must not come through, in any spelling, by any way out."""

import base64
import logging
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from llmgw.agent.logsink import log_to
from llmgw.cli import output
from llmgw.redaction import Redactor, without_userinfo

CANARY = "canary/5f+2c 9e"


@pytest.mark.parametrize(
    "spelt",
    [
        CANARY,
        quote(CANARY, safe=""),
        base64.b64encode(CANARY.encode()).decode(),
        base64.urlsafe_b64encode(CANARY.encode()).decode().rstrip("="),
        CANARY.encode().hex(),
        repr(CANARY),
    ],
)
def test_a_secret_is_taken_out_in_every_spelling(spelt: str) -> None:
    shown = Redactor([CANARY])(f"before {spelt} after")
    assert spelt.strip("'") not in shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")


def test_of_two_secrets_the_longer_is_taken_whole() -> None:
    redact = Redactor(["secret-1", "secret-1-and-more"])
    assert redact("x secret-1-and-more y secret-1 z") == "x *** y *** z"


def test_what_is_too_short_to_be_a_secret_is_left_in_words() -> None:
    assert Redactor(["a", ""])("a word") == "a word"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ann:pw@host/x", "https://***@host/x"),
        ("https://ghp_token@host/x", "https://***@host/x"),
        ("'https://u:p@h' and ssh://git@host/x", "'https://***@h' and ssh://git@host/x"),
        ("ssh://git:pw@host", "ssh://***@host"),
        ("https://host/a@b", "https://host/a@b"),
        ("git@host:fleet.git", "git@host:fleet.git"),
        ("https://host:8080/x", "https://host:8080/x"),
        ("mail ann@example.org", "mail ann@example.org"),
        ("https://u:p@@host", "https://***@@host"),
    ],
)
def test_addresses_lose_what_lets_people_in(text: str, shown: str) -> None:
    assert without_userinfo(text) == shown


def test_a_bearer_token_is_no_word_for_a_log() -> None:
    told = Redactor()("Authorization: Bearer eyJhbGciOi.J9-x_y and the bearer of news")
    assert told == "Authorization: Bearer *** and the bearer of news"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, with its handlers as they were afterwards."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    for handler in set(logger.handlers) - set(handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.setLevel(level)


def log_everything(log: logging.Logger) -> None:
    log.warning("plain %s and %r", CANARY, {"key": CANARY})
    log.warning("url https://u:%s@host", "pw")
    try:
        int(CANARY)
    except ValueError:
        log.exception("it failed", stack_info=True)


def shows_nothing(told: str) -> bool:
    assert "invalid literal for int() with base 10: '***'" in told
    return CANARY not in told and "pw@" not in told


def test_nothing_gets_past_the_agents_log(tmp_path: Path, root: logging.Logger) -> None:
    redactor = Redactor()
    log_to(tmp_path / "agent.log", redactor)
    redactor.learn(CANARY)  # as it does when a key comes, long after the log was opened
    log_everything(logging.getLogger("llmgw.agent.canary"))
    assert shows_nothing((tmp_path / "agent.log").read_text())
    assert (tmp_path / "agent.log").stat().st_mode & 0o777 == 0o600


def test_nothing_that_a_library_logs_gets_past_the_commands(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    output.tell_logs.cache_clear()
    output.tell_logs()
    output.redactor().learn(CANARY)
    log_everything(logging.getLogger("asyncio"))
    assert shows_nothing(capsys.readouterr().err)


def test_the_redactor_does_not_show_what_it_knows() -> None:
    assert CANARY not in repr(Redactor([CANARY]))


def test_a_very_long_word_is_gone_through_once() -> None:
    """Of ``scheme://``, any letter may be the first: a minute for this, and a line of a log may be made by anybody."""
    word = "x" * 300_000
    assert Redactor()(f"{word} {word}://ann:pw@host/x") == f"{word} {word}://***@host/x"
