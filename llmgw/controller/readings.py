"""What was written as settings, read as values. What is wrong with it is collected, so that all of it can be told at once."""

import os
import pwd
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from llmgw.controller.given import Given, absolute, with_home
from llmgw.controller.repo.refs import branch_ref
from llmgw.controller.repo.remote import Remote, remote_of
from llmgw.model.problems import InvalidError, Problem

DEFAULT_LISTEN = "127.0.0.1:9470"
_LISTEN = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]*):\d{1,5}$")
_LEAST_INTERVAL = 1.0  # seconds; more often would only be load
_FLAGS = {"true": True, "1": True, "false": False, "0": False}  # in a variable all is text
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h)$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Reader:
    """Turns what was written into values and collects what is wrong with it."""

    def __init__(self, given: Mapping[str, Given], environ: Mapping[str, str]) -> None:
        self._given = given
        self._environ = environ
        self.problems: list[Problem] = []

    def text(self, name: str) -> str | None:
        given = self._given.get(name)
        if given is None:
            return None
        if not isinstance(given.value, str) or not given.value or any(ord(c) < 32 for c in given.value):
            self._wrong(given, f"{name} must be text in one line, got {given.value!r:.80}", "quote it")
            return None
        return given.value

    def checked(self, name: str, check: Callable[[str], str]) -> str | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return check(text)
        except InvalidError as wrong:
            self._wrong(self._given[name], wrong.problems[0].what, wrong.problems[0].instead)
            return None

    def branch(self, name: str) -> str | None:
        """Its short name."""
        ref = self.checked(name, lambda text: branch_ref(text, what=name))
        return ref.removeprefix("refs/heads/") if ref else None

    def remote(self, name: str, *, default: Path | None = None) -> Remote | None:
        text = self.text(name)
        if text is None:
            named = name in self._given
            return remote_of(str(default), base=default, trusted=False) if default and not named else None
        given = self._given[name]
        try:
            return remote_of(with_home(text, self._environ), base=given.base, what=name)
        except InvalidError as wrong:
            self._wrong(given, wrong.problems[0].what, wrong.problems[0].instead)
            return None

    def path(self, name: str) -> Path | None:
        text = self.text(name)
        return None if text is None else absolute(text, self._given[name].base, self._environ)

    def flag(self, name: str) -> bool:
        given = self._given.get(name)
        value = _FLAGS.get(str(given.value).lower()) if given is not None else False
        if value is None and given is not None:
            self._wrong(
                given, f"{name} must be true or false, got {given.value!r:.80}", "write true or false"
            )
        return bool(value)

    def duration(self, name: str) -> float:
        given = self._given.get(name)
        if given is None:
            return 0.0
        found = _DURATION.match(given.value) if isinstance(given.value, str) else None
        if found is None and given.value not in {0, "0"}:
            self._wrong(given, f"{name} must be a duration, got {given.value!r:.80}", "write 30s, 5m or 1h")
            return 0.0
        return float(found[1]) * _SECONDS[found[2]] if found else 0.0

    def has(self, name: str) -> bool:
        return name in self._given

    def interval(self, name: str, default: float, *, least: float = _LEAST_INTERVAL) -> float:
        """Seconds, ``least`` of them or more: a duration after which something is done again and again."""
        if name not in self._given:
            return default
        seconds = self.duration(name)
        if seconds < least and not self.problems:
            given = self._given[name]
            self._wrong(given, f"{name} is {given.value}, less than {least:g}s", "write 30s or 5m")
        return seconds

    def listen(self) -> str | None:
        text = self.text("listen")
        if text is None:
            return DEFAULT_LISTEN
        if text == "none":
            return None
        if not _LISTEN.match(text):
            what = f"listen must be an address and a port, got {text!r:.80}"
            instead = f"write {DEFAULT_LISTEN}, [::1]:9470, :9470 for all addresses, or none"
            self._wrong(self._given["listen"], what, instead)
        return text

    def holder(self) -> str:
        return self.text("holder") or f"{_user()}@{socket.gethostname()}"

    def default_state_dir(self, name: str) -> Path:
        """One per fleet."""
        state_home = self._environ.get("XDG_STATE_HOME") or f"{self._environ.get('HOME') or '/'}/.local/state"
        return Path(state_home) / "llmgw" / name

    def _wrong(self, given: Given, what: str, instead: str) -> None:
        told = what if given.where else f"{given.source}: {what}"
        self.problems.append(Problem(where=given.where, what=told, instead=instead))


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without an entry
        return f"uid{os.getuid()}"
