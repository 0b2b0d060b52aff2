"""Whether a webhook was sent by somebody who knows the secret: each provider's algorithm, exactly. Pure.

Every comparison takes the same time whatever is wrong. SHA-1, which several providers still send beside, is never looked at.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

Headers = Mapping[str, str]
"""By lower-case name, as latin-1 text. A name that came more than once is absent: what it says is not clear."""

TOLERANCE = 300
"""Seconds that the timestamp of a standard-webhooks signature may be off: what their specification's own libraries allow."""
SIGNING_TOKEN = "whsec_"  # noqa: S105 - how such tokens begin, not one of them

Problem = str
"""What is wrong, for whoever sets the webhook up; empty: nothing. Says nothing of what would have been right."""


def headers_of(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """From a request's header lines."""
    found: dict[str, list[str]] = {}
    for name, value in raw:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _same(given: str, right: bytes) -> bool:
    """Both sides are hashed first, so that not even the length of what is right can be found out."""
    sides = (hashlib.sha256(side).digest() for side in (given.encode("latin-1", "replace"), right))
    return hmac.compare_digest(*sides)


def _any(given: Iterable[str], right: Iterable[bytes]) -> bool:
    """Looks at all pairs, also after one that fits: how long it takes must not tell which secret is the current one."""
    told, rights = tuple(given), tuple(right)
    fits = [_same(one, other) for one in told for other in rights]
    return any(fits)


def _hex(secret: bytes, body: bytes) -> str:
    return hmac.new(secret, body, hashlib.sha256).hexdigest()


def _signed(header: str, prefix: str) -> "Algorithm":
    """HMAC-SHA256 of the body in hex, after ``prefix``."""

    def check(headers: Headers, body: bytes, secrets: Sequence[bytes], now: datetime) -> Problem:
        del now
        given = headers.get(header)
        if given is None:
            return f"no {header}: enter the secret at the webhook's sender too"
        if not _any([given], (f"{prefix}{_hex(secret, body)}".encode() for secret in secrets)):
            return f"{header} does not fit: is the secret the same on both sides?"
        return ""

    return check


def _gitlab(headers: Headers, body: bytes, secrets: Sequence[bytes], now: datetime) -> Problem:
    """A signing token signs (standard webhooks); any other secret is sent along as it is, and the body is not signed."""
    signing = [secret for secret in secrets if secret.startswith(SIGNING_TOKEN.encode())]
    plain = [secret for secret in secrets if secret not in signing]
    problem = "no x-gitlab-token: enter the secret at the webhook's sender too"
    if "x-gitlab-token" in headers:
        if _any([headers["x-gitlab-token"]], plain):
            return ""
        problem = "x-gitlab-token does not fit: is the secret the same on both sides?"
    return _standard(headers, body, signing, now) if signing else problem


def _standard(headers: Headers, body: bytes, secrets: Sequence[bytes], now: datetime) -> Problem:
    """HMAC-SHA256 in base64 of id, time and body, joined by full stops; the header may hold several."""
    sent, moment, given = (headers.get(f"webhook-{part}") for part in ("id", "timestamp", "signature"))
    if sent is None or moment is None or given is None:
        return "no webhook-signature: enter the signing token at the webhook's sender too"
    content = f"{sent}.{moment}.".encode("latin-1") + body
    right = [
        b"v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest())
        for key in map(_key, secrets)
    ]
    if not _any(given.split(), right):
        return "webhook-signature does not fit: is the signing token the same on both sides?"
    try:
        off = abs(int(moment) - now.timestamp())
    except ValueError:
        return "webhook-timestamp is no number of seconds"
    return f"webhook-timestamp is {off:.0f} s off: set both clocks" if off > TOLERANCE else ""


def _key(secret: bytes) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(SIGNING_TOKEN.encode()), validate=True)
    except binascii.Error:
        return secret


Algorithm = Callable[[Headers, bytes, Sequence[bytes], datetime], Problem]
"""(headers, what is signed, secrets of which any may be used, now) -> what is wrong"""

ALGORITHMS: Mapping[str, Algorithm] = {
    "github": _signed("x-hub-signature-256", "sha256="),
    "gitlab": _gitlab,
    "gitea": _signed("x-gitea-signature", ""),
    "forgejo": _signed("x-forgejo-signature", ""),
    "gogs": _signed("x-gogs-signature", ""),
    "bitbucket": _signed("x-hub-signature", "sha256="),
    "bitbucket-server": _signed("x-hub-signature", "sha256="),
    "generic": _signed("x-signature", "sha256="),
}
"""By the name of the provider in llmgw.yaml."""
