"""Asks again and again whether a model is served somewhere, from the controller's network, while things change."""

import http.client
import threading
import urllib.request
from collections.abc import Mapping
from typing import Any

from tests.e2e.sshroad import SshRoad
from tests.rig.host import wait_for


class Watch:
    """Endpoints are looked up as a gateway would, whenever the last known ones do not all answer, and now and then."""

    def __init__(self, road: SshRoad, model: str) -> None:
        self._road, self._model = road, model
        self._over = threading.Event()
        self._gaps: list[str] = []
        self.asked = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"watching {model}")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._road.rig.controller.inside(self._watch)
        except BaseException as wrong:  # noqa: BLE001 - told where it is waited for
            self._failure = wrong

    def _watch(self) -> None:
        known = self._published()
        while not self._over.wait(0.1):
            if not all(_answers(one) for one in known) or not known:
                known = self._published()
                if not any(_answers(one) for one in known):
                    self._gaps.append(f"none of {len(known)} published endpoints answers")
            self.asked += 1

    def _published(self) -> list[dict[str, Any]]:
        return [one for one in self._road.endpoints() if one["servedName"] == self._model]

    def gaps(self) -> list[str]:
        """Ends the watching; the moments in which nobody answered."""
        wait_for("a few looks at the model", lambda: self.asked > 3 or self._failure is not None)
        self._over.set()
        self._thread.join(timeout=60)
        if self._failure is not None:
            raise self._failure
        return self._gaps


def _answers(endpoint: Mapping[str, Any]) -> bool:
    request = urllib.request.Request(
        f"{endpoint['url']}/models", headers={"Authorization": f"Bearer {endpoint['key']}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False
