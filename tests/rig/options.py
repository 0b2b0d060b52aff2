"""What one host of a rig is like, where it differs from the others."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user beside root, who logs in with the rig's key. ``bashrc`` is what every command of theirs runs first."""

    name: str
    sudo: Literal["nopasswd", "password", "none"] = "nopasswd"
    bashrc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``max_sessions`` and ``max_startups`` None: sshd's own defaults. ``key_types`` are its host keys. ``hide`` names
    directories that are empty in the host; the checkout, this Python and root's home always are, unless ``shows_checkout``.
    ``shares`` are directories of this machine and where the host has them, read only, as it would have a file server's.
    ``disk`` is the size of its disk, such as ``256m``; empty: as large as this machine's."""

    max_sessions: int | None = None
    max_startups: str | None = None
    sshd: tuple[str, ...] = ()
    key_types: tuple[str, ...] = ("ed25519",)
    bashrc: str = ""  # root's
    users: tuple[User, ...] = ()
    hide: tuple[str, ...] = ()
    shares: tuple[tuple[Path, str], ...] = ()
    shows_checkout: bool = False
    disk: str = ""
