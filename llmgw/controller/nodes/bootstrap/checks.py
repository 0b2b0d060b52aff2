"""What must be so before anything is changed on a machine: pure, everything at once, each with what to do about it."""

from typing import Final

from llmgw.controller.nodes.bootstrap.machine import Folder, Inside, Machine
from llmgw.model.manifest import NodeSpec
from llmgw.model.problems import Problem, StalledError
from llmgw.model.struct import Struct

NEEDED: Final = 256 * 1024 * 1024
"""Bytes below the work directory: two bundles of some 15 MB, the agent's journal and log, and room to breathe."""
MIB: Final = 1024 * 1024
SKEW: Final = 5.0
"""Seconds of difference between the clocks from which times in reports mislead people."""
FAMILIES: Final = {
    "alpine": ("apk add python3", ""),
    "arch": ("pacman -S python", ""),
    "debian": ("apt install python3 python3-venv", "apt install python{version}-venv"),
    "fedora": ("dnf install python3.12", ""),
    "rhel": ("dnf install python3.12", ""),
    "suse": ("zypper install python311", ""),
    "ubuntu": ("apt install python3 python3-venv", "apt install python{version}-venv"),
}
"""For each family: what brings a Python that will do, and what brings a Debian's missing ``venv``."""


class Asked(Struct):
    """What is wanted of the machine, as far as checks go. ``formerly``: what the node was called before."""

    node: str
    formerly: tuple[str, ...] = ()
    fleet: str
    spec: NodeSpec
    take_over: bool = False


def require(machine: Machine, asked: Asked) -> Inside:
    """Raises StalledError with every problem, one a line. Returns what the machine's Python told."""
    found = problems(machine, asked)
    if found or machine.inside is None:
        lines = "".join(f"\n  - {problem}" for problem in found)
        raise StalledError(f"node {asked.node}: this machine can't take an agent as it is:{lines}")
    return machine.inside


def require_space(inside: Inside, asked: Asked) -> None:
    """For another bundle than those that are there. To start one that is there needs none. Raises StalledError."""
    work = inside.folders[0]
    for problem in _space(work.nearest, work.free):
        raise StalledError(f"node {asked.node}: this machine can't take a new agent: {problem}")


def problems(machine: Machine, asked: Asked) -> tuple[Problem, ...]:
    found = [*_rights(machine, asked), *_python(machine, asked)]
    if machine.inside is None:
        return (*found, *_space(machine.nearest, machine.free))
    found += _foreign(machine.inside, asked)
    for index, folder in enumerate(machine.inside.folders):
        # Of the work directory itself _rights has told; of a login that should have been root nothing can be told.
        told = not machine.root and (index == 0 or bool(machine.sudo_refused))
        found += _folder(folder, writable_matters=not told, space_matters=not machine.inside.bundles.agents)
    return tuple(found)


def notes(machine: Machine) -> tuple[str, ...]:
    """What is no obstacle and should still be known."""
    found = []
    if abs(machine.skew) > SKEW:
        way = "ahead" if machine.skew > 0 else "behind"
        found.append(f"its clock is {abs(machine.skew):.0f} s {way}: let it follow a time server")
    inside = machine.inside
    if inside is not None:
        if not inside.python.makes_environments:
            version = ".".join(map(str, inside.python.version))
            found.append(
                f"{inside.python.executable} can't make virtual environments, which engines are installed into"
                f"{_line(machine, venv=True).format(version=version)}"
            )
        found += [
            f"another agent works on this machine, in {work}: both may hand out the same GPUs"
            for work in inside.others
        ]
    return tuple(found)


def _rights(machine: Machine, asked: Asked) -> list[Problem]:
    if machine.sudo_refused:
        return [
            Problem(
                what=f"user {machine.user} can't become root by sudo: {machine.sudo_refused}",
                instead=f"`{machine.user} ALL=(root) NOPASSWD: ALL` in a file of /etc/sudoers.d allows it; or ssh.user: root",
            )
        ]
    if machine.root or machine.writable:
        return []
    become = asked.spec.ssh.become if asked.spec.ssh is not None else "none"
    if become == "sudo":
        return [Problem(what=f"sudo left us as {machine.user}", instead="let sudo make its user root")]
    return [
        Problem(
            what=f"user {machine.user} is not root and may not write to {machine.nearest}",
            instead="set ssh.become: sudo, or ssh.user: root, or dirs.work to a directory of that user",
        )
    ]


