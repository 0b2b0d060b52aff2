"""Bootstrap: the steps from a machine to one whose agent answers, and from there to a machine without one.

Every step looks before it does, and what has its final name is whole. So it may be cut off anywhere: the next one finishes it.
Engines are never touched.
"""

import hashlib
import json
import posixpath
import shlex
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from llmgw import __version__
from llmgw.clock import Clock
from llmgw.controller.nodes import layout
from llmgw.controller.nodes.agentsettings import agent_settings, may_stay, pretended_bytes
from llmgw.controller.nodes.bootstrap import checks, unit
from llmgw.controller.nodes.bootstrap.bundle import Bundle, Bundles
from llmgw.controller.nodes.bootstrap.checks import Asked
from llmgw.controller.nodes.bootstrap.look import Wanted, look
from llmgw.controller.nodes.bootstrap.machine import Inside, Machine
from llmgw.controller.nodes.bootstrap.programs import Place, call
from llmgw.controller.nodes.bootstrap.shell import Shell
from llmgw.controller.nodes.bootstrap.target import target_of
from llmgw.model.desired import DesiredNode
from llmgw.model.manifest import NodeSpec
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct, field, replace
from llmgw.wire import codec
from llmgw.wire.messages import HelloResult
from llmgw.wire.setup import PRETENDED, SETTINGS, AgentSettings

UP_WITHIN: Final = 60.0
"""Seconds for a started agent to listen: Python's start and the adoption of what runs, on a machine that is busy."""


class Installed(Struct):
    """What a bootstrap has come to. ``notes`` are for a person: what is not as one would wish it."""

    changed: bool
    digest: str
    notes: tuple[str, ...] = ()


class Setup(Struct):
    """What the machine should have in the end, settled before anything is changed."""

    node: str
    work: str
    service: str
    bundle: Bundle
    launcher: bytes
    settings: AgentSettings
    pretended: bytes
    boot: unit.BootEntry
    shared: tuple[str, ...]
    command: str

    @property
    def settings_file(self) -> bytes:
        return (json.dumps(codec.to_json(self.settings), indent=2) + "\n").encode()

    @property
    def settings_digest(self) -> str:
        return self.settings.digest(self.pretended)


