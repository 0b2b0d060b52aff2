"""Who listens on a TCP port of this node."""

import os

from llmgw.agent.shards.proc import PROC

LISTEN = "0A"


def sockets(port: int) -> set[str]:
    """Inodes of the sockets that listen on ``port``, on any address."""
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def holders(inodes: set[str], pids: list[int]) -> list[int]:
    """Which of ``pids`` hold one of the sockets open. Others' processes can only be seen by root."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    return [pid for pid in pids if _holds(f"{PROC}/{pid}/fd", wanted)]


def _holds(folder: str, wanted: set[str]) -> bool:
    """Of every process of the machine: without pathlib, which takes twice as long as the look itself."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - see above
    except OSError:
        return False
    return any(_link(f"{folder}/{name}") in wanted for name in names)


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - a socket's link is text, not a path
    except OSError:
        return ""
