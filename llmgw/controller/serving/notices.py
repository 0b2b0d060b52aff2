"""Tells forges how the passes of commits went, and whoever wants to know what is wrong with the fleet.

Listens to the loop and hands over; sending goes on beside it and never holds it up.
"""

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from llmgw.clock import Clock
from llmgw.controller.passes.saved import write_private
from llmgw.controller.serving.access import Lookup, named
from llmgw.controller.serving.configuration import CommitStatus, Notices, Post
from llmgw.controller.serving.forges import BASES, CommitState, State, request
from llmgw.controller.serving.posting import Letter, Postbox, Sendable
from llmgw.controller.serving.snapshot import (
    ERROR,
    HELD,
    INVALID,
    CommitRefused,
    Event,
    HeadMoved,
    LastPass,
    PassBegan,
    PassEnded,
    Snapshots,
)
from llmgw.controller.serving.troubles import (
    MADE_WAY,
    Telling,
    Told,
    Trouble,
    lasting,
    of_pass,
    of_refusal,
)
from llmgw.model.exitcode import CHANGES, DONE
from llmgw.model.problems import InvalidError, Problem, StalledError
from llmgw.model.record import Outcome
from llmgw.model.struct import Struct, Time
from llmgw.wire.codec import from_json, to_json

LOG = logging.getLogger("llmgw.serve.notices")
FORMAT_VERSION = 1
TEXT = 3000
"""Characters of one text: chats cut longer ones themselves, in worse places."""
LAST_WORDS = 5.0
"""Seconds for what is not sent yet when serve ends."""
REMEMBERED = 100
"""Commits whose last state is known: a newer one comes long before."""
STATE_FILE = "notices.json"
MOST_STATE = 8 * 1024 * 1024  # bytes


class Sender(Struct):
    """What notices need of the rest. ``repository`` is the fleet's at its forge; empty: not known. ``state`` is a folder in
    which it is kept what was told, so that a restart tells nothing twice."""

    snapshots: Snapshots
    lookup: Lookup
    clock: Clock
    rng: Random
    counted: Callable[[str, str], None]
    redact: Callable[[str], str]
    repository: str
    state: Path


@asynccontextmanager
async def telling(
    notices: Notices, sender: Sender, *, last_words: float = LAST_WORDS
) -> AsyncIterator["Teller"]:
    """Sends until left, and then what is left, for so many seconds more. Raises InvalidError or StalledError when something is not
    as it must be: better at once than when it is needed."""
    teller = Teller(notices, sender)
    tasks = [asyncio.create_task(box.run()) for box in teller.boxes]
    try:
        yield teller
        await asyncio.gather(*(box.drained(last_words) for box in teller.boxes))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Teller:
    """An observer of the loop."""

    def __init__(self, notices: Notices, sender: Sender) -> None:
        box = partial(
            Postbox, clock=sender.clock, rng=sender.rng, counted=sender.counted, redact=sender.redact
        )
        self._sender = sender
        self._statuses: _Statuses | None = None
        if notices.commit_status is not None:
            self._statuses = _Statuses(notices.commit_status, sender, box("commit-status"))
        self._posts = [_Webhook(post, sender, box(post.name)) for post in notices.webhooks]
        self._refused: Trouble | None = None
        self._file = sender.state / STATE_FILE
        self._restore()

    @property
    def boxes(self) -> list[Postbox]:
        own = [self._statuses.box] if self._statuses is not None else []
        return [*own, *(post.box for post in self._posts)]

    def told(self, event: Event) -> None:
        match event:
            case HeadMoved():
                self._refused = None
            case CommitRefused():
                self._refused = of_refusal(event)
            case PassEnded(last=last) if _mended(self._refused, last):
                self._refused = None
            case _:
                pass
        if self._statuses is not None:
            self._statuses.told(event, refused=self._refused.commit if self._refused is not None else None)
        if isinstance(event, PassEnded) and event.last.ended not in MADE_WAY:
            self._news(of_pass(event.last))

    def _news(self, failed: Trouble | None) -> None:
        now, status = self._sender.clock.now(), self._sender.snapshots.now.status
        there = lasting(status.alerts if status is not None else (), failed, self._refused)
        changed = [post.news(there, now) for post in self._posts]
        if any(changed):
            self._keep()

    # ---- over restarts -----------------------------------------------------------------------------------------

    def _keep(self) -> None:
        told = {post.name: to_json(post.memory.troubles) for post in self._posts}
        try:
            write_private(self._file, json.dumps({"format": FORMAT_VERSION, "told": told}).encode())
        except StalledError as wrong:
            LOG.warning("%s: after a restart some notices come twice", wrong)

    def _restore(self) -> None:
        """What can't be read is as good as nothing: then some is told twice."""
        try:
            if self._file.stat().st_size > MOST_STATE:
                return
            told: Mapping[str, Any] = json.loads(self._file.read_bytes())["told"]
            for post in self._posts:
                if post.name in told:
                    post.memory.troubles = dict(
                        from_json(dict[str, tuple[Time, Trouble]], told[post.name], strict=False)
                    )
        except FileNotFoundError:
            return
        except Exception as wrong:  # noqa: BLE001 - a file of an older version, or a broken one
            LOG.warning("%s can't be read, so some notices come twice: %s", self._file, type(wrong).__name__)


