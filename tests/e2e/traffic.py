"""Steady requests to a model, sent as a gateway would: to what the endpoints file calls ready, each with its own key."""

import http.client
import itertools
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from llmgw.core.lifecycle import DRAIN_SETTLE
from llmgw.model.struct import Struct
from tests.e2e.sshroad import SshRoad
from tests.rig.host import wait_for

WITHIN: Final = 120.0
"""Seconds for what takes a few on a quiet machine."""
LANES: Final = 4
"""Requests in flight at once: with two or three replicas there is always one at each."""
WORDS: Final = "one two three four five six seven eight nine ten"


class Read(Struct):
    """What a gateway knows of a model, and since when."""

    ready: tuple[Mapping[str, Any], ...]
    at: float


class Traffic:
    """``with Traffic(…) as traffic``: requests go out until the end of it, where every one must have been answered."""

    def __init__(self, road: SshRoad, file: Path, model: str) -> None:
        self._road, self._file, self._model = road, file, model
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._turns = itertools.count()
        self._answered: set[str] = set()
        self._failures: list[str] = []
        self._lanes = [threading.Thread(target=self._lane, name=f"asking {model}") for _ in range(LANES)]

    def __enter__(self) -> Self:
        for lane in self._lanes:
            lane.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for lane in self._lanes:
            lane.join(timeout=WITHIN)
        assert not any(lane.is_alive() for lane in self._lanes), "a request is never answered"
        assert not self._failures, f"{len(self._failures)} requests failed: {self._failures[:5]}"

    def replicas(self) -> set[str]:
        """Whoever has answered."""
        with self._lock:
            return set(self._answered)

    def wait_for_all(self) -> None:
        """Until everybody who is published has answered."""
        names = {one["replica"] for one in ready(self._file, self._model).ready}
        wait_for(
            f"answers of {names}", lambda: names <= self.replicas() or bool(self._failures), within=WITHIN
        )

    # ---- a lane ----------------------------------------------------------------------------------

    def _lane(self) -> None:
        try:
            self._road.rig.controller.inside(self._ask_on)
        except BaseException as wrong:  # noqa: BLE001 - told where all of it ends
            self._fail(f"the lane itself: {wrong!r}")

    def _ask_on(self) -> None:
        while not self._over.is_set():
            known = ready(self._file, self._model)
            if not known.ready:
                self._fail("nobody is published as ready")
                return
            one = known.ready[next(self._turns) % len(known.ready)]
            wrong = chat(one, self._model)
            if wrong and _stale(known, wrong):
                continue
            if wrong:
                self._fail(f"{one['replica']}: {wrong}")
                return
            with self._lock:
                self._answered.add(one["replica"])

    def _fail(self, why: str) -> None:
        with self._lock:
            self._failures.append(why)


def ready(file: Path, model: str) -> Read:
    """From the file, which is replaced as a whole."""
    at = time.monotonic()
    found = json.loads(file.read_text())["endpoints"]
    chosen = (one for one in found if one["servedName"] == model and one["state"] == "ready")
    return Read(ready=tuple(chosen), at=at)


def _stale(known: Read, wrong: str) -> bool:
    """On a busy machine a lane may stand still between looking and asking: nobody promises that what was ready so long ago is
    there still. A request that was begun is never excused."""
    return wrong.startswith("refused") and time.monotonic() - known.at > DRAIN_SETTLE


def chat(endpoint: Mapping[str, Any], model: str) -> str:
    """One request; why its answer is not whole, or nothing."""
    body = {"model": model, "messages": [{"role": "user", "content": WORDS}]}
    try:
        with urllib.request.urlopen(_request(endpoint, body), timeout=WITHIN) as reply:
            said = json.load(reply)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as wrong:
        return f"HTTP {wrong.code}: {wrong.read(500)!r}"
    except urllib.error.URLError as wrong:
        return (
            f"refused: {wrong.reason!r}" if isinstance(wrong.reason, ConnectionRefusedError) else repr(wrong)
        )
    except (OSError, ValueError, http.client.HTTPException) as wrong:
        return repr(wrong)
    return "" if said == f"You said: {WORDS}" else f"it said {said!r}"


def _request(endpoint: Mapping[str, Any], body: Mapping[str, Any]) -> urllib.request.Request:
    headers = {"Authorization": f"Bearer {endpoint['key']}", "Content-Type": "application/json"}
    url = f"{endpoint['url']}/chat/completions"
    return urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)


@dataclass(slots=True)
class Held:
    """A request whose answer goes on and on, until ``let_go``: as long as that, its replica has something in flight."""

    road: SshRoad
    endpoint: Mapping[str, Any]
    model: str
    words: int = 0
    wrong: str = ""
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="holding a request")
        self._thread.start()
        wait_for("the beginning of an answer", lambda: self.words > 0 or bool(self.wrong), within=WITHIN)
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()

    def let_go(self) -> None:
        """It must have been answered all the time."""
        self._over.set()
        assert self._thread is not None
        self._thread.join(timeout=WITHIN)
        assert not self.wrong, f"a request in flight was cut off: {self.wrong}"

    def _run(self) -> None:
        self.road.rig.controller.inside(self._read)

    def _read(self) -> None:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": WORDS}],
            "stream": True,
            "ignore_eos": True,
            "max_tokens": 1_000_000,
        }
        try:
            with urllib.request.urlopen(_request(self.endpoint, body), timeout=WITHIN) as reply:
                while not self._over.is_set():
                    line = reply.readline()
                    if not line:
                        self.wrong = "the stream ended"
                        return
                    self.words += line.startswith(b"data:")
        except (OSError, http.client.HTTPException) as wrong:
            self.wrong = repr(wrong)
