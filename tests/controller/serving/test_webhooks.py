"""Webhooks: who is believed, what is worth a look, and what the sender is answered."""

import ast
import gzip
import inspect
import json
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.controller.repo.remote import remote_of
from llmgw.controller.serving import signatures
from llmgw.controller.serving.configuration import repository_of
from llmgw.controller.serving.signatures import ALGORITHMS, headers_of
from llmgw.controller.serving.webhooks import MAX_BODY, Answer, Deliveries, Watched, judge
from tests.controller.serving.deliveries import (
    FORM,
    PROVIDERS,
    SECRET,
    SIGNING_TOKEN,
    Delivery,
    form,
    in_hex,
    push,
    push_of,
    signed,
    standard,
)

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=timezone.utc)
FLEET = Watched(branch="main", state_ref="llmgw/state", repository="ann/fleet")
FORMS = ("github", "gitea", "forgejo", "gogs")


def heard(
    provider: str,
    sent: Delivery,
    *,
    watched: Watched = FLEET,
    secrets: Iterable[bytes] = (SECRET,),
    now: datetime = NOW,
    changed: Mapping[str, str | None] = MappingProxyType({}),
) -> Answer:
    """``changed`` replaces some of the headers (None: not sent at all)."""
    lower = {name.lower(): value for name, value in sent.headers.items()}
    sends = {**lower, **changed}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in sends.items() if value is not None]
    return judge(provider, headers_of(raw), sent.body, secrets=secrets, watched=watched, now=now)


# ---- published examples ------------------------------------------------------------------------------


