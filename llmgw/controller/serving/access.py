"""Who may read: everybody, or who sends the access token."""

import hashlib
import hmac
from collections.abc import Callable, Mapping

from llmgw.controller.secrets import resolve
from llmgw.model.manifest import Secret
from llmgw.model.problems import StalledError

SHORTEST = 16
"""Characters of a secret that somebody far away may try to guess as often as they like."""

Lookup = Callable[[Secret], bytes]


def lookup(environ: Mapping[str, str], learn: Callable[[str], object]) -> Lookup:
    """Reads a secret where it is now, so that replacing a file replaces the secret. Raises StalledError."""
    learnt: set[str] = set()

    def found(reference: Secret) -> bytes:
        value = resolve(reference, environ)
        if value not in learnt:  # learning costs, and this is on the way of every webhook
            learnt.add(value)
            learn(str(value))
        if len(value) < SHORTEST:
            raise StalledError(
                f"using {named(reference)}: it has {len(value)} characters, at least {SHORTEST} are needed: "
                "`openssl rand -hex 32` makes a good one"
            )
        return value.encode()

    return found


def named(reference: Secret) -> str:
    """For messages."""
    if reference.from_env is not None:
        return f"fromEnv: {reference.from_env}"
    return f"fromFile: {reference.from_file}"


def opens(authorization: str, token: bytes) -> bool:
    """Whether an ``Authorization`` header holds the token. Takes the same time whatever is wrong with it."""
    scheme, _, given = authorization.partition(" ")
    sides = (hashlib.sha256(side).digest() for side in (given.strip().encode("latin-1", "replace"), token))
    return hmac.compare_digest(*sides) and scheme.lower() == "bearer"
