"""The controller's own settings: one name each, from a flag, the environment or ``llmgw.yaml``, in that order."""

import os
import pwd
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from llmgw.controller import githosts
from llmgw.controller.githosts import GitHosts
from llmgw.controller.repo.access import USER as DEFAULT_TOKEN_USER
from llmgw.controller.repo.objects import FETCH_TIMEOUT as DEFAULT_FETCH_TIMEOUT
from llmgw.controller.repo.refs import branch_ref, repository_path
from llmgw.controller.repo.remote import Remote, remote_of
from llmgw.controller.serving import configuration
from llmgw.controller.serving.configuration import Serving
from llmgw.manifests import yamltext
from llmgw.model.ids import digest
from llmgw.model.problems import InvalidError, Problem, Where
from llmgw.model.record import LEASE

FILE = "llmgw.yaml"
DEFAULT_STATE_REF = "llmgw/state"
DEFAULT_LISTEN = "127.0.0.1:9470"
_LISTEN = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]*):\d{1,5}$")
DEFAULT_POLL, DEFAULT_RESYNC = 30.0, 300.0  # seconds
_LEAST_INTERVAL = 1.0  # seconds; more often would only be load
LEAST_LEASE = 10.0  # seconds; a push over a slow line must fit in several times
_MAX_FILE = 2 * 1024 * 1024  # bytes; keys of those who sign may stand in it
_FLAGS = {"true": True, "1": True, "false": False, "0": False}  # in a variable all is text
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h)$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

NAMES = (
    "repo",
    "branch",
    "path",
    "stateRepo",
    "stateRef",
    "stateDir",
    "secretFile",
    "sshIdentity",
    "gitIdentity",
    "tokenUser",
    "stateTokenUser",
    "caFile",
    "fetchTimeout",
    "partialClone",
    "holder",
    "endpointsFile",
    "lockTimeout",
    "lease",
    "listen",
    "pollInterval",
    "resyncInterval",
    "jitter",
)
"""As written in llmgw.yaml. The flag is ``--state-ref``, the variable ``LLMGW_STATE_REF``."""

KNOWN = (*NAMES, *githosts.NAMES, *configuration.NAMES)
TOKENS = {"token": "repo", "stateToken": "stateRepo"}
"""Each with the setting that names the host which gets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything settled; paths are absolute. ``branch`` None: the one that the repository's HEAD names. ``path`` None:
    ``manifests`` below ``base`` if the commit has it, else ``base``."""

    repo: Remote
    branch: str | None
    path: str | None
    base: str
    state_repo: Remote
    state_ref: str
    name: str  # of the fleet, where people read it: ``lab-0a1b2c3d``
    state_dir: Path
    secret_file: Path
    ssh_identity: Path | None  # for nodes whose manifest names no key
    git_identity: Path | None  # for Git hosts: a deploy key
    token_user: str  # beside the token, where the host wants a certain one
    state_token_user: str  # the same for the record's repository
    ca_file: Path | None  # authorities of https hosts, instead of the system's
    fetch_timeout: float  # seconds
    partial_clone: bool  # bring files of the repository only when they are read
    holder: str
    endpoints_file: Path | None
    lock_timeout: float  # seconds
    lease: float  # seconds for which an intent keeps other controllers out
    listen: str | None  # host and port that `llmgw serve` answers at; None: it does not
    poll_interval: float  # seconds between looks of `llmgw serve` at the branch
    resync_interval: float  # seconds between passes of `llmgw serve` that nobody hinted at
    jitter: float | None  # seconds of chance in waiting; None: what suits the command
    work_tree: Path | None  # top of the manifests' work tree, when it is on this machine
    enclosing: Path | None  # top of the repository that this was run in, whichever it is
    file: Path | None  # the llmgw.yaml that was read
    file_in_repository: bool  # it lies where commits are checked out
    hosts: GitHosts = GitHosts()
    serving: Serving = Serving()  # whom `llmgw serve` answers and tells


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """A setting as it was written: ``base`` is what relative paths count from, ``source`` is for messages."""

    value: Any
    base: Path
    source: str
    where: Where | None = None


def variable(name: str) -> str:
    """``stateRef`` -> ``LLMGW_STATE_REF``."""
    return "LLMGW_" + re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()


