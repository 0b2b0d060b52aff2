"""What has happened, in order: printed as it happens when somebody looks, and told whole when something has broken."""

import sys
import threading
import time
from typing import Final

LAST: Final = 500


class Story:
    """``aloud``: each line is printed at once."""

    def __init__(self, *, aloud: bool = False) -> None:
        self._aloud = aloud
        self._began = time.monotonic()
        self._lines: list[str] = []
        self._lock = threading.Lock()

    def tell(self, what: str) -> None:
        line = f"{time.monotonic() - self._began:8.2f} {what}"
        with self._lock:
            self._lines.append(line)
        if self._aloud:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    def text(self) -> str:
        """The end of it; the beginning of a long one is left out, and said so."""
        with self._lock:
            lines = list(self._lines)
        left_out = len(lines) - LAST
        head = [f"({left_out} lines before)"] if left_out > 0 else []
        return "\n".join([*head, *lines[-LAST:]])
