"""The agent's log: one file, bounded, and one place where secrets are taken out of what goes into it."""

import logging
import os
import re
import time
from collections.abc import Iterable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

from llmgw.redaction import Redactor

MAX_LOG = 16 * 1024 * 1024
_NAMED = re.compile(r"(?i)(?P<name>key|token|password|passwd|secret|credential|proxy)")


def secret_values(env: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The values of variables whose names say that they are secret."""
    return tuple(value for name, value in env if _NAMED.search(name))


class _Redacting(logging.Formatter):
    """The last thing that touches a line, tracebacks included."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(asctime)sZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor(super().format(record))


class _PrivateFile(RotatingFileHandler):
    def _open(self) -> TextIO:  # type: ignore[override] # the handler only needs a text stream
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")


def log_to(file: Path, redactor: Redactor) -> logging.Handler:
    """All of this process's log goes to ``file``, 0600; one earlier file is kept."""
    handler = _PrivateFile(file, maxBytes=MAX_LOG, backupCount=1)
    handler.setFormatter(_Redacting(redactor))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs whole URLs
    return handler