def flag(name: str) -> str:
    """``stateRef`` -> ``--state-ref``."""
    return "--" + re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def load_settings(
    *,
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    cwd: Path,
    config: str | None = None,
) -> Settings:
    """``flags`` by the names in :data:`NAMES`; None: not given. ``config`` (or LLMGW_CONFIG) names the file; else an
    ``llmgw.yaml`` is looked for from ``cwd`` up to the top of the repository.

    Raises InvalidError with every problem."""
    top = enclosing_repository(cwd)
    named = config or environ.get("LLMGW_CONFIG") or None
    file = _absolute(named, cwd, environ) if named else _beside(cwd, top)
    written = _read_file(file, must=named is not None) if file else {}
    given = {
        name: found for name in NAMES if (found := _given(name, flags, environ, written, cwd=cwd)) is not None
    }
    reader = _Reader(given, environ)
    settings = _settle(reader, cwd=cwd, top=top, file=file, named=named is not None)
    if reader.problems:
        raise InvalidError(tuple(reader.problems))
    assert settings is not None
    settings = replace(settings, hosts=_git_hosts(environ, written))
    for name, repository in TOKENS.items():
        if (place := settings.hosts.places.get(name)) is None:
            continue
        if settings.file_in_repository:
            _refuse_committed_token(name, place, settings.file, repo=given.get(repository))
        if name == "stateToken" and settings.state_repo.address == settings.repo.address:
            raise InvalidError((_token_of_no_repository(place),))
    parts = {name: written[name].value for name in configuration.NAMES if name in written}
    settings = replace(settings, serving=configuration.serving(parts))
    if settings.file_in_repository and (sends := settings.serving.notices.with_token):
        raise InvalidError((_committed_notice(sends, written["notices"].where),))
    return settings


def _committed_notice(sends: str, where: Where | None) -> Problem:
    """For the same reason as a token for Git: who commits would choose the file, and the host that it is sent to."""
    return Problem(
        what=f"{sends} sends a token, and stands in a file of a repository, where whoever commits could have any file of this machine sent"
        " to a host of theirs",
        instead="write notices in a llmgw.yaml outside of any repository (--config, LLMGW_CONFIG)",
        where=where,
    )


def _git_hosts(environ: Mapping[str, str], written: Mapping[str, _Given]) -> GitHosts:
    """A variable goes before the file. Raises InvalidError with every problem of the variables."""
    values: dict[str, Any] = {}
    places: dict[str, Where] = {}
    problems: list[Problem] = []
    for name in githosts.NAMES:
        if text := environ.get(variable(name)):
            value, wrong = githosts.in_variable(name, variable(name), text)
            problems += wrong
            values[name], places[name] = value, Where(file=variable(name))
        elif (given := written.get(name)) is not None and given.where is not None:
            values[name], places[name] = given.value, given.where
    if problems:
        raise InvalidError(tuple(problems))
    return githosts.git_hosts(values, places)


def _token_of_no_repository(place: Where) -> Problem:
    return Problem(
        what="stateToken is for a stateRepo, and the record lies in repo",
        instead="write token, which is for both, or name the record's own repository in stateRepo",
        where=place,
    )


def _refuse_committed_token(name: str, place: Where, file: Path | None, *, repo: _Given | None) -> None:
    """Neither the token nor the host that gets it may be named by a file that others commit to: they could have any file of
    this machine sent to a host of theirs."""
    outside = "in a llmgw.yaml outside of any repository (--config, LLMGW_CONFIG)"
    if place.file == str(file):
        what = f"{name} stands in a file of a repository, where a commit could send it to another host"
        instead = f"name it in {variable(name)}, or {outside}"
        raise InvalidError((Problem(where=place, what=what, instead=instead),))
    if repo is not None and repo.where is not None and "https://" in str(repo.value):
        setting = TOKENS[name]
        what = (
            f"the host that gets the {name} is named in a file of a repository, where a commit could name another"
        )
        instead = f"name it in {variable(setting)} or with {flag(setting)}, or both {outside}"
        raise InvalidError((Problem(where=repo.where, what=what, instead=instead),))


