"""Which commit a branch, a tag or a short commit of a Hugging Face repository is right now."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

import httpx

from llmgw.controller.secrets import resolve
from llmgw.controller.weights.ranges import TIMEOUT, NotReadError, Ranges
from llmgw.controller.weights.remote import HUB, PINNED, WITHIN
from llmgw.model.manifest import Source
from llmgw.model.problems import StalledError

HUB_VARIABLE: Final = "HF_ENDPOINT"
MOST: Final = 4 * 1024 * 1024
"""Bytes of a repository's description; it names each file."""


async def pinned(
    source: Source,
    revision: str,
    *,
    name: str,
    environment: Mapping[str, str],
    learn: Callable[[str], object],
    transport: httpx.AsyncBaseTransport | None = None,
) -> str:
    """All 40 digits of what ``revision`` (empty: the one in the source) is now. ``name`` is the model's, for messages; ``learn`` is
    told the token. StalledError where there is nothing to pin, or the hub does not tell."""
    doing = f"pinning {name}"
    if source.hugging_face is None:
        raise StalledError(
            f"{doing}: its weights come from no hub: a sha256 pins a file behind an address or in a package, and what lies at a path is"
            " what lies there"
        )
    wanted = revision or source.revision or "main"
    if PINNED.fullmatch(wanted):
        return wanted
    hub = environment.get(HUB_VARIABLE) or HUB
    url = f"{hub.rstrip('/')}/api/models/{quote(source.hugging_face)}/revision/{quote(wanted, safe='')}"
    token = None
    if source.token is not None:
        token = resolve(source.token, environment)
        learn(token)
    try:
        async with (
            asyncio.timeout(WITHIN),
            httpx.AsyncClient(follow_redirects=True, timeout=TIMEOUT, transport=transport) as client,
        ):
            answer = await Ranges(client, token).whole(url, most=MOST)
    except TimeoutError:
        raise StalledError(f"{doing}: the hub has not answered within {WITHIN:g} s: try again") from None
    except NotReadError as wrong:
        raise StalledError(f"{doing}: {wrong}") from wrong
    if answer is None:
        raise StalledError(
            f"{doing}: {source.hugging_face} has no revision {wanted}: see which it has on its page"
        )
    return _commit(answer, doing)


def _commit(answer: bytes, doing: str) -> str:
    try:
        told = json.loads(answer)
    except ValueError:
        told = None
    found = told.get("sha") if isinstance(told, dict) else None
    if not isinstance(found, str) or not PINNED.fullmatch(found):
        raise StalledError(f"{doing}: the hub named no commit: see that HF_ENDPOINT is a hub")
    return found
