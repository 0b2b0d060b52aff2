"""Webhooks as the forges send them: the parts of their published examples that count, and signed as each of them signs."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

SECRET = b"It's a Secret to Everybody"
SIGNING_TOKEN = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MAIN = "refs/heads/main"
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Delivery:
    headers: Mapping[str, str]
    body: bytes


def in_hex(body: bytes, secret: bytes = SECRET, algorithm: str = "sha256") -> str:
    return hmac.new(secret, body, algorithm).hexdigest()


def push_of(provider: str, ref: str = MAIN, repository: str = "ann/fleet") -> Any:
    """The body of a push, without the many fields that nobody looks at."""
    owner, _, name = repository.partition("/")
    short = ref.removeprefix("refs/heads/")
    match provider:
        case "gitlab":
            project = {"path_with_namespace": repository, "web_url": f"https://gitlab.example/{repository}"}
            return {"object_kind": "push", "event_name": "push", "ref": ref, "project": project}
        case "bitbucket":
            end: Any = {
                "type": "branch",
                "name": short,
                "target": {"hash": "709d658dc5b6d6afcd46049c2f332ee3f515a67d"},
            }
            change: Any = {"old": None, "new": end, "created": True, "forced": False}
            return {"repository": {"full_name": repository}, "push": {"changes": [change]}}
        case "bitbucket-server":
            change = {
                "ref": {"id": ref, "displayId": short, "type": "BRANCH"},
                "refId": ref,
                "type": "UPDATE",
            }
            about = {"slug": name, "project": {"key": owner.upper()}}
            return {"eventKey": "repo:refs_changed", "repository": about, "changes": [change]}
        case _:
            return {"ref": ref, "before": "0" * 40, "repository": {"full_name": repository}}


EVENTS = {
    "github": ("X-GitHub-Event", "push", "ping"),
    "gitlab": ("X-Gitlab-Event", "Push Hook", ""),
    "gitea": ("X-Gitea-Event", "push", ""),
    "forgejo": ("X-Forgejo-Event", "push", ""),
    "gogs": ("X-Gogs-Event", "push", ""),
    "bitbucket": ("X-Event-Key", "repo:push", ""),
    "bitbucket-server": ("X-Event-Key", "repo:refs_changed", "diagnostics:ping"),
    "generic": ("", "", ""),
}
PROVIDERS = tuple(EVENTS)


def signed(
    provider: str, body: bytes, *, event: str | None = None, secret: bytes = SECRET, delivery: str = ""
) -> Delivery:
    """With every header that the provider sends, the old and weaker ones too."""
    name, push, _ = EVENTS[provider]
    headers = {"Content-Type": JSON, **({name: event or push} if name else {})}
    digest, sha1 = in_hex(body, secret), in_hex(body, secret, "sha1")
    match provider:
        case "github":
            headers |= {"X-Hub-Signature-256": f"sha256={digest}", "X-Hub-Signature": f"sha1={sha1}"}
            headers["X-GitHub-Delivery"] = delivery or "72d3162e-cc78-11e3-81ab-4c9367dc0958"
        case "gitlab":
            headers |= {"X-Gitlab-Token": secret.decode(), "Idempotency-Key": delivery or "f5e5f430"}
        case "gitea" | "forgejo" | "gogs":
            for kind in ("Gitea", "Gogs", *(("Forgejo",) if provider == "forgejo" else ())):
                headers |= {f"X-{kind}-Signature": digest, f"X-{kind}-Delivery": delivery or "f6266f16"}
            headers |= {"X-Hub-Signature": f"sha1={sha1}", "X-Hub-Signature-256": f"sha256={digest}"}
            headers["X-GitHub-Event"] = event or push
        case "bitbucket" | "bitbucket-server":
            headers |= {
                "X-Hub-Signature": f"sha256={digest}",
                "X-Hook-UUID": "{1b0d}",
                "X-Request-Id": delivery or "4",
            }
            headers["X-Request-UUID"] = delivery or "4"
        case _:
            headers["X-Signature"] = f"sha256={digest}"
    return Delivery(headers, body)


def push(provider: str, *, secret: bytes = SECRET, delivery: str = "", **about: str) -> Delivery:
    return signed(provider, json.dumps(push_of(provider, **about)).encode(), secret=secret, delivery=delivery)


def form(provider: str, **about: str) -> Delivery:
    """GitHub signs the form, the others the JSON inside it."""
    content = json.dumps(push_of(provider, **about))
    body = urlencode({"payload": content}).encode()
    made = signed(provider, body if provider == "github" else content.encode())
    return Delivery({**made.headers, "Content-Type": FORM}, body)


def standard(
    body: bytes, *, at: int, secret: bytes = SIGNING_TOKEN, sent: str = "msg_p5jXN8AQM9LWM0D4loKWxJek"
) -> Delivery:
    """GitLab with a signing token."""
    key = base64.b64decode(secret.removeprefix(b"whsec_"))
    content = f"{sent}.{at}.".encode() + body
    right = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    headers = {
        "Content-Type": JSON,
        "X-Gitlab-Event": "Push Hook",
        "webhook-id": sent,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{right}",
    }
    return Delivery(headers, body)
