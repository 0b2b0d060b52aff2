"""What a process of a shard can't shed, however it hides: the group id that it was given, and the log that it writes to.
Also what it leaves in shared memory, which bears that group id."""

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from llmgw.agent.shards import proc

log = logging.getLogger(__name__)

FIRST_GROUP = 0x78000000
"""Above what directories (2,000,200,000 and less) and containers hand out, below 2^31, where programs go wrong."""
GROUPS = 0x04000000
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - not for files of ours: to clean up
MAX_ENTRIES = 100_000


def group_of(tag: str, shard: str) -> int:
    """The same for every agent of this work directory; another's shard of the same name has another."""
    digest = hashlib.sha256(f"{tag}/{shard}".encode()).digest()
    return FIRST_GROUP + int.from_bytes(digest[:8], "big") % GROUPS


def writes_log(pid: int, folder: Path) -> bool:
    """Whether its output goes to one of a shard's logs. They are 0600 in a folder that is 0700: who holds one has
    inherited it."""
    files = (Path(name) for name in proc.appends_to(pid, str(folder)))
    return any(file.parent == folder and file.suffix == ".log" for file in files)


def clean(group: int, folder: Path = SHARED_MEMORY) -> int:
    """Removes what bears a group id that is a shard's own, once the shard has no process left. Returns how much that
    was, in bytes. Crash loops fill shared memory otherwise."""
    freed = 0
    for entry in _entries(folder):
        with suppress(OSError):
            seen = entry.stat(follow_symlinks=False)
            if seen.st_gid != group:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)  # noqa: PTH108 - as it was found
            freed += seen.st_blocks * 512
            log.info("removed %s (%d bytes), left by a shard that has ended", entry.path, seen.st_size)
    return freed


def _entries(folder: Path) -> Iterator["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(MAX_ENTRIES), entries, strict=False):
                yield entry
    except OSError:
        return
