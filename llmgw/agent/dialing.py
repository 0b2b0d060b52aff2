"""The way to the agent of a work directory. Light, because the bridge comes here with every connection to a node."""

import os
import socket

from llmgw.wire.doorway import SOCKET


def dial(work: "str | os.PathLike[str]") -> socket.socket:
    """Connects to the agent of a work directory; OSError when nobody listens."""
    folder = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{SOCKET}")
        connection.setblocking(False)
    except OSError:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection
