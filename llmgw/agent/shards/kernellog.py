"""What the kernel has said: its log, read without ever waiting and only as far as it is new. Keeps the few lines that
explain a death: processes killed for lack of memory, and the errors (Xid) of GPUs."""

import contextlib
import errno
import logging
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from llmgw.agent.discovery.readings import bus_id
from llmgw.model.struct import Struct

log = logging.getLogger(__name__)

KMSG = Path("/dev/kmsg")
MAX_RECORDS = 200_000
"""Records of one look: a kernel buffer of 16 MiB, read from its start, holds fewer."""
RECORD = 16 * 1024
"""Bytes; the kernel's own limit is 8 KiB, and what does not fit is an error."""
KEPT = 512
MAX_TEXT = 300
"""Characters of a line that are told."""

_MATTERS = re.compile(r"NVRM: (?:Xid|GPU at PCI)|Killed process|oom-kill:")
_KILLED = re.compile(r"Killed process (\d+) \((.*?)\)(?:,| total-vm)")
_VICTIM = re.compile(r"oom-kill:.*\btask_memcg=([^,]*),.*\bpid=(\d+)")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:]+(?:\.[0-9a-f])?)[^)]*\): (\d+)")
_NAMED = re.compile(r"NVRM: GPU at PCI:([0-9A-Fa-f:]+(?:\.[0-9a-f])?): (GPU-[0-9a-f-]+)")


class Line(Struct):
    """``at``: seconds since boot, by a clock that may be off the monotonic one by seconds."""

    at: float
    text: str

    @property
    def killed(self) -> tuple[int, str] | None:
        """Pid and name of a process that was killed for lack of memory."""
        found = _KILLED.search(self.text)
        return (int(found[1]), found[2]) if found else None

    @property
    def victim(self) -> tuple[str, int] | None:
        """Control group and pid of a process that is about to be."""
        found = _VICTIM.search(self.text)
        return (found[1], int(found[2])) if found else None

    @property
    def xid_of(self) -> str:
        """The PCI address of the GPU whose error this is; empty: none's."""
        found = _XID.search(self.text)
        return bus_id(found[1]) if found else ""

    @property
    def xid(self) -> int | None:
        """The number of that error."""
        found = _XID.search(self.text)
        return int(found[2]) if found else None


class KernelLog:
    """One reader of one log. A log that can't be read, as in containers and for users without rights, is empty."""

    def __init__(self, path: Path = KMSG) -> None:
        self._path = path
        self._file: int | None = None
        self._refused = False
        self._rest = b""
        self._kept: deque[Line] = deque(maxlen=KEPT)

    def lines(self) -> tuple[Line, ...]:
        """Those that matter, oldest first, up to now."""
        for line in self._fresh():
            self._kept.append(line)
        return tuple(self._kept)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _fresh(self) -> Iterator[Line]:
        for record in self._records():
            line = parse(record.decode(errors="replace"))
            if line is not None:
                yield line

    def _records(self) -> Iterator[bytes]:
        """/dev/kmsg gives one record a read; a plain file gives many, the last perhaps not whole."""
        for _ in range(MAX_RECORDS):
            data = self._read()
            if data is None:
                continue
            if not data:
                return
            *whole, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-RECORD:]
            yield from whole

    def _read(self) -> bytes | None:
        """Empty: nothing new. None: nothing whole; there may be more."""
        if self._file is None and not self._open():
            return b""
        assert self._file is not None
        try:
            return os.read(self._file, RECORD)
        except BlockingIOError:
            return b""
        except OSError as wrong:
            if wrong.errno in (errno.EPIPE, errno.EINVAL):
                return None  # overwritten before it was read; or larger than any record
            log.debug("reading %s: %s", self._path, wrong.strerror)
            self.close()
            self._refused = True
            return b""

    def _open(self) -> bool:
        if self._refused:
            return False
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as wrong:
            log.debug("deaths are explained without the kernel's log: %s: %s", self._path, wrong.strerror)
            self._refused = True
            return False
        return True

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


def parse(record: str) -> Line | None:
    """``6,2008,6331694901,-;text``: priority and facility, number, microseconds. None for what does not matter, and
    for what a program has written there, which is not the kernel's word."""
    head, mark, text = record.partition(";")
    cells = head.split(",")
    if not mark or len(cells) < 3 or not cells[0].isdigit() or not cells[2].isdigit():
        return None
    if int(cells[0]) >> 3 or not _MATTERS.search(text):
        return None
    return Line(at=int(cells[2]) / 1e6, text=text.strip()[:MAX_TEXT])


def buses(lines: Iterable[Line]) -> Mapping[str, str]:
    """PCI addresses of the GPUs that the driver has named, by UUID."""
    found = (_NAMED.search(line.text) for line in lines)
    return {match[2]: bus_id(match[1]) for match in found if match}