def _mended(refused: Trouble | None, last: LastPass) -> bool:
    """The very commit that was refused could be used: what was wrong was not in it."""
    return refused is not None and last.commit == refused.commit and last.ended not in (INVALID, ERROR, HELD)


class _Statuses:
    """The state of each commit at the forge."""

    def __init__(self, configured: CommitStatus, sender: Sender, box: Postbox) -> None:
        self.box = box
        self._sender = sender
        self._configured = configured
        self._api = configured.api or BASES.get(configured.provider, "")
        self._repository = configured.repository or sender.repository
        missing = [
            name for name, value in (("api", self._api), ("repository", self._repository)) if not value
        ]
        if missing:
            raise InvalidError(
                tuple(
                    Problem(
                        what=f"notices.commitStatus lacks {name}, and nothing else says it",
                        instead=f"write `{name}:`",
                    )
                    for name in missing
                )
            )
        sender.lookup(configured.token)
        self._last: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def told(self, event: Event, *, refused: str | None) -> None:
        """While a commit is refused the one before it is kept up: how that goes changes nothing of what it was told."""
        match event:
            case HeadMoved(old=old, new=commit):
                if old is not None and self._last.get(old, ("", ""))[0] == "pending":
                    self._superseded(old)
                self._tell(CommitState(commit=commit, state="pending", description="Seen; a pass follows"))
            case PassBegan(commit=commit, sentence=sentence) if commit is not None:
                if refused in (None, commit):
                    self._tell(CommitState(commit=commit, state="pending", description=sentence))
            case PassEnded(last=last, settled=settled):
                if last.commit is not None and refused in (None, last.commit):
                    self._ended(last, last.commit, settled=settled)
            case CommitRefused(commit=commit, problems=problems):
                text = next(iter(problems), "it can't be applied as it is written")
                self._tell(CommitState(commit=commit, state="failure", description=text))
            case _:
                pass

    def _ended(self, last: LastPass, commit: str, *, settled: bool) -> None:
        if last.ended == Outcome.SUPERSEDED.value:
            self._superseded(commit)
        elif last.ended in MADE_WAY:
            return
        elif last.code not in (DONE, CHANGES):
            text = next(iter(last.errors), last.sentence)
            state: State = "error" if last.ended == ERROR else "failure"
            self._tell(CommitState(commit=commit, state=state, description=text))
        elif settled:
            self._tell(CommitState(commit=commit, state="success", description=last.sentence))
        else:
            self._tell(CommitState(commit=commit, state="pending", description=last.sentence))

    def _superseded(self, commit: str) -> None:
        self._tell(CommitState(commit=commit, state="superseded", description="A newer commit came"))

    def _tell(self, state: CommitState) -> None:
        """Not what it says already. GitLab refuses a state that a commit has, whatever the text beside it."""
        by_text = self._configured.provider != "gitlab" and state.state != "success"
        now = (state.state, state.description if by_text else "")
        if self._last.get(state.commit) == now:
            return
        self._last[state.commit] = now
        if len(self._last) > REMEMBERED:
            self._last.popitem(last=False)
        what = f"commit {state.commit[:10]}: {state.state}"
        self.box.put(Letter(what=what, make=partial(self._made, state), key=state.commit))

    def _made(self, state: CommitState) -> Sendable:
        made = request(
            self._configured.provider,
            CommitState(
                commit=state.commit, state=state.state, description=self._sender.redact(state.description)
            ),
            api=self._api,
            repository=self._repository,
            context=f"llmgw/{self._sender.snapshots.now.fleet}",
            token=self._sender.lookup(self._configured.token).decode(),
            target_url=self._configured.target_url,
        )
        return Sendable(url=made.url, headers=made.headers, body=made.body)


