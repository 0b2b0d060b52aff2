"""One redaction for everything that people may read: the agent's log, the controller's messages, records of failures.

Takes out userinfo of URLs and bearer tokens always, and every secret it was told of, in the spellings a secret travels
in. It is the last line of defence: code above it never puts a secret into text in the first place.
"""

import base64
import re
from collections.abc import Iterable
from urllib.parse import quote

MASK = "***"
SHORTEST = 6
"""Shorter "secrets" are not masked: they would hit ordinary words, and guessing them needs no log."""

# A scheme has no more than so many characters: without a limit, a long word takes the square of its length.
_USERINFO = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30})://(?P<user>[^\s/@:'\"]*)(?P<rest>:[^\s/@]*)?@"
)

_BEARER = re.compile(rf"(?i)\b(bearer\s+)[\w.~+/=-]{{{SHORTEST},}}")


class Masked(str):
    """Text that shows itself only where it is used as text: its repr, which is what tracebacks and logged values
    print, is masked."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(MASK)


def without_userinfo(text: str) -> str:
    """``https://ann:pw@host/x`` -> ``https://***@host/x``. A user name stays where it is no credential (ssh)."""

    def masked(found: re.Match[str]) -> str:
        harmless = found["scheme"] in {"ssh", "git+ssh"} and not found["rest"]
        return found[0] if harmless else f"{found['scheme']}://{MASK}@"

    return _USERINFO.sub(masked, text)


class Redactor:
    """Knows secrets and takes them out of text. One per process; secrets are learnt as they are read."""

    __slots__ = ("_pattern", "_spellings")

    def __init__(self, secrets: Iterable[str | bytes] = ()) -> None:
        self._spellings: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        for secret in secrets:
            self.learn(secret)

    def learn(self, secret: str | bytes) -> None:
        """From now on this never shows, neither plain nor in base64, hex or percent encoding."""
        raw = secret if isinstance(secret, bytes) else secret.encode()
        if len(raw.strip()) < SHORTEST:
            return
        self._spellings.update(_spellings(raw.strip()))
        longest_first = sorted(self._spellings, key=lambda text: (-len(text), text))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def __call__(self, text: str) -> str:
        masked = self._pattern.sub(MASK, text) if self._pattern else text
        return _BEARER.sub(rf"\g<1>{MASK}", without_userinfo(masked))

    def __repr__(self) -> str:
        return f"Redactor({len(self._spellings)} spellings)"


def _spellings(raw: bytes) -> set[str]:
    text = raw.decode("utf-8", "replace")
    plain = base64.b64encode(raw).decode()
    url_safe = base64.urlsafe_b64encode(raw).decode()
    return {
        text,
        repr(text)[1:-1],
        quote(text, safe=""),
        plain,
        plain.rstrip("="),
        url_safe,
        url_safe.rstrip("="),
        raw.hex(),
    }
