"""Wire one real fleet: settings to mirror, record, transports, secret, lock and clock."""

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import llmgw
from llmgw.clock import Clock, SystemClock
from llmgw.controller.fleet import Fleet
from llmgw.controller.nodes.local import LocalTransport
from llmgw.controller.nodes.ssh import hostkeys
from llmgw.controller.nodes.ssh.login import Surroundings
from llmgw.controller.nodes.ssh.transport import SshTransport
from llmgw.controller.passes import endpoints
from llmgw.controller.passes.keyring import keyring
from llmgw.controller.repo.access import Access, Pins, Token, https_host
from llmgw.controller.repo.git import Git, GitEnvironment
from llmgw.controller.repo.locks import FLEET_LOCK, FileLock
from llmgw.controller.repo.mirror import Mirror
from llmgw.controller.repo.objects import ObjectStore
from llmgw.controller.repo.state_branch import GitRecordStore
from llmgw.controller.secrets import SecretStore, resolve
from llmgw.controller.settings import Settings
from llmgw.controller.source import GitSource, desired_of_folder
from llmgw.controller.vouching import Vouching
from llmgw.controller.weights.cache import Cache
from llmgw.controller.weights.remote import RemoteWeights
from llmgw.controller.worktree import WorkTree
from llmgw.engines.registry import ADAPTERS
from llmgw.model.desired import Desired
from llmgw.model.ids import FleetId
from llmgw.model.manifest import Secret
from llmgw.model.problems import StalledError, Where
from llmgw.model.record import Record
from llmgw.model.struct import Struct
from llmgw.redaction import Redactor

if TYPE_CHECKING:
    from llmgw.controller.nodes.bootstrap.install import Bootstrap


def _nobody_listens(_: str) -> None:
    """For those whom nobody watches."""


SECRET_VARIABLE = "LLMGW_SECRET"  # noqa: S105 - the variable's name, not what it holds


class Opened(Struct):
    """A fleet, and what only the command line needs beside it."""

    fleet: Fleet
    settings: Settings
    store: GitRecordStore
    mirror: Mirror
    local: LocalTransport
    ssh: SshTransport
    around: Surroundings
    bootstrap: "Callable[[], Bootstrap]"

    @property
    def work_tree(self) -> Path | None:
        """Top of the repository's own work tree, or of the clone of it that this was run in."""
        own, here = self.settings.work_tree, self.settings.enclosing
        if own is not None or here is None or not (here / ".git").exists():
            return own
        clone = WorkTree(top=here, environ=self.fleet.environment)
        return here if clone.is_clone_of(self.settings.repo) else None

    async def followed(self) -> str | None:
        """The branch that commits must be on to be applied; None: the one that the work tree is on, whichever it is."""
        if self.settings.branch is not None or self.settings.work_tree is not None:
            return self.settings.branch
        return await self.mirror.branch()

    def worktree(self, key_id: str) -> Desired:
        """What lies in the manifests' work tree right now."""
        top = self.work_tree
        if top is None:
            raise StalledError(
                f"{self.settings.repo} has no work tree here: run this in a clone, or plan a commit"
            )
        return desired_of_folder(top, self.folder(top), key_id=key_id, adapters=ADAPTERS)

    def write_endpoints(self, record: Record) -> None:
        """Where the settings name a file for them, it is true after every pass."""
        path = self.settings.endpoints_file
        if path is not None:
            found = endpoints.reachable(record, keyring(self.fleet, record))
            endpoints.write(endpoints.as_json(found, record), path)

    def folder(self, top: Path) -> str | None:
        """Where the manifests lie in the work tree; None: where they usually do."""
        if self.settings.path is not None:
            return self.settings.path
        base = self.settings.base
        if base == ".":
            return None
        usual = f"{base}/manifests"
        return usual if (top / usual).is_dir() else base


@asynccontextmanager
async def opened(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    redactor: Redactor,
    trigger: str = "manual",
    clock: Clock | None = None,
    told: Callable[[str], None] = _nobody_listens,
) -> AsyncIterator[Opened]:
    """The fleet that the settings name; its transports are closed at the end. ``told`` hears of long fetches and mended mirrors."""
    clock = clock or SystemClock()
    home = Path(environ.get("HOME") or "/")
    access = _access(settings, environ, learn=redactor.learn)
    git = Git(GitEnvironment.of(environ), redact=redactor, access=access)
    mirror, store = _repositories(settings, git, clock, told)
    local = LocalTransport(home=home, environ=environ)
    around = Surroundings(home=home, environ=environ, identity=settings.ssh_identity)
    bootstrap = _bootstrap(settings, environ, clock)
    over_ssh = SshTransport(around, bootstrapper=bootstrap)
    fleet = Fleet(
        name=settings.name,
        source=GitSource(mirror, ADAPTERS, vouch=_vouching(settings, mirror, store, environ)),
        store=store,
        remembered=store.read_cached,
        last_known=mirror.last_known,
        transports={"local": local, "ssh": over_ssh},
        adapters=ADAPTERS,
        clock=clock,
        secret=_secret(settings, environ, git, redactor),
        lock=_lock(settings, clock),
        first_id=FleetId(f"fleet-{secrets.token_hex(8)}"),
        holder=settings.holder,
        lease=timedelta(seconds=settings.lease),
        agent_build=_agent_build,
        actor=settings.holder,
        trigger=trigger,
        environment=environ,
        learn=redactor.learn,
        remote_weights=RemoteWeights(
            Cache(settings.state_dir / "weights"), environment=environ, learn=redactor.learn
        ),
    )
    try:
        yield Opened(
            fleet=fleet,
            settings=settings,
            store=store,
            mirror=mirror,
            local=local,
            ssh=over_ssh,
            around=around,
            bootstrap=bootstrap,
        )
    finally:
        await over_ssh.close()
        await local.close()


