"""From a machine that was looked at to a Node of the manifests: its name, address, expectations and file. Pure: looking,
asking and writing are done elsewhere."""

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from llmgw.controller.nodes.ssh.hostkeys import HostKey, parse
from llmgw.core.amounts import plural, size
from llmgw.manifests import paths
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts, Interface
from llmgw.model.ids import NAME_PATTERN
from llmgw.model.manifest import Expect, Manifest, Manifests, NodeSpec, Ssh
from llmgw.model.problems import StalledError, Where
from llmgw.model.struct import Struct, replace

NODES_FOLDER: Final = "nodes"
_HOST: Final = re.compile(
    r"^(?:(?P<user>[^@\s]+)@)?(?:\[(?P<v6>[0-9A-Fa-f:.%a-z]+)\]|(?P<host>[^\s:@\[\]]+))(?::(?P<port>\d{1,5}))?$"
)
_NOT_FOR_ENGINES: Final = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "tun", "tap")
"""Names of interfaces whose addresses other machines do not reach."""


class Door(Struct):
    """``[user@]host[:port]``, taken apart."""

    host: str
    user: str | None = None
    port: int | None = None


def door(written: str) -> Door:
    """Raises StalledError for what is no place to log in to."""
    bare = _is_address(written)
    found = None if bare else _HOST.match(written)
    if bare:
        return Door(host=written)
    if found is None or (found["port"] and not 0 < int(found["port"]) < 65536):
        raise StalledError(
            f"adding {written!r:.200}: write a host name or an address, [user@]host[:port], an IPv6 address with a port in"
            " brackets"
        )
    return Door(
        host=found["v6"] or found["host"],
        user=found["user"],
        port=int(found["port"]) if found["port"] else None,
    )


# ---- what it may be called -----------------------------------------------------------------------------------


def name_of(host: str, facts: Facts) -> str:
    """The first part of the host's name; for an address what the machine calls itself. StalledError when neither is a name."""
    said = facts.hostname if _is_address(host) else host
    name = said.lower().partition(".")[0].replace("_", "-")
    if not re.match(NAME_PATTERN, name) or name == "localhost":
        raise StalledError(
            f"adding {host}: the machine calls itself {said!r:.80}, which is no name for a node: give one with --name"
        )
    return name


def check_name(name: str) -> None:
    if not re.match(NAME_PATTERN, name):
        raise StalledError(
            f"{name!r:.80} is no name for a node: lower-case letters, digits, dots and dashes, at most 63, beginning and ending"
            " with a letter or digit"
        )


def refuse_taken(manifests: Manifests, *, name: str | None, host: str, port: int, address: str) -> None:
    """StalledError naming the manifest that has the name, the way or the address already."""
    for manifest in manifests.nodes:
        spec = _spec(manifest)
        other = manifest.metadata.name
        if name is not None and other == name:
            raise StalledError(
                f"adding node {name}: {manifest.where} describes a node of that name already: give another with --name, or edit"
                " that file"
            )
        if spec.ssh is not None and (spec.ssh.host.lower(), spec.ssh.port) == (host.lower(), port):
            raise StalledError(
                f"adding {host}: {manifest.where} reaches {other} there already: one machine is one node"
            )
        taken = spec.address or (spec.ssh.host if spec.ssh is not None else None)
        if taken is not None and taken.lower() == address.lower():
            raise StalledError(
                f"adding {host}: its engines would listen on {address}, which is the address of node {other} ({manifest.where}):"
                " give another with --address"
            )


# ---- whether it is the machine that is meant -----------------------------------------------------------------


def refuse_known_keys(manifests: Manifests, keys: Iterable[HostKey], *, host: str) -> None:
    """A host key belongs to one machine: the same under two names is one machine twice, or a copied disk."""
    shown = frozenset(keys)
    for manifest in manifests.nodes:
        ssh = _spec(manifest).ssh
        pinned = frozenset(_parsed(ssh.host_keys)) if ssh is not None else frozenset()
        if same := sorted(str(key) for key in shown & pinned):
            raise StalledError(
                f"adding {host}: it shows the host key {same[0]}, which is that of node {manifest.metadata.name}"
                f" ({manifest.where}): it is the same machine under another name, or its disk was copied; then give it keys of its"
                " own first: rm /etc/ssh/ssh_host_*; ssh-keygen -A; restart its SSH server"
            )


def _parsed(lines: Iterable[str]) -> Iterator[HostKey]:
    """What is no key is told by the login that needs it."""
    for line in lines:
        with suppress(ValueError):
            yield parse(line)


def chosen(keys: Sequence[HostKey], fingerprints: Sequence[str], *, host: str) -> tuple[HostKey, ...]:
    """Those that a person vouches for by fingerprint. StalledError when one of them is not shown."""
    by_print = {key.fingerprint: key for key in keys}
    for wanted in fingerprints:
        if not wanted.startswith("SHA256:"):
            raise StalledError(
                f"the host key {wanted!r:.100} is no fingerprint: write it as `ssh-keygen -lf` shows it, SHA256:…"
            )
        if wanted.rstrip("=") not in by_print:
            shown = "; ".join(str(key) for key in keys)
            raise StalledError(
                f"adding {host}: it does not show the host key {wanted}, but {shown}: if you trust the place that you have the"
                " fingerprint from, somebody else answers in its place"
            )
    return tuple(by_print[wanted.rstrip("=")] for wanted in fingerprints)


