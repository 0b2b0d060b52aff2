"""How each forge is told the status of a commit: address, headers and body of the request. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

from llmgw.controller.serving.configuration import Forge
from llmgw.model.struct import Struct

State = Literal["pending", "success", "failure", "error", "superseded"]
"""``failure``: it can't be applied as it is written, or could not be carried out; ``error``: no pass could be made, whatever the
commit says."""
_GITLAB = {"failure": "failed", "error": "failed", "pending": "running", "superseded": "canceled"}
DESCRIPTION = 140
"""Characters: what GitHub takes; the others take more."""
BASES: Mapping[Forge, str] = {"github": "https://api.github.com", "gitlab": "https://gitlab.com/api/v4"}


class CommitState(Struct):
    commit: str
    state: State
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A POST of JSON. The headers hold a secret."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: Mapping[str, str]


def request(
    forge: Forge,
    told: CommitState,
    *,
    api: str,
    repository: str,
    context: str,
    token: str,
    target_url: str | None = None,
) -> Request:
    """``repository`` is owner and name, of GitLab the whole path."""
    description = shortened(told.description)
    if forge == "gitlab":
        link = {"target_url": target_url} if target_url else {}
        return Request(
            url=f"{api.rstrip('/')}/projects/{quote(repository, safe='')}/statuses/{told.commit}",
            headers={"PRIVATE-TOKEN": token},
            body={
                "state": _GITLAB.get(told.state, told.state),
                "name": context,
                "description": description,
                **link,
            },
        )
    owner, _, name = repository.rpartition("/")
    place = f"{quote(owner.rpartition('/')[2], safe='')}/{quote(name, safe='')}"
    headers = {"Authorization": f"token {token}"}
    if forge == "github":
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }
    link = {"target_url": target_url} if target_url else {}
    return Request(
        url=f"{api.rstrip('/')}/repos/{place}/statuses/{told.commit}",
        headers=headers,
        body={
            "state": "error" if told.state == "superseded" else told.state,
            "context": context,
            "description": description,
            **link,
        },
    )


def shortened(text: str, most: int = DESCRIPTION) -> str:
    """In one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