class Bootstrap(Struct):
    """``environ`` is where the node's ``fromEnv`` values come from; ``told`` hears what is being done."""

    bundles: Bundles
    environ: Mapping[str, str]
    clock: Clock
    up_within: float = UP_WITHIN
    told: Callable[[str], None] = field(default=lambda _: None)

    async def look(self, shell: Shell, node: DesiredNode) -> Machine:
        """Read only."""
        return await look(shell, _wanted(node), self.clock)

    async def install(
        self,
        shell: Shell,
        node: DesiredNode,
        *,
        fleet: str,
        take_over: bool = False,
        downgrade: bool = False,
    ) -> Installed:
        """Installs, upgrades or mends what is there; nothing where all is as it should be. Done when the agent listens: the
        caller's ``hello`` is the proof.

        Raises StalledError with everything that a person must do, RetryError where the next try may find the line whole."""
        machine = await self.look(shell, node)
        asked = Asked(
            node=node.name, formerly=node.formerly, fleet=fleet, spec=node.spec, take_over=take_over
        )
        inside = checks.require(machine, asked)
        place = self._place(shell, node, inside)
        bundle = await self.bundles.bundle(target_of(inside), node.pip)
        notes = list(checks.notes(machine))
        # The engine user is part of the settings, so it is known, or made, before they are compared.
        agent_settings(
            node, fleet, self.environ, engine_user=None
        )  # secrets that are missing are told before
        engine_user, note = await self._engine_user(place, node, machine, inside)
        setup = _setup(
            node, fleet, self.environ, inside=inside, bundle=bundle, root=machine.root, user=engine_user
        )
        notes += [text for text in (note, setup.boot.note) if text]
        if _is_so(inside, setup) or (not downgrade and _newer_stays(inside, setup)):
            self.told("the agent runs already")
            return Installed(changed=False, digest=inside.bundles.current or "", notes=tuple(notes))
        if bundle.digest not in inside.bundles.agents:
            checks.require_space(inside, asked)
        await self._carry_out(place, inside, setup)
        return Installed(changed=True, digest=bundle.digest, notes=tuple(notes))

    async def uninstall(
        self, shell: Shell, node: DesiredNode, *, fleet: str, everything: bool = False
    ) -> tuple[str, ...]:
        """Stops the agent and takes bundle, settings and boot entry away. Engines that run, their orders, weights and installed
        engines stay, unless ``everything`` is to go: that is refused while shards have orders. Returns what is left."""
        machine = await self.look(shell, node)
        asked = Asked(node=node.name, formerly=node.formerly, fleet=fleet, spec=_without_needs(node))
        inside = checks.require(machine, asked)
        place = self._place(shell, node, inside)
        work, service = (
            layout.work_of(node.name, node.spec),
            layout.service_name(layout.work_of(node.name, node.spec)),
        )
        self.told("stopping the agent")
        await call(place, "service", "stop", work, service, doing="stopping its agent")
        await call(place, "service", "unserve", work, service, doing="taking its boot entry away")
        user = (node.spec.engine_user or layout.ENGINE_USER) if everything else ""
        done = await call(
            place,
            "setup",
            "remove",
            work,
            user,
            "everything" if everything else "",
            layout.command_link(work) if machine.root else "",
            doing="removing its agent",
        )
        self.told("removed")
        return tuple(done["left"])

    async def bootstrap(
        self, node: DesiredNode, connection: Shell, *, fleet: str, greet: Callable[[], Awaitable[HelloResult]]
    ) -> None:
        """As a transport calls it: installs and is done when the agent answers hello."""
        done = await self.install(connection, node, fleet=fleet)
        for note in done.notes:
            self.told(note)
        await greet()

    # ---- steps -----------------------------------------------------------------------------------

    def _place(self, shell: Shell, node: DesiredNode, inside: Inside) -> Place:
        return Place(node=node.name, shell=shell, python=inside.python.executable, sudo=_sudo(node))

    async def _engine_user(
        self, place: Place, node: DesiredNode, machine: Machine, inside: Inside
    ) -> tuple[str | None, str]:
        """The user that engines run as, None: the agent's own; and what to say about it."""
        named = node.spec.engine_user
        if not machine.root:
            if named:
                raise StalledError(
                    f"node {node.name}: engineUser {named}: only root may start engines as another user, the agent runs as"
                    f" {machine.user}: leave engineUser out, or set ssh.become: sudo"
                )
            return (
                None,
                f"engines run as {machine.user}, as the agent does: only root may give them a user of their own",
            )
        if not inside.python.open:
            return None, (
                f"engines run as root, as the agent does: {inside.python.executable} can't be run by other users; name one in"
                " python that everybody may run to change that"
            )
        name = named or layout.ENGINE_USER
        home = posixpath.join(layout.work_of(node.name, node.spec), "home", name)
        if inside.user is not None and inside.user.uid != 0:
            return name, ""
        self.told(f"making user {name}")
        done = await call(place, "setup", "user", name, home, *inside.groups, doing=f"making user {name}")
        if done["user"]:
            return name, ""
        if named:
            raise StalledError(
                f"node {node.name}: making engineUser {named}: {done['why']}: make that user by hand, or leave engineUser out"
            )
        return None, f"engines run as root, as the agent does: user {name} could not be made: {done['why']}"

    async def _carry_out(self, place: Place, inside: Inside, setup: Setup) -> None:
        work, digest = setup.work, setup.bundle.digest
        user = setup.settings.engine_user or ""
        await call(place, "setup", "lay-out", work, user, *setup.shared, doing=f"making {work}")
        if digest not in inside.bundles.agents:
            self.told(f"uploading the agent {__version__}, {len(setup.bundle.data) / 1e6:.1f} MB")
            await call(
                place, "setup", "unpack", work, digest, payload=setup.bundle.data, doing="uploading the agent"
            )
        files = {SETTINGS: setup.settings_file.decode(), PRETENDED: setup.pretended.decode() or None}
        await call(
            place, "setup", "settings", work, payload=json.dumps(files).encode(), doing="writing its settings"
        )
        switched = await call(
            place, "setup", "switch", work, digest, payload=setup.launcher, doing="switching to the new agent"
        )
        if setup.command:
            await call(place, "setup", "name", work, setup.command, doing=f"linking {setup.command}")
        await self._serve(place, setup)
        self.told("starting the agent")
        await call(
            place,
            "service",
            *("start", work, setup.service, setup.boot.way, setup.settings_digest, str(self.up_within)),
            f"{inside.holder.pid}:{inside.holder.start}" if inside.holder is not None else "",
            doing="starting its agent",
            timeout=self.up_within + 120,
        )
        running = inside.holder.bundle if inside.holder is not None else None
        kept = {name for name in (digest, switched["before"], inside.bundles.current, running) if name}
        await call(place, "setup", "prune", work, *sorted(kept), doing="removing older agents")

    async def _serve(self, place: Place, setup: Setup) -> None:
        if setup.boot.way == "none":
            return
        payload = json.dumps({"way": setup.boot.way, "text": setup.boot.text}).encode()
        doing = f"making it start at boot by {setup.boot.way}"
        await call(place, "service", "serve", setup.work, setup.service, payload=payload, doing=doing)