# ---- what its manifest says ----------------------------------------------------------------------------------


def node_of(name: str, spec: NodeSpec, *, file: str) -> DesiredNode:
    """As it will be once the file is there."""
    assert spec.ssh is not None
    return DesiredNode(
        name=name, labels={}, spec=spec, address=spec.address or spec.ssh.host, where=Where(file=file)
    )


def spec_of(draft: NodeSpec, facts: Facts, *, address: str | None) -> tuple[NodeSpec, str]:
    """The draft filled in from the facts, and why that address. ``address``: the one that a person has named."""
    assert draft.ssh is not None
    found, why = (address, "") if address is not None else address_of(draft.ssh, facts)
    return replace(draft, address=found, expect=expect_of(facts)), why


def address_of(ssh: Ssh, facts: Facts) -> tuple[str | None, str]:
    """Where engines should listen, None: the default, which is ssh.host; and a remark. StalledError when none is left."""
    usable = _usable(facts.interfaces)
    holder = {address: interface.name for interface, address in usable}
    for interface in facts.interfaces:
        if ssh.host in interface.addresses:
            return None, f"{interface.name} holds it"
    if not usable:
        if _is_address(ssh.host):
            return None, "no interface was seen to hold it"
        raise StalledError(
            f"adding {ssh.host}: no address of it was found that engines could listen on: name one with --address"
        )
    first = usable[0][1]
    others = ", ".join(address for _, address in usable[1:4])
    return first, f"{holder[first]} holds it{f'; others are {others}' if others else ''}"


def _usable(interfaces: Iterable[Interface]) -> list[tuple[Interface, str]]:
    """Addresses that others may reach: IPv4 before IPv6, in the order of the interfaces."""
    found = [
        (interface, address)
        for interface in interfaces
        if interface.up and not interface.name.startswith(_NOT_FOR_ENGINES)
        for address in interface.addresses
        if _reachable(address)
    ]
    return sorted(found, key=lambda pair: ":" in pair[1])


def _reachable(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def expect_of(facts: Facts) -> Expect:
    """Whole GPUs. A class only where all are of one."""
    whole = [gpu for gpu in facts.gpus if gpu.parent is None]
    classes = {gpu.gpu_class for gpu in whole}
    return Expect(gpus=len(whole), gpu_class=classes.pop() if len(classes) == 1 else None)


def file_of(manifests: Manifests, name: str, *, folder: str) -> str:
    """Beside the other Node manifests where those lie together, else in ``nodes/`` of the fleet's folder."""
    others = {paths.parent(manifest.where.file) for manifest in manifests.nodes}
    usual = paths.join(folder, NODES_FOLDER) or NODES_FOLDER
    mine = {one for one in others if paths.below(f"{one}/x", folder) is not None}
    where = usual if usual in mine or len(mine) != 1 else mine.pop()
    return paths.join(where, f"{name}.yaml") or f"{name}.yaml"


def described(facts: Facts) -> list[tuple[str, str]]:
    """What the machine is, for people: one line each."""
    told = [("host name", facts.hostname)]
    system = ", ".join(part for part in (facts.os, f"kernel {facts.kernel}", facts.arch, facts.libc) if part)
    told.append(("system", system))
    told.append(("processors", str(facts.cpus)))
    told.append(("memory", size(facts.memory_total)))
    told += _gpus(facts)
    told += [("disk", f"{disk.path}: {size(disk.free)} of {size(disk.total)} free") for disk in facts.disks]
    told += [
        ("network", f"{one.name}: {', '.join(one.addresses)}")
        for one in facts.interfaces
        if one.addresses and one.name != "lo"
    ]
    told += [("adapter", adapter) for adapter in adapters(facts)]
    told.append(("python", facts.python))
    told += [("problem", problem) for problem in facts.problems]
    return told


def _gpus(facts: Facts) -> list[tuple[str, str]]:
    counted = Counter((gpu.name, gpu.gpu_class, gpu.memory_total) for gpu in facts.gpus if gpu.parent is None)
    told = [
        ("GPUs", f"{count} x {name} ({gpu_class}, {size(memory)} each)")
        for (name, gpu_class, memory), count in sorted(counted.items())
    ]
    if facts.driver:
        told.append(("driver", facts.driver))
    return told or [("GPUs", "none found")]


def adapters(facts: Facts) -> list[str]:
    return [
        f"{port.device} port {port.port}: {port.link_layer}, {port.state}"
        + (f", {port.rate:g} Gb/s" if port.rate and port.state == "ACTIVE" else "")
        for port in facts.hca_ports
    ]


def remark_lines(facts: Facts) -> list[str]:
    """What a manifest's comment tells of the machine: what a reader years later still wants to know."""
    gpus = "; ".join(text for key, text in _gpus(facts) if key == "GPUs") if facts.gpus else "No GPU"
    return [
        f"{gpus}. {plural(facts.cpus, 'processor')}, {size(facts.memory_total)} of memory, {facts.os or facts.kernel}, {facts.arch}.",
        "As it was when it was added; `llmgw node show` tells what it is now.",
    ]


def _spec(manifest: Manifest) -> NodeSpec:
    assert isinstance(manifest.spec, NodeSpec)
    return manifest.spec
