"""The fleet's secret, the keys made from it, and the values that manifests only point to.

Secrets are read when they are needed and sent, and stand in no argument, log, record or commit.
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llmgw.controller.repo.failures import GitError
from llmgw.controller.repo.git import Git, GitEnvironment
from llmgw.controller.repo.locks import make_private_folder
from llmgw.model.ids import ReplicaId, key_id
from llmgw.model.manifest import Secret, Value
from llmgw.model.problems import StalledError
from llmgw.redaction import Masked, Redactor

SECRET_VARIABLE = "LLMGW_SECRET"  # noqa: S105 - the variable's name, not what it holds
SHORTEST = 32  # characters; what we make has 64 hex digits
_MAX_SECRET = 4096  # bytes
MOST_KEPT = 64
"""Earlier secrets that are looked at; more than one or two means that somebody collects them."""
_KEY_ID = re.compile(r"^[0-9a-f]{8}$")
_MAX_VALUE = 64 * 1024  # bytes of a file that holds one value; the longest are certificates


# ---- the fleet's secret --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretStore:
    """Where one fleet's secret is: in ``LLMGW_SECRET`` where that is set, else in a file of this machine.

    ``work_tree`` is the manifests' own folder when it is on this machine: a secret there must be ignored by Git."""

    path: Path
    given: str | None = field(default=None, repr=False)
    work_tree: Path | None = None
    redactor: Redactor | None = None
    git: Git | None = None

    @property
    def place(self) -> str:
        """For messages."""
        return SECRET_VARIABLE if self.given is not None else str(self.path)

    def load(self) -> bytes | None:
        """None: this machine has none. StalledError when there is one that must not be used."""
        if self.given is not None:
            return self._learnt(_usable(self.given.encode(), SECRET_VARIABLE))
        if not os.path.lexists(self.path):
            return None
        refuse_in_git(self.path, work_tree=self.work_tree, git=self.git)
        return self._learnt(_read_secret(self.path))

    def make(self) -> bytes:
        """The one that is there, or a new one, kept in the file. Safe to call from several processes at once."""
        if (found := self.load()) is not None:
            return found
        return self._learnt(ensure_secret(self.path, work_tree=self.work_tree, git=self.git))

    def kept(self) -> Mapping[str, bytes]:
        """Earlier ones, each in a file named after its key id beside the newest."""
        found: dict[str, bytes] = {}
        for file in sorted(self.path.parent.glob(f"{self.path.name}.*"))[:MOST_KEPT]:
            name = file.name.removeprefix(f"{self.path.name}.")
            if _KEY_ID.match(name):
                refuse_in_git(file, work_tree=self.work_tree, git=self.git)
                secret = self._learnt(_read_secret(file))
                if key_id(secret) == name:
                    found[name] = secret
        return found

    def rotate(self) -> str:
        """Cut off anywhere, either the old one or the new one is in force, and the old one is kept. StalledError where the
        secret does not come from a file."""
        if self.given is not None:
            raise StalledError(
                f"rotating the fleet secret: it comes from {SECRET_VARIABLE}, which this command can't change: take the "
                f"variable away and put its content into {self.path} (mode 0600), then rotate"
            )
        old = self.load()
        if old is None:
            raise StalledError(
                f"rotating the fleet secret: {self.path} is not there: rotate where it is, or make the first one with `llmgw apply`"
            )
        kept = self.path.with_name(f"{self.path.name}.{key_id(old)}")
        refuse_in_git(kept, work_tree=self.work_tree, git=self.git)
        try:
            if not os.path.lexists(kept):
                os.link(self.path, kept)
            fresh = _written_beside(self.path)
            fresh.replace(self.path)
        except OSError as wrong:
            raise StalledError(
                f"rotating the fleet secret {self.path}: {wrong.strerror or wrong}: give the right to write beside it"
            ) from wrong
        return key_id(self._learnt(_read_secret(self.path)))

    def drop(self, key: str) -> None:
        try:
            Path(self.place_of(key)).unlink(missing_ok=True)
        except OSError as wrong:
            raise StalledError(
                f"removing the earlier fleet secret {self.place_of(key)}: {wrong.strerror or wrong}: remove it by hand"
            ) from wrong

    def place_of(self, key: str) -> str:
        return str(self.path.with_name(f"{self.path.name}.{key}"))

    def _learnt(self, secret: bytes) -> bytes:
        if self.redactor is not None:
            self.redactor.learn(secret)
        return secret


class MemorySecret:
    """A fleet secret that no file holds: for simulations and tests."""

    place = "memory"

    def __init__(self, secret: bytes | None) -> None:
        self.secret = secret
        self.earlier: dict[str, bytes] = {}

    def load(self) -> bytes | None:
        return self.secret

    def make(self) -> bytes:
        self.secret = self.secret or secrets.token_hex(32).encode()
        return self.secret

    def kept(self) -> Mapping[str, bytes]:
        return dict(self.earlier)

    def rotate(self) -> str:
        old = self.make()
        self.earlier[key_id(old)] = old
        self.secret = hashlib.sha256(old).hexdigest().encode()  # the same in every run of a simulation
        return key_id(self.secret)

    def drop(self, key: str) -> None:
        self.earlier.pop(key, None)

    def place_of(self, key: str) -> str:
        return f"memory.{key}"


def ensure_secret(path: Path, *, work_tree: Path | None = None, git: Git | None = None) -> bytes:
    """The secret in the file, made there (0600, its folders 0700) if there is none.

    Raises StalledError when the file is kept in Git, can be read by others, or can't be written."""
    refuse_in_git(path, work_tree=work_tree, git=git)
    try:
        make_private_folder(path.parent)
        if not os.path.lexists(path):
            _create(path)
    except OSError as wrong:
        raise StalledError(
            f"making the fleet secret {path}: {wrong.strerror or wrong}: give the right to write there, or choose another "
            "place with --secret-file"
        ) from wrong
    return _read_secret(path)


