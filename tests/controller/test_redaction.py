"""The last line of defence: a canary that must not come through, in any spelling, by any way out."""

import base64
import io
import logging
from urllib.parse import quote

import pytest

from llmgw.controller.redaction import RedactingFilter, Redactor, without_userinfo

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


def test_nothing_gets_past_the_log_sink() -> None:
    sink = io.StringIO()
    handler = logging.StreamHandler(sink)
    handler.addFilter(RedactingFilter(Redactor([CANARY])))
    log = logging.Logger("canary")  # noqa: LOG001 - a logger of its own, so that no other test sees it
    log.addHandler(handler)
    log.warning("plain %s and %r", CANARY, {"key": CANARY})
    log.warning("url https://u:%s@host", "pw")
    try:
        int(CANARY)
    except ValueError:
        log.exception("it failed", stack_info=True)
    told = sink.getvalue()
    assert CANARY not in told
    assert "pw@" not in told
    assert "invalid literal for int() with base 10: '***'" in told


def test_the_redactor_does_not_show_what_it_knows() -> None:
    assert CANARY not in repr(Redactor([CANARY]))