def _repositories(
    settings: Settings, git: Git, clock: Clock, told: Callable[[str], None]
) -> tuple[Mirror, GitRecordStore]:
    """The manifests and the record, read through one mirror."""
    objects = ObjectStore(
        settings.state_dir,
        git=git,
        clock=clock,
        holder=settings.holder,
        fetch_timeout=settings.fetch_timeout,
        partial=settings.partial_clone,
        told=told,
    )
    mirror = Mirror(objects, settings.repo, branch=settings.branch, path=settings.path, base=settings.base)
    store = GitRecordStore(
        objects, settings.state_repo, ref=settings.state_ref, author=settings.holder, clock=clock
    )
    return mirror, store


def _secret(settings: Settings, environ: Mapping[str, str], git: Git, redactor: Redactor) -> SecretStore:
    return SecretStore(
        path=settings.secret_file,
        given=environ.get(SECRET_VARIABLE) or None,
        work_tree=settings.work_tree,
        redactor=redactor,
        git=git,
    )


def _access(settings: Settings, environ: Mapping[str, str], *, learn: Callable[[str], object]) -> Access:
    """How Git hosts are entered."""
    hosts = settings.hosts
    keys = tuple(map(hostkeys.parse, hosts.host_keys))
    pins = Pins(
        keys=keys,
        where=str(hosts.places.get("hostKeys", "hostKeys")),
        file=settings.state_dir / "git_host_keys",
    )
    return Access(
        identity=settings.git_identity,
        pins=pins if keys else None,
        tokens=_tokens(settings, environ, learn=learn),
        ca_file=settings.ca_file,
    )


def _tokens(
    settings: Settings, environ: Mapping[str, str], *, learn: Callable[[str], object]
) -> Mapping[str, Token]:
    """For the repositories of the manifests and of the record. The first one's token goes to the second one's host too where that
    is the same host, and the record has none of its own."""

    def token(name: str, reference: Secret, user: str) -> Token:
        def value() -> str:
            found = resolve(reference, environ)
            learn(found)
            if "\n" in found or "\r" in found:
                raise StalledError(
                    f"looking up {name}: it has several lines: write the token alone, in one line"
                )
            return found

        return Token(value=value, user=user)

    hosts, repo, state = settings.hosts, settings.repo.address, settings.state_repo.address
    found: dict[str, Token] = {}
    if hosts.token is not None:
        found[repo] = token("token", hosts.token, settings.token_user)
        if https_host(state) == https_host(repo):
            found[state] = found[repo]
    if hosts.state_token is not None:
        found[state] = token("stateToken", hosts.state_token, settings.state_token_user)
    return found


def _vouching(
    settings: Settings, mirror: Mirror, store: GitRecordStore, environ: Mapping[str, str]
) -> Vouching:
    where = settings.hosts.places.get("verify")
    return Vouching(
        mirror=mirror,
        store=store,
        verify=settings.hosts.verify,
        where=where,
        own=settings.hosts.verify is not None and not _in_work_tree(where, settings),
        home=Path(environ.get("HOME") or "/"),
    )


def _in_work_tree(where: Where | None, settings: Settings) -> bool:
    """Whether a setting lies where commits are checked out: what stands there may be what is to be examined."""
    return settings.file_in_repository and where is not None and where.file == str(settings.file)


def _bootstrap(settings: Settings, environ: Mapping[str, str], clock: Clock) -> "Callable[[], Bootstrap]":
    """Made when a machine needs it: most plans set none up, and it takes a tenth of their start to import."""

    @cache
    def made() -> "Bootstrap":
        from llmgw.controller.nodes.bootstrap.bundle import Bundles  # noqa: PLC0415 - see above
        from llmgw.controller.nodes.bootstrap.install import Bootstrap  # noqa: PLC0415
        from llmgw.controller.nodes.bootstrap.wheels import Wheels  # noqa: PLC0415

        wheels = Wheels(
            cache=settings.state_dir / "wheels", home=Path(environ.get("HOME") or "/"), environ=environ
        )
        return Bootstrap(
            bundles=Bundles(settings.state_dir / "bundles", wheels), environ=environ, clock=clock
        )

    return made


def _agent_build() -> str:
    from llmgw.controller.nodes.bootstrap.build import build_of  # noqa: PLC0415 - a plan that asks no node needs none

    return build_of(Path(llmgw.__file__).parent)


def _lock(settings: Settings, clock: Clock) -> Callable[[float], AbstractAsyncContextManager[object]]:
    """The lock of this machine, waiting so many seconds for whoever holds it."""
    file = FileLock(
        settings.state_dir / FLEET_LOCK,
        clock=clock,
        holder=settings.holder,
        what=f"applying to {settings.repo}",
    )
    return lambda timeout: file.held(timeout=timeout)