def enclosing_repository(start: Path) -> Path | None:
    """Top of the work tree (or the bare repository) that ``start`` lies in."""
    for folder in (start, *start.parents):
        if (folder / ".git").exists():
            return folder
        if (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir():
            return folder
    return None


def _given(
    name: str,
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    written: Mapping[str, _Given],
    *,
    cwd: Path,
) -> _Given | None:
    if (value := flags.get(name)) is not None:
        return _Given(value=value, base=cwd, source=flag(name))
    if value := environ.get(variable(name)):
        return _Given(value=value, base=cwd, source=variable(name))
    return written.get(name)


def _settle(
    reader: "_Reader", *, cwd: Path, top: Path | None, file: Path | None, named: bool
) -> Settings | None:
    repo = reader.remote("repo", default=top)
    state_repo = reader.remote("stateRepo") or repo
    if repo is None or state_repo is None:
        if not reader.problems:
            reader.problems.append(
                Problem(
                    what=f"{cwd} is in no Git repository, and none is named",
                    instead="run this in the manifests' repository, or name it with --repo",
                )
            )
        return None
    work_tree = repo.local if repo.local and (repo.local / ".git").exists() else None
    base = "."
    if file is not None and work_tree is not None and file.parent.is_relative_to(work_tree):
        base = str(file.parent.relative_to(work_tree))
    branch = reader.checked("branch", lambda text: branch_ref(text, what="branch"))
    path = reader.checked("path", lambda text: repository_path(text, what="path"))
    state_ref = (
        reader.checked("stateRef", lambda text: branch_ref(text, what="stateRef")) or DEFAULT_STATE_REF
    )
    short_branch = branch.removeprefix("refs/heads/") if branch else None
    short_state = state_ref.removeprefix("refs/heads/")
    if short_branch == short_state and repo.address == state_repo.address:
        reader.problems.append(
            Problem(
                what=f"branch and stateRef are both {short_state}",
                instead="keep the record on a branch of its own",
            )
        )
    name = _fleet_name(repo, path or base, state_repo, short_state)
    state_dir = reader.path("stateDir") or reader.default_state_dir(name)
    return Settings(
        repo=repo,
        branch=short_branch,
        path=path,
        base=base,
        state_repo=state_repo,
        state_ref=short_state,
        name=name,
        state_dir=state_dir,
        secret_file=reader.path("secretFile") or state_dir / "secret",
        ssh_identity=reader.path("sshIdentity"),
        git_identity=reader.path("gitIdentity") or reader.path("sshIdentity"),
        token_user=reader.text("tokenUser") or DEFAULT_TOKEN_USER,
        state_token_user=reader.text("stateTokenUser") or DEFAULT_TOKEN_USER,
        ca_file=reader.path("caFile"),
        fetch_timeout=reader.interval("fetchTimeout", DEFAULT_FETCH_TIMEOUT),
        partial_clone=reader.flag("partialClone"),
        holder=reader.holder(),
        endpoints_file=reader.path("endpointsFile"),
        lock_timeout=reader.duration("lockTimeout"),
        lease=reader.interval("lease", LEASE.total_seconds(), least=LEAST_LEASE),
        listen=reader.listen(),
        poll_interval=reader.interval("pollInterval", DEFAULT_POLL),
        resync_interval=reader.interval("resyncInterval", DEFAULT_RESYNC),
        jitter=reader.duration("jitter") if reader.has("jitter") else None,
        work_tree=work_tree,
        enclosing=top,
        file=file,
        file_in_repository=file is not None and _checked_out(file, named=named, work_tree=work_tree),
    )


def _checked_out(file: Path, *, named: bool, work_tree: Path | None) -> bool:
    """Whether the file may be part of what is to be applied: it lies in the manifests' work tree, or in some repository where it
    was found and not named."""
    if work_tree is not None and file.is_relative_to(work_tree):
        return True
    return not named and enclosing_repository(file.parent) is not None


class _Reader:
    """Turns what was written into values and collects what is wrong with it."""

    def __init__(self, given: Mapping[str, _Given], environ: Mapping[str, str]) -> None:
        self._given = given
        self._environ = environ
        self.problems: list[Problem] = []

    def text(self, name: str) -> str | None:
        given = self._given.get(name)
        if given is None:
            return None
        if not isinstance(given.value, str) or not given.value or any(ord(c) < 32 for c in given.value):
            self._wrong(given, f"{name} must be text in one line, got {given.value!r:.80}", "quote it")
            return None
        return given.value

    def checked(self, name: str, check: Callable[[str], str]) -> str | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return check(text)
        except InvalidError as wrong:
            self._wrong(self._given[name], wrong.problems[0].what, wrong.problems[0].instead)
            return None

    def remote(self, name: str, *, default: Path | None = None) -> Remote | None:
        text = self.text(name)
        if text is None:
            named = name in self._given
            return remote_of(str(default), base=default, trusted=False) if default and not named else None
        given = self._given[name]
        try:
            return remote_of(_home(text, self._environ), base=given.base, what=name)
        except InvalidError as wrong:
            self._wrong(given, wrong.problems[0].what, wrong.problems[0].instead)
            return None

    def path(self, name: str) -> Path | None:
        text = self.text(name)
        return None if text is None else _absolute(text, self._given[name].base, self._environ)

    def flag(self, name: str) -> bool:
        given = self._given.get(name)
        value = _FLAGS.get(str(given.value).lower()) if given is not None else False
        if value is None and given is not None:
            self._wrong(
                given, f"{name} must be true or false, got {given.value!r:.80}", "write true or false"
            )
        return bool(value)

    def duration(self, name: str) -> float:
        given = self._given.get(name)
        if given is None:
            return 0.0
        found = _DURATION.match(given.value) if isinstance(given.value, str) else None
        if found is None and given.value not in {0, "0"}:
            self._wrong(given, f"{name} must be a duration, got {given.value!r:.80}", "write 30s, 5m or 1h")
            return 0.0
        return float(found[1]) * _SECONDS[found[2]] if found else 0.0

    def has(self, name: str) -> bool:
        return name in self._given

    def interval(self, name: str, default: float, *, least: float = _LEAST_INTERVAL) -> float:
        """Seconds, ``least`` of them or more: a duration after which something is done again and again."""
        if name not in self._given:
            return default
        seconds = self.duration(name)
        if seconds < least and not self.problems:
            given = self._given[name]
            self._wrong(given, f"{name} is {given.value}, less than {least:g}s", "write 30s or 5m")
        return seconds

    def listen(self) -> str | None:
        text = self.text("listen")
        if text is None:
            return DEFAULT_LISTEN
        if text == "none":
            return None
        if not _LISTEN.match(text):
            what = f"listen must be an address and a port, got {text!r:.80}"
            instead = f"write {DEFAULT_LISTEN}, [::1]:9470, :9470 for all addresses, or none"
            self._wrong(self._given["listen"], what, instead)
        return text

    def holder(self) -> str:
        return self.text("holder") or f"{_user()}@{socket.gethostname()}"

    def default_state_dir(self, name: str) -> Path:
        """One per fleet."""
        state_home = self._environ.get("XDG_STATE_HOME") or f"{self._environ.get('HOME') or '/'}/.local/state"
        return Path(state_home) / "llmgw" / name

    def _wrong(self, given: _Given, what: str, instead: str) -> None:
        told = what if given.where else f"{given.source}: {what}"
        self.problems.append(Problem(where=given.where, what=told, instead=instead))


def _fleet_name(repo: Remote, path: str, state_repo: Remote, state_ref: str) -> str:
    """The same for every run against the same repository, path and state branch, wherever it keeps its state."""
    last = repo.address.rstrip("/").removesuffix("/.git").removesuffix(".git").rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last.rpartition(":")[2]).strip(".-") or "fleet"
    return f"{name}-{digest([repo.address, path, state_repo.address, state_ref])[:8]}"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without an entry
        return f"uid{os.getuid()}"


