"""What a webhook is worth: a hint to look at the repository, or nothing, and the answer its sender gets. Pure.

Nothing of what it says is believed but which branch of which repository to look at: the commit is fetched and checked as always.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from llmgw.controller.serving.signatures import ALGORITHMS, Headers
from llmgw.model.struct import Struct

MAX_BODY = 1024 * 1024
"""Bytes. Pushes of the largest kind that forges send have a few hundred thousand; they send none above a few million."""
ID_LENGTH = 128
"""Characters of a delivery's id that are looked at: longer ones are nobody's."""

FORMS = frozenset({"github", "gitea", "forgejo", "gogs"})  # send forms too, with the JSON in a field
SIGNS_FIELD = frozenset({"gitea", "forgejo", "gogs"})  # and sign that field, not the body it stands in
_FORM, _JSON = "application/x-www-form-urlencoded", "application/json"
MAX_FIELDS = 16  # of a form; forges send one
_EVENT = {
    "github": "x-github-event",
    "gitlab": "x-gitlab-event",
    "gitea": "x-gitea-event",
    "forgejo": "x-forgejo-event",
    "gogs": "x-gogs-event",
    "bitbucket": "x-event-key",
    "bitbucket-server": "x-event-key",
}
_PINGS = frozenset({"ping", "diagnostics:ping"})
_PUSHES = frozenset({"push", "Push Hook", "System Hook", "repo:push", "repo:refs_changed"})
_DELIVERY = {
    "github": ("x-github-delivery",),
    "gitlab": ("webhook-id", "idempotency-key", "x-gitlab-event-uuid"),
    "gitea": ("x-gitea-delivery",),
    "forgejo": ("x-forgejo-delivery",),
    "gogs": ("x-gogs-delivery",),
    "bitbucket": ("x-request-uuid",),
    "bitbucket-server": ("x-request-id",),
}


class Watched(Struct):
    """What the fleet follows. ``branch`` empty: not known yet, so any may be it. ``repository`` is ``owner/name`` or a whole
    path that ends so; empty: whatever repository sends here is meant."""

    branch: str = ""
    state_ref: str = ""  # the branch that the record is pushed to, in the same repository
    repository: str = ""


class Answer(Struct):
    """``hint``: it is worth looking. ``text`` is for the sender and the log; it holds nothing of what the sender said.
    ``stranger``: nobody had to prove anything for it."""

    status: int
    text: str
    hint: bool = False
    stranger: bool = False
    delivery: str = ""


def judge(
    provider: str,
    headers: Headers,
    body: bytes,
    *,
    secrets: Iterable[bytes],
    watched: Watched,
    now: datetime,
) -> Answer:
    """Who may be believed comes before what is said: nothing is parsed for its meaning without a signature that fits."""
    content = _content(provider, headers, body)
    if isinstance(content, Answer):
        return content
    event = headers.get(_EVENT.get(provider, ""), "")
    if provider == "bitbucket-server" and event == "diagnostics:ping":
        # Its test button signs nothing; being told that we are here gives nothing away.
        return Answer(status=200, text="pong; the secret was not checked, a push will", stranger=True)
    signed = content if provider in SIGNS_FIELD else body
    known = tuple(secret for secret in secrets if secret)
    if not known:
        return Answer(status=503, text="no secret is set for this webhook")
    if problem := ALGORITHMS[provider](headers, signed, known, now):
        return Answer(status=401, text=problem)
    told = _told(provider, event, content, watched)
    return Answer(status=told.status, text=told.text, hint=told.hint, delivery=_delivery(provider, headers))


def _content(provider: str, headers: Headers, body: bytes) -> bytes | Answer:
    """What there is to read, or why nobody looks at it. Nothing is ever unpacked."""
    if provider == "generic":
        return body
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    form = kind == _FORM and provider in FORMS
    if kind != _JSON and not form:
        return Answer(status=415, text=f"send {_JSON}")
    if headers.get("content-encoding", "identity").lower() != "identity":
        return Answer(status=415, text="send it uncompressed")
    field = _field(body) if form else body
    return Answer(status=400, text="a form without one field `payload`") if field is None else field


def _field(body: bytes) -> bytes | None:
    """The one field ``payload`` of a form. A stranger's body gets this far, so what it costs must not depend on what it holds:
    ``parse_qs`` takes a third of a second for a mebibyte of percent signs."""
    if not body.isascii() or body.count(b"&") >= MAX_FIELDS:
        return None
    fields = [
        value for name, _, value in (part.partition(b"=") for part in body.split(b"&")) if name == b"payload"
    ]
    return _decoded(fields[0]) if len(fields) == 1 else None


def _decoded(value: bytes) -> bytes | None:
    """Percent signs are read at once, as the escapes of Python's own text that they are but for their sign."""
    escapes = value.replace(b"+", b" ").replace(b"\\", b"\\\\").replace(b"%", b"\\x")
    try:
        return escapes.decode("unicode_escape").encode("latin-1")
    except UnicodeDecodeError:
        return None