def _create(path: Path) -> None:
    """Whole or not at all, and never over one that is there: two at once end up with the same secret."""
    beside = _written_beside(path)
    try:
        os.link(beside, path)
    except FileExistsError:
        pass  # somebody else was first
    finally:
        beside.unlink()


def _written_beside(path: Path) -> Path:
    """A new secret in a file of its own."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, f"{secrets.token_hex(32)}\n".encode())
        os.fsync(descriptor)
    except OSError:
        beside.unlink()
        raise
    finally:
        os.close(descriptor)
    return beside


def _read_secret(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            data = file.read(_MAX_SECRET + 1)
    except OSError as wrong:
        raise StalledError(
            f"reading the fleet secret {path}: {wrong.strerror or wrong}: let this user read it, or name another file with "
            "--secret-file"
        ) from wrong
    if stat.S_IMODE(about.st_mode) & 0o077:
        raise StalledError(
            f"reading the fleet secret {path}: other users may read it (mode {stat.S_IMODE(about.st_mode):04o}): "
            f"chmod 600 {path}, and if others were on this machine make a new one"
        )
    return _usable(data, str(path))


def _usable(data: bytes, place: str) -> bytes:
    secret = data.strip()
    if not SHORTEST <= len(secret) <= _MAX_SECRET:
        raise StalledError(
            f"reading the fleet secret in {place}: it has {len(secret)} characters, {SHORTEST} to {_MAX_SECRET} are "
            "needed: copy it whole, or remove it to have one made"
        )
    return secret


def require_key(secret: bytes, *, recorded: str, place: str) -> None:
    """Raises StalledError unless the secret is the one that the record's keys are made from."""
    found = key_id(secret)
    if found != recorded:
        raise StalledError(
            f"the secret in {place} is {found}, and the fleet's keys are made from {recorded}: copy the file or value named "
            f"{recorded} from the machine that applied before; with this one every running replica would refuse its users"
        )


def replica_key(secret: bytes, replica: ReplicaId) -> Masked:
    """The API key of one replica: 64 hex digits, the same whenever it is asked for."""
    return Masked(hmac.new(secret, replica.encode(), hashlib.sha256).hexdigest())


def refuse_in_git(path: Path, *, work_tree: Path | None = None, git: Git | None = None) -> None:
    """A secret must never be committed: refused when Git tracks it, and below ``work_tree`` also when Git would at
    the next ``git add``. Raises StalledError."""
    real = path.resolve()
    folder = next(above for above in real.parents if above.is_dir())
    if not any((above / ".git").exists() for above in (folder, *folder.parents)):
        return
    runner = git or Git(GitEnvironment())
    try:
        if runner.succeeds("ls-files", "--error-unmatch", "--", f":(literal){real}", directory=folder):
            raise StalledError(
                f"using the secret {path}: Git tracks this file: take it out (git rm --cached), make a new secret, "
                "and keep it outside the repository"
            )
        inside = work_tree is not None and real.is_relative_to(work_tree.resolve())
        if inside and not runner.succeeds("check-ignore", "--quiet", "--", str(real), directory=folder):
            raise StalledError(
                f"using the secret {path}: it lies in the manifests' folder and Git does not ignore it: add it to "
                ".gitignore, or choose another place with --secret-file"
            )
    except GitError as wrong:
        raise StalledError(
            f"using the secret {path}: {wrong.said}: whether Git keeps it can't be told; choose a place outside of "
            "any repository with --secret-file"
        ) from wrong


# ---- values of manifests -------------------------------------------------------------------------------------


def resolve(value: Value, environ: Mapping[str, str]) -> Masked:
    """What a manifest's ``{fromEnv: NAME}`` or ``{fromFile: path}`` stands for; plain text is itself.

    Raises StalledError naming the variable or file, never what it holds."""
    match value:
        case Secret(from_env=str(name)):
            return _from_environment(name, environ)
        case Secret(from_file=str(path)):
            return _from_file(path, environ)
        case _:
            return Masked(value)


def _from_environment(name: str, environ: Mapping[str, str]) -> Masked:
    found = environ.get(name)
    if not found:
        state = "is empty" if found == "" else "is not set"
        raise StalledError(f"looking up fromEnv: {name}: the variable {state}: set it where llmgw runs")
    return Masked(found)


def _from_file(path: str, environ: Mapping[str, str]) -> Masked:
    home = environ.get("HOME", "")
    place = Path(home + path[1:]) if path.startswith("~/") and home else Path(path)
    if not place.is_absolute():
        raise StalledError(
            f"looking up fromFile: {path}: the path is relative, and what it is relative to differs by who runs this: write "
            "it from / or from ~/"
        )
    try:
        with place.open("rb") as file:
            data = file.read(_MAX_VALUE + 1)
    except OSError as wrong:
        raise StalledError(
            f"looking up fromFile: {path}: {wrong.strerror or wrong}: put the file there on this machine"
        ) from wrong
    if len(data) > _MAX_VALUE:
        raise StalledError(f"looking up fromFile: {path}: more than {_MAX_VALUE} bytes: one value a file")
    try:
        text = data.decode().rstrip("\r\n")
    except UnicodeDecodeError as wrong:
        raise StalledError(
            f"looking up fromFile: {path}: it is not UTF-8 text: store the value as text"
        ) from wrong
    if not text or "\0" in text:
        raise StalledError(f"looking up fromFile: {path}: it holds no usable text: write the value into it")
    return Masked(text)
