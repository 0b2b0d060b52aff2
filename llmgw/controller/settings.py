"""The controller's own settings: one name each, from a flag, the environment or ``llmgw.yaml``, in that order."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmgw.controller import githosts
from llmgw.controller.githosts import GitHosts
from llmgw.controller.given import Given, absolute, beside, flag, given, read_file, variable
from llmgw.controller.readings import Reader
from llmgw.controller.repo.access import USER as DEFAULT_TOKEN_USER
from llmgw.controller.repo.objects import FETCH_TIMEOUT as DEFAULT_FETCH_TIMEOUT
from llmgw.controller.repo.refs import repository_path
from llmgw.controller.repo.remote import Remote
from llmgw.controller.serving import configuration
from llmgw.controller.serving.configuration import Serving
from llmgw.model.ids import digest
from llmgw.model.problems import InvalidError, Problem, Where
from llmgw.model.record import LEASE
from llmgw.model.struct import Struct, replace

DEFAULT_STATE_REF = "llmgw/state"
DEFAULT_POLL, DEFAULT_RESYNC = 30.0, 300.0  # seconds
LEAST_LEASE = 10.0  # seconds; a push over a slow line must fit in several times

TOKENS = {"token": "repo", "stateToken": "stateRepo"}
"""Each with the setting that names the host which gets it."""


class Settings(Struct):
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
    file = absolute(named, cwd, environ) if named else beside(cwd, top)
    written = read_file(file, must=named is not None) if file else {}
    plain = given(flags=flags, environ=environ, written=written, cwd=cwd)
    reader = Reader(plain, environ)
    settings = _settle(reader, cwd=cwd, top=top, file=file, named=named is not None)
    if reader.problems:
        raise InvalidError(tuple(reader.problems))
    assert settings is not None
    parts = {name: written[name].value for name in configuration.NAMES if name in written}
    settings = replace(settings, hosts=_git_hosts(environ, written), serving=configuration.serving(parts))
    _check_tokens(settings, plain)
    if settings.file_in_repository and (sends := settings.serving.notices.with_token):
        raise InvalidError((_committed_notice(sends, written["notices"].where),))
    return settings


def _check_tokens(settings: Settings, plain: Mapping[str, Given]) -> None:
    for name, repository in TOKENS.items():
        if (place := settings.hosts.places.get(name)) is None:
            continue
        if settings.file_in_repository:
            _refuse_committed_token(name, place, settings.file, repo=plain.get(repository))
        if name == "stateToken" and settings.state_repo.address == settings.repo.address:
            raise InvalidError((_token_of_no_repository(place),))


def _committed_notice(sends: str, where: Where | None) -> Problem:
    """For the same reason as a token for Git: who commits would choose the file, and the host that it is sent to."""
    return Problem(
        what=f"{sends} sends a token, and stands in a file of a repository, where whoever commits could have any file of this machine sent"
        " to a host of theirs",
        instead="write notices in a llmgw.yaml outside of any repository (--config, LLMGW_CONFIG)",
        where=where,
    )


def _git_hosts(environ: Mapping[str, str], written: Mapping[str, Given]) -> GitHosts:
    """A variable goes before the file. Raises InvalidError with every problem of the variables."""
    values: dict[str, Any] = {}
    places: dict[str, Where] = {}
    problems: list[Problem] = []
    for name in githosts.NAMES:
        if text := environ.get(variable(name)):
            value, wrong = githosts.in_variable(name, variable(name), text)
            problems += wrong
            values[name], places[name] = value, Where(file=variable(name))
        elif (each := written.get(name)) is not None and each.where is not None:
            values[name], places[name] = each.value, each.where
    if problems:
        raise InvalidError(tuple(problems))
    return githosts.git_hosts(values, places)


def _token_of_no_repository(place: Where) -> Problem:
    return Problem(
        what="stateToken is for a stateRepo, and the record lies in repo",
        instead="write token, which is for both, or name the record's own repository in stateRepo",
        where=place,
    )


def _refuse_committed_token(name: str, place: Where, file: Path | None, *, repo: Given | None) -> None:
    """Neither the token nor the host that gets it may be named by a file that others commit to: they could have any file of
    this machine sent to a host of theirs."""
    outside = "in a llmgw.yaml outside of any repository (--config, LLMGW_CONFIG)"
    if place.file == str(file):
        what = f"{name} stands in a file of a repository, where a commit could send it to another host"
        instead = f"name it in {variable(name)}, or {outside}"
        raise InvalidError((Problem(where=place, what=what, instead=instead),))
    if repo is not None and repo.where is not None and "https://" in str(repo.value):
        setting = TOKENS[name]
        what = f"the host that gets the {name} is named in a file of a repository, where a commit could name another"
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


def _settle(
    reader: Reader, *, cwd: Path, top: Path | None, file: Path | None, named: bool
) -> Settings | None:
    repo = reader.remote("repo", default=top)
    state_repo = reader.remote("stateRepo") or repo
    if repo is None or state_repo is None:
        if not reader.problems:
            reader.problems.append(_nowhere(cwd))
        return None
    work_tree = repo.local if repo.local and (repo.local / ".git").exists() else None
    base = "."
    if file is not None and work_tree is not None and file.parent.is_relative_to(work_tree):
        base = str(file.parent.relative_to(work_tree))
    branch = reader.branch("branch")
    path = reader.checked("path", lambda text: repository_path(text, what="path"))
    state_ref = reader.branch("stateRef") or DEFAULT_STATE_REF
    if branch == state_ref and repo.address == state_repo.address:
        reader.problems.append(_one_branch_for_both(branch))
    name = _fleet_name(repo, path or base, state_repo, state_ref)
    state_dir = reader.path("stateDir") or reader.default_state_dir(name)
    return Settings(
        repo=repo,
        branch=branch,
        path=path,
        base=base,
        state_repo=state_repo,
        state_ref=state_ref,
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


def _nowhere(cwd: Path) -> Problem:
    return Problem(
        what=f"{cwd} is in no Git repository, and none is named",
        instead="run this in the manifests' repository, or name it with --repo",
    )


def _one_branch_for_both(branch: str) -> Problem:
    return Problem(
        what=f"branch and stateRef are both {branch}", instead="keep the record on a branch of its own"
    )


def _checked_out(file: Path, *, named: bool, work_tree: Path | None) -> bool:
    """Whether the file may be part of what is to be applied: it lies in the manifests' work tree, or in some repository where it
    was found and not named."""
    if work_tree is not None and file.is_relative_to(work_tree):
        return True
    return not named and enclosing_repository(file.parent) is not None


def _fleet_name(repo: Remote, path: str, state_repo: Remote, state_ref: str) -> str:
    """The same for every run against the same repository, path and state branch, wherever it keeps its state."""
    last = repo.address.rstrip("/").removesuffix("/.git").removesuffix(".git").rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last.rpartition(":")[2]).strip(".-") or "fleet"
    return f"{name}-{digest([repo.address, path, state_repo.address, state_ref])[:8]}"
