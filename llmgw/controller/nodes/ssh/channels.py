"""Opening session channels on a connection, of which a server allows only so many (MaxSessions)."""

import random
import time
from datetime import timedelta
from typing import Final

import paramiko

from llmgw.model.problems import RetryError, StalledError

TRIES: Final = 7
FIRST_PAUSE: Final = 0.01
"""A closed channel gives its place back a moment later; all tries together take about 1.3 s."""
OPEN_WITHIN: Final = 10.0
PROHIBITED: Final = 1


class SessionsError(RetryError):
    """The server opens no further session on this connection: close some, or open another connection."""


class LostError(Exception):
    """The connection is gone, and nothing was sent on it."""


def open_session(transport: paramiko.Transport, *, doing: str) -> paramiko.Channel:
    """Blocking. Raises SessionsError, StalledError, or LostError when the connection is gone."""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(FIRST_PAUSE * 2**attempt * (0.5 + random.random()))  # noqa: S311 - spreads retries
        try:
            return transport.open_session(timeout=OPEN_WITHIN)
        except paramiko.ChannelException as wrong:
            if wrong.code == PROHIBITED:
                raise StalledError(
                    f"{doing}: the server allows no sessions for this user: {wrong.text}"
                ) from wrong
        except (paramiko.SSHException, OSError, EOFError) as wrong:
            # With others opening at the same time, theirs may have been told our refusal: ask again while it lives.
            if not transport.is_active():
                raise LostError(str(wrong)) from wrong
        time.sleep(FIRST_PAUSE * 2**attempt * (0.5 + random.random()))  # noqa: S311 - spreads retries
    raise SessionsError(
        f"{doing}: the SSH server opens no further session on this connection: raise MaxSessions in its sshd_config",
        after=timedelta(seconds=2),
    )