def test_githubs_own_example() -> None:
    """docs.github.com, "Validating webhook deliveries", "Testing the webhook payload validation"."""
    headers = {
        "x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    }
    check = ALGORITHMS["github"]
    assert check(headers, b"Hello, World!", [SECRET], NOW) == ""
    assert check(headers, b"Hello, World", [SECRET], NOW) != ""


@pytest.mark.parametrize("provider", ["bitbucket", "bitbucket-server"])
def test_bitbuckets_own_example(provider: str) -> None:
    """support.atlassian.com, "Manage webhooks", "Test secure webhooks"."""
    right = "a4771c39fbe90f317c7824e83ddef3caae9cb3d976c214ace1f2937e133263c9"
    check = ALGORITHMS[provider]
    assert check({"x-hub-signature": f"sha256={right}"}, b"Hello World!", [SECRET], NOW) == ""
    assert check({"x-hub-signature": right}, b"Hello World!", [SECRET], NOW) != ""
    assert check({"x-hub-signature-256": f"sha256={right}"}, b"Hello World!", [SECRET], NOW) != ""


def test_the_example_of_standard_webhooks() -> None:
    """The reference vector of their libraries, as GitLab's signing tokens sign."""
    moment = datetime.fromtimestamp(1614265330, tz=timezone.utc)
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    check, body = ALGORITHMS["gitlab"], b'{"test": 2432232314}'
    assert check(headers, body, [SIGNING_TOKEN], moment) == ""
    several = {**headers, "webhook-signature": f"v1a,AAAA v1,BBBB {headers['webhook-signature']}"}
    assert check(several, body, [SIGNING_TOKEN], moment) == ""
    assert check({**headers, "webhook-id": "msg_other"}, body, [SIGNING_TOKEN], moment) != ""
    assert "clocks" in check(headers, body, [SIGNING_TOKEN], moment + timedelta(seconds=301))
    assert "clocks" in check(headers, body, [SIGNING_TOKEN], moment - timedelta(seconds=301))
    assert check(headers, body, [SIGNING_TOKEN], moment + timedelta(seconds=299)) == ""


# ---- who is believed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_push_to_the_branch_that_is_followed_is_worth_a_look(provider: str) -> None:
    assert (heard(provider, push(provider)).status, heard(provider, push(provider)).hint) == (202, True)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_accepted_with_no_or_another_secret_argocd_1142(provider: str) -> None:
    without = dict.fromkeys(_signatures(push(provider)))
    for answer in (
        heard(provider, push(provider, secret=b"another secret of somebody")),
        heard(provider, push(provider), changed=without),
        heard(provider, push(provider), secrets=[]),
        heard(provider, push(provider), secrets=[b""]),
        heard(provider, push(provider, secret=b""), secrets=[b""]),
    ):
        assert answer.status in (401, 503)
        assert not answer.hint
        assert SECRET.decode() not in answer.text


def _signatures(sent: Delivery) -> list[str]:
    return [name.lower() for name in sent.headers if "signature" in name.lower() or "token" in name.lower()]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_while_a_secret_is_replaced_both_are_believed(provider: str) -> None:
    old, new = b"the secret of until now", b"the secret from now on"
    for used in (old, new):
        assert heard(provider, push(provider, secret=used), secrets=[old, new]).status == 202
    assert heard(provider, push(provider, secret=old), secrets=[new]).status == 401


@pytest.mark.parametrize("provider", [it for it in PROVIDERS if it != "gitlab"])
def test_a_body_that_was_changed_on_the_way_is_not_believed(provider: str) -> None:
    sent = push(provider)
    changed = Delivery(sent.headers, sent.body.replace(b"main", b"evil") + b" ")
    assert heard(provider, changed).status == 401


def test_the_weak_signature_that_comes_along_is_not_enough() -> None:
    sent = push("github")
    assert heard("github", sent, changed={"x-hub-signature-256": None}).status == 401
    assert (
        heard(
            "github", sent, changed={"x-hub-signature-256": f"sha1={in_hex(sent.body, algorithm='sha1')}"}
        ).status
        == 401
    )
    assert (
        heard(
            "github", sent, changed={"x-hub-signature-256": f"sha512={in_hex(sent.body, algorithm='sha512')}"}
        ).status
        == 401
    )
    assert heard("github", sent, changed={"x-hub-signature-256": in_hex(sent.body)}).status == 401
    generic = push("generic")
    assert (
        heard(
            "generic", generic, changed={"x-signature": f"sha1={in_hex(generic.body, algorithm='sha1')}"}
        ).status
        == 401
    )
    assert heard("bitbucket", push("bitbucket"), changed={"x-hub-signature": None}).status == 401, (
        "its uuid is no secret"
    )


def test_the_provider_is_who_is_configured_whatever_the_headers_say() -> None:
    """Gitea sends GitHub's headers too."""
    as_github = push("gitea")
    assert heard("github", as_github).status == 202
    assert heard("gitea", push("github")).status == 401
    assert heard("forgejo", push("gitea")).status == 401
    assert heard("gogs", push("gitea"), changed={"x-gogs-event": "push"}).status == 202


def test_compared_in_the_same_time_whatever_differs_atlantis_2391() -> None:
    """Nothing is compared with == where secrets are."""
    parts = [
        it for it in ast.parse(inspect.getsource(signatures)).body if getattr(it, "name", "") != "headers_of"
    ]
    compared = [node for part in parts for node in ast.walk(part) if isinstance(node, ast.Compare)]
    assert len(parts) > 10
    assert not [node for node in compared if any(isinstance(it, ast.Eq | ast.NotEq) for it in node.ops)]
    assert "hmac.compare_digest" in inspect.getsource(signatures)


def test_gitlabs_signing_token_is_never_taken_as_a_plain_one() -> None:
    body = json.dumps(push_of("gitlab")).encode()
    sent = standard(body, at=int(NOW.timestamp()))
    assert heard("gitlab", sent, secrets=[SIGNING_TOKEN]).status == 202
    assert heard("gitlab", sent, secrets=[SECRET]).status == 401
    assert heard("gitlab", push("gitlab", secret=SIGNING_TOKEN), secrets=[SIGNING_TOKEN]).status == 401
    for both in (sent, push("gitlab")):
        assert heard("gitlab", both, secrets=[SIGNING_TOKEN, SECRET]).status == 202
    assert heard("gitlab", sent, secrets=[SIGNING_TOKEN], now=NOW + timedelta(hours=1)).status == 401, (
        "a replay"
    )
    assert heard("gitlab", sent, secrets=[SIGNING_TOKEN], changed={"webhook-timestamp": "soon"}).status == 401


@pytest.mark.parametrize(
    "value", ["\xe4\xf6\xfc", "sha256=\xff", "", " ", "sha256=", "Ω".encode().decode("latin-1")]
)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_signature_that_is_no_ascii_is_just_wrong(provider: str, value: str) -> None:
    headers = dict.fromkeys(_signatures(push(provider)), value)
    assert heard(provider, push(provider), changed=headers).status == 401


def test_a_header_that_comes_twice_says_nothing() -> None:
    sent = push("github")
    raw = [(name.encode(), value.encode()) for name, value in sent.headers.items()]
    raw.append((b"x-hub-signature-256", b"sha256=00"))
    answer = judge("github", headers_of(raw), sent.body, secrets=[SECRET], watched=FLEET, now=NOW)
    assert answer.status == 401


# ---- forms and kinds of content ----------------------------------------------------------------------


@pytest.mark.parametrize("provider", FORMS)
def test_a_form_is_verified_as_its_sender_signs_it(provider: str) -> None:
    assert heard(provider, form(provider)).status == 202
    assert heard(provider, form(provider, ref="refs/heads/other")).text.startswith("ignored")
    sent = form(provider)
    the_other_part = push(provider).body if provider == "github" else sent.body
    assert (
        heard(
            provider, Delivery({**signed(provider, the_other_part).headers, "Content-Type": FORM}, sent.body)
        ).status
        == 401
    )


def test_other_kinds_of_content_and_broken_forms_are_refused() -> None:
    for kind in ("text/plain", "", "multipart/form-data; boundary=x", "application/jsonp"):
        assert heard("github", push("github"), changed={"content-type": kind}).status == 415
    assert (
        heard("github", push("github"), changed={"content-type": "Application/JSON; charset=utf-8"}).status
        == 202
    )
    for provider in ("gitlab", "bitbucket", "bitbucket-server"):
        assert heard(provider, push(provider), changed={"content-type": FORM}).status == 415
    for body in (b"", b"payload", b"other=1", b"payload=1&payload=2", b"\xff=\xfe", b"&".join([b"a=1"] * 30)):
        made = signed("github", body)
        assert heard("github", Delivery({**made.headers, "Content-Type": FORM}, body)).status == 400
    assert (
        heard("generic", signed("generic", b"\x00 anything"), changed={"content-type": "text/plain"}).status
        == 202
    )


@given(text=st.text(max_size=60), beside=st.text(max_size=5))
def test_a_form_gives_back_what_its_sender_put_into_it(text: str, beside: str) -> None:
    body = urlencode({"other": beside, "payload": json.dumps({**push_of("gitea"), "text": text})}).encode()
    signature = signed("gitea", json.dumps({**push_of("gitea"), "text": text}).encode()).headers
    assert heard("gitea", Delivery({**signature, "Content-Type": FORM}, body)).status == 202


@pytest.mark.parametrize("escape", [b"%", b"%4", b"%zz", b"%+1", b"%\\x", b"%u0041"])
def test_a_form_with_half_an_escape_is_no_form(escape: bytes) -> None:
    made = signed("gitea", b"{}")
    sent = Delivery({**made.headers, "Content-Type": FORM}, b"payload=" + escape)
    assert heard("gitea", sent).text == "a form without one field `payload`"


@pytest.mark.parametrize("provider", FORMS)
def test_a_strangers_body_costs_no_more_steps_whatever_it_holds_ghsa_jmvp(provider: str) -> None:
    """A mebibyte of percent signs held up everything else for a third of a second, again and again, without any secret."""

    def steps(unit: bytes, kind: str) -> int:
        """Calls that the interpreter makes, of functions written in C too."""
        body = b"payload=" + unit * ((MAX_BODY - 8) // len(unit))
        sent = Delivery(
            {**signed(provider, body, secret=b"not the secret").headers, "Content-Type": kind}, body
        )
        calls = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            answer = heard(provider, sent)
        finally:
            sys.setprofile(None)
        assert answer.status in (400, 401)
        return calls

    few = (
        steps(b"a", "application/json") + 1000
    )  # a step for each of its parts would be a hundred thousand and more
    for unit in (b"a", b"%", b"%41", b"%41b", b"+", b"&", b"=", b"payload=&", b"\\", b"\xe4", b"[", b'{"a":'):
        assert steps(unit, FORM) < few, unit


@pytest.mark.parametrize("provider", [it for it in PROVIDERS if it != "generic"])
def test_a_compressed_body_is_refused_and_never_unpacked(provider: str) -> None:
    sent = signed(provider, gzip.compress(push(provider).body))
    answer = heard(provider, sent, changed={"content-encoding": "gzip"})
    assert (answer.status, answer.text) == (415, "send it uncompressed")
    assert heard(provider, push(provider), changed={"content-encoding": "Identity"}).status == 202


# ---- what is worth a look ----------------------------------------------------------------------------


def test_a_ping_is_answered_and_leads_to_nothing() -> None:
    answer = heard("github", signed("github", b'{"zen": "Keep it logically awesome."}', event="ping"))
    assert (answer.status, answer.hint) == (200, False)
    assert heard("github", signed("github", b"{}", event="ping", secret=b"another secret")).status == 401
    unsigned = Delivery(
        {"Content-Type": "application/json", "X-Event-Key": "diagnostics:ping"}, b'{"test": true}'
    )
    answer = heard("bitbucket-server", unsigned)
    assert (answer.status, answer.hint) == (200, False), "its test button does not sign"
    assert heard("bitbucket", unsigned).status == 401


@pytest.mark.parametrize("provider", [it for it in PROVIDERS if it != "generic"])
def test_what_is_about_something_else_is_answered_well_and_ignored(provider: str) -> None:
    for sent in (
        push(provider, ref="refs/heads/feature"),
        push(provider, ref="refs/heads/llmgw/state"),
        push(provider, ref="refs/heads/main/x"),
        push(provider, repository="ben/other"),
        push(provider, repository="joann/fleet"),
        signed(provider, b"{}", event="issues"),
    ):
        answer = heard(provider, sent)
        assert (answer.status, answer.hint) == (200, False), sent
        assert answer.text.startswith("ignored")


@pytest.mark.parametrize("provider", [it for it in PROVIDERS if it not in ("generic", "bitbucket")])
def test_a_tag_is_no_branch(provider: str) -> None:
    assert heard(provider, push(provider, ref="refs/tags/main")).text.startswith("ignored")


@pytest.mark.parametrize(
    ("provider", "event"), [("gitlab", "Tag Push Hook"), ("github", "create"), ("gitea", "create")]
)
def test_an_event_about_a_tag_is_ignored_whatever_the_tag_is_called(provider: str, event: str) -> None:
    sent = signed(provider, json.dumps(push_of(provider, ref="refs/tags/main")).encode(), event=event)
    assert heard(provider, sent).text.startswith("ignored")


@pytest.mark.parametrize("provider", [it for it in PROVIDERS if it not in ("generic", "bitbucket")])
def test_a_followed_branch_that_is_deleted_is_worth_a_look(provider: str) -> None:
    """The look finds no branch, says so, and stops nothing; the zeros are never taken for a commit."""
    body: Any = {**push_of(provider), "after": "0" * 40, "deleted": True}
    if provider == "bitbucket-server":
        body["changes"][0] |= {"type": "DELETE", "toHash": "0" * 40}
    assert heard(provider, signed(provider, json.dumps(body).encode())).hint
    assert (
        heard("github", signed("github", b'{"ref": "main", "ref_type": "branch"}', event="delete")).hint
        is False
    )


def test_the_fleets_own_record_is_ignored_even_while_no_branch_is_known() -> None:
    anything = Watched(state_ref="llmgw/state")
    assert heard("github", push("github", ref="refs/heads/llmgw/state"), watched=anything).status == 200
    assert heard("github", push("github", ref="refs/heads/whatever"), watched=anything).status == 202


def test_bitbucket_tells_of_several_branches_and_of_deleted_ones() -> None:
    body: Any = push_of("bitbucket", ref="refs/heads/feature")
    body["push"]["changes"].append({"new": None, "old": {"type": "branch", "name": "main"}})
    assert heard("bitbucket", signed("bitbucket", json.dumps(body).encode())).status == 202
    body["push"]["changes"][1]["old"]["type"] = "tag"
    assert heard("bitbucket", signed("bitbucket", json.dumps(body).encode())).status == 200
    body["push"]["changes"] = []
    assert heard("bitbucket", signed("bitbucket", json.dumps(body).encode())).status == 200


def test_gitlabs_system_hooks_count_where_they_tell_of_a_push() -> None:
    body: Any = push_of("gitlab")
    assert heard("gitlab", signed("gitlab", json.dumps(body).encode(), event="System Hook")).status == 202
    body["event_name"] = "user_create"
    assert heard("gitlab", signed("gitlab", json.dumps(body).encode(), event="System Hook")).status == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"{", b"{}", b'{"ref": 1}', b'{"repository": "x", "ref": "y"}', b"[" * 100_000, b"\xff",
     b'{"repository": {"full_name": {}}, "ref": []}', b'{"push": {"changes": 3}, "repository": {"full_name": "a"}}'],
)  # fmt: skip
@pytest.mark.parametrize("provider", [it for it in PROVIDERS if it != "generic"])
def test_a_body_that_makes_no_sense_harms_nobody_ghsa_jmvp(provider: str, body: bytes) -> None:
    answer = heard(provider, signed(provider, body))
    assert answer.status in (200, 400)
    assert not answer.hint