def _told(provider: str, event: str, content: bytes, watched: Watched) -> Answer:
    if provider == "generic":
        return Answer(status=202, text="looking", hint=True)
    if event in _PINGS:
        return Answer(status=200, text="pong")
    if event not in _PUSHES:
        return Answer(status=200, text="ignored: not a push to a branch")
    try:
        data = json.loads(content)
        if event == "System Hook" and data["event_name"] != "push":
            return Answer(status=200, text="ignored: not a push to a branch")
        repository, refs = _READERS.get(provider, _pushed)(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Answer(status=400, text=f"not the JSON of a push as {provider} sends it")
    return _of_interest(repository, refs, watched)


def _of_interest(repository: str, refs: Iterable[str], watched: Watched) -> Answer:
    """Others are answered as well-behaved too: senders switch off webhooks that keep failing."""
    ours = f"/{watched.repository.strip('/').removesuffix('.git')}".lower()
    if watched.repository and not ours.endswith(f"/{repository}".lower()):
        return Answer(status=200, text="ignored: another repository than the fleet's")
    branches = {ref.removeprefix("refs/heads/") for ref in refs if ref.startswith("refs/heads/")}
    branches -= {watched.state_ref.removeprefix("refs/heads/")}
    if not branches or (watched.branch and watched.branch.removeprefix("refs/heads/") not in branches):
        return Answer(status=200, text="ignored: not the branch that is followed")
    return Answer(status=202, text="looking", hint=True)


def _pushed(data: Any) -> tuple[str, list[str]]:
    return str(data["repository"]["full_name"]), [str(data["ref"])]


def _gitlab(data: Any) -> tuple[str, list[str]]:
    return str(data["project"]["path_with_namespace"]), [str(data["ref"])]


def _bitbucket(data: Any) -> tuple[str, list[str]]:
    """``new`` is nothing where a branch was deleted, ``old`` where it was made."""
    ends = [change.get("new") or change["old"] for change in data["push"]["changes"]]
    branches = [f"refs/heads/{end['name']}" for end in ends if end["type"] in ("branch", "named_branch")]
    return str(data["repository"]["full_name"]), branches


def _bitbucket_server(data: Any) -> tuple[str, list[str]]:
    repository = data["repository"]
    full = f"{repository['project']['key']}/{repository['slug']}"
    return full, [str(change["ref"]["id"]) for change in data["changes"]]


_READERS: Mapping[str, Any] = {
    "gitlab": _gitlab,
    "bitbucket": _bitbucket,
    "bitbucket-server": _bitbucket_server,
}


def _delivery(provider: str, headers: Headers) -> str:
    found = (headers.get(name, "") for name in _DELIVERY.get(provider, ()))
    return next((value for value in found if 0 < len(value) <= ID_LENGTH), "")


class Deliveries:
    """Which deliveries were there already. Most ids are not signed, so this saves work and is no defence."""

    KEPT = 1000
    FOR = timedelta(hours=24)

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], datetime] = OrderedDict()

    def again(self, hook: str, delivery: str, now: datetime) -> bool:
        """Whether this one came before; it counts as seen from now on. Without an id every one is new."""
        if not delivery:
            return False
        while self._seen and now - next(iter(self._seen.values())) > self.FOR:
            self._seen.popitem(last=False)
        key = (hook, delivery)
        before = key in self._seen
        if not before:
            self._seen[key] = now
            if len(self._seen) > self.KEPT:
                self._seen.popitem(last=False)
        return before