class _Webhook:
    """One address that hears of troubles."""

    def __init__(self, post: Post, sender: Sender, box: Postbox) -> None:
        self.box = box
        self.name = post.name
        self.memory = Told(severity=post.severity, every=timedelta(seconds=post.every))
        self._post = post
        self._sender = sender
        self._made(None)

    def news(self, there: tuple[Trouble, ...], now: datetime) -> bool:
        told = list(self.memory.news(there, now))
        for each in told:
            self.box.put(Letter(what=f"{each.trouble.id} {each.event}", make=partial(self._made, each)))
        return bool(told)

    def _made(self, told: Telling | None) -> Sendable:
        """None: only whether it could be."""
        url = self._sender.lookup(self._post.url).decode()
        if not url.startswith(("https://", "http://")):
            raise StalledError(
                f"notices.webhooks {self._post.name}: what {named(self._post.url)} holds is no address: write one that begins "
                "with https://"
            )
        token = self._post.token
        headers = {} if token is None else {"Authorization": f"Bearer {self._sender.lookup(token).decode()}"}
        if told is None:
            return Sendable(url=url, headers=headers, body={})
        known, redact = self._sender.snapshots.now, self._sender.redact
        if self._post.format == "slack":
            return Sendable(url=url, headers=headers, body={"text": redact(slack_text(known.fleet, told))})
        fleet = {"name": known.fleet, "id": known.status.fleet if known.status is not None else None}
        return Sendable(url=url, headers=headers, body=_redacted(document(fleet, told), redact))


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redact(value)
    return {key: _redacted(each, redact) for key, each in value.items()} if isinstance(value, dict) else value


def document(fleet: Mapping[str, Any], told: Telling) -> dict[str, Any]:
    """What a webhook of format ``json`` gets."""
    trouble = to_json(told.trouble)
    trouble["text"] = _cut(told.trouble.text)
    return {
        "formatVersion": FORMAT_VERSION,
        "event": told.event,
        "at": to_json(told.at),
        "fleet": fleet,
        **trouble,
    }


def slack_text(fleet: str, told: Telling) -> str:
    """One text. Nothing in it is a link, a mention or markup, whoever wrote it."""
    trouble = told.trouble
    word = {
        "raised": trouble.severity.value,
        "again": f"still {trouble.severity.value}",
        "cleared": "recovered",
    }
    lines = [f"{fleet} · {word[told.event]}: {trouble.address}: {trouble.text}"]
    if trouble.do and told.event != "cleared":
        lines.append(trouble.do)
    return _harmless(_cut("\n".join(lines)))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[:TEXT]}… (cut)"


def _harmless(text: str) -> str:
    """Slack's own escapes; a word joiner after @ keeps others from calling people."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("@", "@\u2060")