def _python(machine: Machine, asked: Asked) -> list[Problem]:
    if machine.inside is None:
        seen = "; ".join(machine.seen) or "none"
        if asked.spec.python:
            return [
                Problem(
                    what=f"python: {asked.spec.python} won't do, Python 3.10 or newer is needed ({seen})",
                    instead="name another, or leave python out to take the newest there is",
                )
            ]
        return [Problem(what=f"Python 3.10 or newer is needed; found: {seen}{_line(machine)}")]
    python = machine.inside.python
    found = []
    if python.lacks:
        what = f"{python.executable} lacks {', '.join(python.lacks)}"
        found.append(Problem(what=what, instead="name a complete Python in python"))
    if python.free_threaded:
        what = f"{python.executable} is a free-threaded build, for which too few packages are made"
        found.append(Problem(what=what, instead="name an ordinary one in python"))
    if asked.spec.engine_user and machine.root and not python.open:
        what = f"{python.executable} can't be run by others, so not by engineUser {asked.spec.engine_user}"
        found.append(
            Problem(what=what, instead="name one in python that everybody may run, such as /usr/bin/python3")
        )
    return found


def _line(machine: Machine, *, venv: bool = False) -> str:
    """``: on Debian GNU/Linux 12: sudo apt install …``."""
    for name in machine.os_ids:
        if name in FAMILIES:
            line = FAMILIES[name][1 if venv else 0]
            if not line:
                return ""
            older = (
                ""
                if venv or not machine.seen
                else "; where that brings an older one, put a newer anywhere and name it in python"
            )
            return f": on {machine.os_name or name}: `sudo {line}`{older}"
    return ": install one, or name one in python"


def _foreign(inside: Inside, asked: Asked) -> list[Problem]:
    owner = inside.owner
    if owner is None or not owner.node or asked.take_over:
        return []
    if owner.fleet not in (None, asked.fleet):
        return [
            Problem(
                what=f"its agent belongs to fleet {owner.fleet}, as node {owner.node}; this is fleet {asked.fleet}",
                instead=f"remove it from that fleet, or `llmgw node adopt {asked.node} --take-over`",
            )
        ]
    if owner.node not in (asked.node, *asked.formerly):
        return [
            Problem(
                what=f"its agent is that of node {owner.node} of the same fleet",
                instead=f"one machine is one node; where that one has become {asked.node}, write llmgw/renamed-from: {owner.node} under"
                f" its metadata.annotations; to make it another node all the same: `llmgw node adopt {asked.node} --take-over`",
            )
        ]
    return []


def _folder(folder: Folder, *, writable_matters: bool, space_matters: bool) -> list[Problem]:
    if not folder.is_folder:
        return [
            Problem(what=f"{folder.path}: {folder.nearest} is no directory", instead="choose another in dirs")
        ]
    if folder.read_only:
        what = f"{folder.path}: {folder.nearest} lies on a file system that is mounted read-only"
        return [Problem(what=what, instead="see the kernel's log, or choose another in dirs")]
    found = []
    if not folder.writable and writable_matters:
        found.append(
            Problem(
                what=f"{folder.path}: {folder.nearest} can't be written", instead="choose another in dirs"
            )
        )
    if folder.no_exec:
        what = (
            f"{folder.path}: {folder.nearest} lies on a file system mounted noexec, nothing there can be run"
        )
        found.append(Problem(what=what, instead="mount it without noexec, or choose another in dirs"))
    return [*found, *_space(folder.nearest, folder.free)] if space_matters else found


def _space(path: str, free: int | None) -> list[Problem]:
    if free is None or free >= NEEDED:
        return []
    return [
        Problem(
            what=f"{path} has {free // MIB} MiB free, {NEEDED // MIB} MiB are needed",
            instead="free some, or choose another in dirs",
        )
    ]
