"""What one host of a rig is like, where it differs from the others."""

from pathlib import Path
from typing import Literal

from llmgw.model.struct import Struct


class User(Struct):
    """A user beside root, who logs in with the rig's key. ``bashrc`` is what every command of theirs runs first."""

    name: str
    sudo: Literal["nopasswd", "password", "none"] = "nopasswd"
    bashrc: str = ""


class Options(Struct):
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