def _home(text: str, environ: Mapping[str, str]) -> str:
    home = environ.get("HOME")
    return f"{home}{text[1:]}" if home and (text == "~" or text.startswith("~/")) else text


def _absolute(text: str, base: Path, environ: Mapping[str, str]) -> Path:
    return Path(os.path.normpath(base / _home(text, environ)))


# ---- llmgw.yaml ----------------------------------------------------------------------------------------------


def _beside(cwd: Path, top: Path | None) -> Path | None:
    """The nearest one above, within the repository. Outside of any only the folder itself is looked at."""
    for folder in (cwd, *cwd.parents):
        if (folder / FILE).is_file():
            return folder / FILE
        if folder == top or top is None:
            return None
    return None


def _read_file(file: Path, *, must: bool) -> dict[str, _Given]:
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_FILE + 1)
    except OSError as wrong:
        if not must and isinstance(wrong, FileNotFoundError):
            return {}
        raise InvalidError(
            (
                Problem(
                    where=Where(file=str(file)),
                    what=f"the settings can't be read: {wrong.strerror or wrong}",
                    instead="give the right path with --config",
                ),
            )
        ) from wrong
    if len(data) > _MAX_FILE:
        raise InvalidError(
            (Problem(where=Where(file=str(file)), what=f"more than {_MAX_FILE} bytes", instead="shorten it"),)
        )
    return _parsed(file, data)


def _parsed(file: Path, data: bytes) -> dict[str, _Given]:
    """``key: value`` lines; everything that is wrong at once."""
    documents, problems = yamltext.read(str(file), data)
    if len(documents) > 1 or (documents and not isinstance(documents[0].data, dict)):
        problems.append(
            Problem(where=Where(file=str(file)), what="no settings", instead="write key: value lines")
        )
    if problems:
        raise InvalidError(tuple(problems))
    if not documents:
        return {}
    document = documents[0]
    given: dict[str, _Given] = {}
    for key, value in document.data.items():
        line, column = document.keys.get(key, (0, 0))
        where = Where(file=str(file), line=line, column=column)
        if problem := _key_problem(key, where):
            problems.append(problem)
        else:
            given[key] = _Given(value=value, base=file.parent, source=str(file), where=where)
    problems += configuration.problems(str(file), document) or githosts.problems(str(file), document)
    if problems:
        raise InvalidError(tuple(problems))
    return given


def _key_problem(key: Any, where: Where) -> Problem | None:
    if key in KNOWN:
        return None
    near = get_close_matches(str(key), KNOWN, n=1, cutoff=0.5)
    instead = f"did you mean {near[0]}?" if near else f"known are {', '.join(KNOWN)}"
    return Problem(where=where, what=f"unknown setting {key!r:.80}", instead=instead)