@given(
    provider=st.sampled_from(PROVIDERS),
    body=st.binary(max_size=200),
    headers=st.dictionaries(
        st.sampled_from(
            ["content-type", "x-hub-signature", "x-gitlab-token", "webhook-id", "webhook-signature"]
        ),
        st.text(st.characters(max_codepoint=255), max_size=40),
    ),
)
def test_nothing_that_strangers_send_is_believed_or_breaks_anything(
    provider: str, body: bytes, headers: dict[str, str]
) -> None:
    answer = judge(provider, headers, body, secrets=[SECRET, SIGNING_TOKEN], watched=FLEET, now=NOW)
    assert answer.status in (400, 401, 415)
    assert not answer.hint


@pytest.mark.parametrize(
    ("address", "full"),
    [
        ("https://github.com/ann/fleet.git", "ann/fleet"),
        ("https://git.example.org/base/ann/fleet", "base/ann/fleet"),
        ("ssh://git@host:2222/ann/fleet.git", "ann/fleet"),
        ("git@host:group/sub/fleet.git", "group/sub/fleet"),
        ("https://bitbucket.example.org/scm/ANN/fleet.git", "scm/ANN/fleet"),
        ("/srv/git/fleet.git", ""),
    ],
)
def test_a_repositorys_name_is_read_from_its_address(address: str, full: str, tmp_path: Path) -> None:
    assert repository_of(remote_of(address, base=tmp_path)) == full


