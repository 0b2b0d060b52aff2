"""What llmgw.yaml says of ``serve``'s HTTP and notices, as values. Secrets stay references until they are used."""

from collections.abc import Mapping
from typing import Any, Literal

from llmgw.controller.repo.remote import Remote
from llmgw.manifests import decode, schema
from llmgw.manifests.yamltext import Document
from llmgw.model.alerts import Severity
from llmgw.model.manifest import Duration, Secret
from llmgw.model.problems import Problem, Where
from llmgw.model.struct import Struct

NAMES = ("webhooks", "tls", "accessToken", "notices")
"""Settings that have parts of their own, so that only llmgw.yaml can hold them."""
DAY = 24 * 3600.0

Provider = Literal["github", "gitlab", "gitea", "forgejo", "gogs", "bitbucket", "bitbucket-server", "generic"]
Forge = Literal["github", "gitlab", "gitea", "forgejo"]


class Webhook(Struct):
    name: str
    provider: Provider
    secrets: tuple[Secret, ...]  # any of them is believed
    repository: str | None = None


class Tls(Struct):
    cert: str
    key: str


class CommitStatus(Struct):
    provider: Forge
    token: Secret
    api: str | None = None
    repository: str | None = None
    target_url: str | None = None


class Post(Struct):
    name: str
    url: Secret
    token: Secret | None = None
    format: Literal["json", "slack"] = "json"
    severity: Severity = Severity.WARNING
    every: Duration = Duration(DAY)


class Notices(Struct):
    commit_status: CommitStatus | None = None
    webhooks: tuple[Post, ...] = ()

    @property
    def with_token(self) -> str:
        """The first of them that sends a token along; empty: none does."""
        if self.commit_status is not None:
            return "notices.commitStatus"
        return next((f"notices.webhooks {it.name}" for it in self.webhooks if it.token is not None), "")


class Serving(Struct):
    webhooks: tuple[Webhook, ...] = ()
    tls: Tls | None = None
    access_token: Secret | None = None
    notices: Notices = Notices()


def problems(file: str, document: Document) -> list[Problem]:
    """What is wrong with these settings as they are written."""
    found = schema.check_settings(file, document)
    return found or [*_twice(file, document)]


def _twice(file: str, document: Document) -> list[Problem]:
    lists = (
        ("webhooks", document.data.get("webhooks", [])),
        ("notices.webhooks", document.data.get("notices", {}).get("webhooks", [])),
    )
    found = []
    for path, entries in lists:
        seen: set[str] = set()
        for at, entry in enumerate(entries):
            line, column = document.marks.get(f"{path}[{at}].name", document.mark)
            if entry["name"] in seen:
                what = f"{path} has the name {entry['name']} twice"
                found.append(
                    Problem(
                        what=what,
                        instead="give each its own",
                        where=Where(file=file, line=line, column=column),
                    )
                )
            seen.add(entry["name"])
    return found


def serving(written: Mapping[str, Any]) -> Serving:
    """Out of values that had no :func:`problems`. Raises ValueError where they had."""
    try:
        return decode.value(Serving, dict(written))
    except ValueError as wrong:
        raise ValueError(f"these settings can't be read: {wrong}") from wrong


def repository_of(remote: Remote) -> str:
    """``group/sub/name`` out of an address at a forge; empty for a local path."""
    host, path = remote.place
    return path if host else ""