def _wanted(node: DesiredNode) -> Wanted:
    work = layout.work_of(node.name, node.spec)
    dirs = node.spec.dirs
    return Wanted(
        node=node.name,
        work=work,
        service=layout.service_name(work),
        engine_user=node.spec.engine_user or layout.ENGINE_USER,
        python=node.spec.python,
        folders=tuple(folder for folder in (dirs.weights, dirs.engines) if folder),
        sudo=_sudo(node),
    )


def _sudo(node: DesiredNode) -> bool:
    return node.spec.ssh is not None and node.spec.ssh.become == "sudo"


def _without_needs(node: DesiredNode) -> NodeSpec:
    return replace(node.spec, engine_user=None)


def _setup(
    node: DesiredNode,
    fleet: str,
    environ: Mapping[str, str],
    *,
    inside: Inside,
    bundle: Bundle,
    root: bool,
    user: str | None,
) -> Setup:
    work = layout.work_of(node.name, node.spec)
    dirs = node.spec.dirs
    return Setup(
        node=node.name,
        work=work,
        service=layout.service_name(work),
        bundle=bundle,
        launcher=launcher_script(inside.python.executable, work, bundle.digest).encode(),
        settings=replace(agent_settings(node, fleet, environ, engine_user=user), build=bundle.build),
        pretended=pretended_bytes(node),
        boot=unit.boot_entry(inside, work, root=root),
        shared=(dirs.weights or f"{work}/weights", dirs.engines or f"{work}/engines"),
        command=layout.command_link(work) if root else "",
    )


def launcher_script(python: str, work: str, digest: str) -> str:
    """A shell script and not a ``#!`` line of Python's, whose length kernels bound. ``-I -S``: nothing of the machine's or the
    user's Python packages comes in. The bundle is named by its digest, so that a running agent's command line tells which it is."""
    main = f"{work}/agents/{digest}/main.py"
    return f'#!/bin/sh\nexec {shlex.join((python, "-I", "-S", main))} "$@"\n'


def _is_so(inside: Inside, setup: Setup) -> bool:
    """Whether bundle, settings, launcher, boot entry and the running agent are all what they should be."""
    running, owner = inside.holder, inside.owner
    return (
        running is not None
        and owner is not None
        and owner.digest == _digest(setup.settings_file)
        and (inside.pretended or "") == (_digest(setup.pretended) if setup.pretended else "")
        and inside.bundles.current == setup.bundle.digest
        and inside.bundles.launcher == _digest(setup.launcher)
        and _starts_at_boot(inside, setup.boot)
        and running.bundle == setup.bundle.digest
        and running.settings == setup.settings_digest
    )


def _starts_at_boot(inside: Inside, boot: unit.BootEntry) -> bool:
    """By the way that it should; under systemd the running agent must be the unit's, or nobody would restart it."""
    if boot.way == "systemd":
        pid = inside.holder.pid if inside.holder is not None else 0
        return inside.unit == _digest(boot.text.encode()) and inside.main_pid == pid
    return boot.way == "none" or boot.way in inside.boot_entries


def _newer_stays(inside: Inside, setup: Setup) -> bool:
    """An agent of a newer version serves older controllers as well, while nothing about it is to change. Raises StalledError
    rather than putting an older one in its place by the way."""
    running = inside.holder
    version = running.version if running is not None else inside.bundles.version
    if not version:
        return False
    same = running is not None and running.settings == setup.settings_digest
    return may_stay(version=version, same_settings=same, node=setup.node) and version != __version__


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