def test_a_repository_is_the_same_below_another_path_and_in_other_letters() -> None:
    for ours, theirs in (("scm/ANN/fleet", "ann/fleet"), ("ann/fleet.git", "Ann/Fleet"), ("", "who/ever")):
        watched = Watched(branch="main", repository=ours)
        assert heard("gitea", push("gitea", repository=theirs), watched=watched).status == 202
    watched = Watched(branch="refs/heads/main", repository="sub/ann/fleet")
    assert heard("gitlab", push("gitlab", repository="other/ann/fleet"), watched=watched).status == 200


# ---- deliveries --------------------------------------------------------------------------------------


def test_a_delivery_that_came_before_is_known_for_a_day() -> None:
    seen = Deliveries()
    answer = heard("github", push("github", delivery="d-1"))
    assert answer.delivery == "d-1"
    assert not seen.again("forge", "d-1", NOW)
    assert seen.again("forge", "d-1", NOW + timedelta(hours=23))
    assert not seen.again("other", "d-1", NOW + timedelta(hours=23))
    assert not seen.again("forge", "d-1", NOW + timedelta(hours=25))
    assert not seen.again("forge", "", NOW)
    assert not seen.again("forge", "", NOW)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_delivery_is_known_by_the_id_that_its_forge_gives_it(provider: str) -> None:
    """Also when it sends others' headers beside."""
    expected = "" if provider == "generic" else "d-9"
    assert heard(provider, push(provider, delivery="d-9")).delivery == expected
    beside = {"x-github-delivery": "no", "x-request-id": "no", "x-gitea-delivery": "no"}
    if provider in ("gitlab", "forgejo", "bitbucket", "generic"):
        assert heard(provider, push(provider, delivery="d-9"), changed=beside).delivery == expected


def test_only_so_many_deliveries_are_remembered() -> None:
    seen = Deliveries()
    for number in range(Deliveries.KEPT + 1):
        assert not seen.again("forge", str(number), NOW)
    assert not seen.again("forge", "0", NOW), "the oldest is forgotten"
    assert seen.again("forge", str(Deliveries.KEPT), NOW)
    assert heard("github", push("github", delivery="x" * 500)).delivery == ""
