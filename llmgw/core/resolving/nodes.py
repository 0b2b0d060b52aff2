"""Nodes of Manifests to DesiredNode: addresses settled, pretended facts read, what two nodes must not share."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address

from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Facts
from llmgw.model.manifest import Dirs, FleetSpec, Local, Manifest, Manifests, NodeSpec, Pip
from llmgw.model.problems import Problem, Where
from llmgw.model.struct import Struct
from llmgw.wire.codec import CodecError, loads

LOOPBACK = "127.0.0.1"
CONTROL = re.compile("[\x00-\x1f\x7f]")
_HCA = re.compile(r"[A-Za-z0-9_.-]+(:[0-9]+)?")
_EVERY_INTERFACE = ("0.0.0.0", "::")  # noqa: S104 - named to be refused


def resolve(
    manifests: Manifests, problems: list[Problem], *, renamed: Mapping[str, str]
) -> dict[str, DesiredNode]:
    """By name, in order of names; ``renamed`` is new name to old. What is wrong is added to ``problems``."""
    desired: dict[str, DesiredNode] = {}
    fleet = manifests.fleet.spec if manifests.fleet else None
    pip = fleet.pip if isinstance(fleet, FleetSpec) else Pip()
    read: dict[str, Facts | None] = {}
    for manifest in manifests.nodes:
        spec = manifest.spec
        assert isinstance(spec, NodeSpec)
        problems.extend(_alone(manifest, spec))
        name = manifest.metadata.name
        desired[name] = DesiredNode(
            name=name,
            labels=manifest.metadata.labels,
            spec=spec,
            address=spec.address or (spec.ssh.host if spec.transport == "ssh" and spec.ssh else LOOPBACK),
            where=manifest.where,
            renamed_from=renamed.get(name),
            pretended=_pretended(manifest, spec, manifests.texts, read, problems),
            pip=pip,
        )
    places = [_Place(manifest=manifest, node=desired[manifest.metadata.name]) for manifest in manifests.nodes]
    problems.extend(_shared_addresses(places))
    problems.extend(_shared_folders(places))
    problems.extend(_shared_gpus(places))
    return desired


def pools(manifests: Manifests) -> set[str]:
    return {node.spec.pool for node in manifests.nodes if isinstance(node.spec, NodeSpec)}


class _Place(Struct):
    manifest: Manifest
    node: DesiredNode

    def at(self, path: str) -> Where:
        return self.manifest.at(path)


def _alone(manifest: Manifest, spec: NodeSpec) -> Iterator[Problem]:
    """What is wrong with a node whatever the others say."""
    if spec.ports.from_port > spec.ports.to_port:
        yield Problem(
            what=f"spec.ports goes from {spec.ports.from_port} down to {spec.ports.to_port}",
            instead="write the lower port in `from`",
            where=manifest.at("spec.ports"),
        )
    if spec.address in _EVERY_INTERFACE:
        yield Problem(
            what=f"spec.address is {spec.address}: engines would listen on every interface",
            instead="write the address that other nodes and the gateway reach",
            where=manifest.at("spec.address"),
        )
    host = spec.ssh.host if spec.transport == "ssh" and spec.ssh else ""
    path, address = ("spec.address", spec.address) if spec.address else ("spec.ssh.host", host)
    if _like_an_address(address):
        yield Problem(
            what=f"{path}: {address} is neither an IP address nor a name: programs make another address of such numbers",
            instead="write all four numbers of an IPv4 address, each up to 255",
            where=manifest.at(path),
        )
    yield from _of_its_transport(manifest, spec)
    yield from _fabrics(manifest, spec)
    for name, value in spec.env.items():
        if isinstance(value, str) and (found := CONTROL.search(value)):
            yield Problem(
                what=f"spec.env.{name} holds the control character U+{ord(found[0]):04X}",
                instead="remove it",
                where=manifest.at(f"spec.env.{name}"),
            )


def _like_an_address(address: str) -> bool:
    """Of numbers, as no host's name is, and yet no IP address: the resolver takes 189 for 0.0.0.189."""
    try:
        ip_address(address)
    except ValueError:
        return address.rpartition(".")[2].isdigit()
    return False


def _of_its_transport(manifest: Manifest, spec: NodeSpec) -> Iterator[Problem]:
    """What one way of reaching a node needs, and what makes no sense with it."""
    if spec.transport == "local":
        for path, written, instead in (
            ("spec.ssh", spec.ssh is not None, "write `transport: ssh`, or leave ssh out"),
            ("spec.dirs", spec.dirs != Dirs(), "write local.workDir"),
            (
                "spec.engineUser",
                spec.engine_user is not None,
                "leave it out: engines run as the agent's user",
            ),
        ):
            if written:
                what = f"{path} is for a node that is reached over SSH, but spec.transport is local"
                yield Problem(what=what, instead=instead, where=manifest.at(path))
        return
    if spec.local is not None:
        yield Problem(
            what="spec.local is for a node of this machine, but spec.transport is ssh",
            instead="write `transport: local`, or leave local out",
            where=manifest.at("spec.local"),
        )
    if spec.ssh is None:
        yield Problem(
            what="spec.ssh is missing, and spec.transport is ssh",
            instead="write ssh: {host: …}, or `transport: local` for this machine",
            where=manifest.at("spec.transport"),
        )
    elif spec.ssh.jump and not spec.ssh.jump_host_keys:
        yield Problem(
            what="spec.ssh.jumpHostKeys is missing, so nothing tells the jump host from another machine",
            instead="write its public keys there, as in hostKeys",
            where=manifest.at("spec.ssh.jump"),
        )


def _fabrics(manifest: Manifest, spec: NodeSpec) -> Iterator[Problem]:
    """An adapter belongs to one fabric, and a fabric stands once: else it would not be known which adapters are meant."""
    named: dict[str, int] = {}
    whose: dict[str, str] = {}
    for index, fabric in enumerate(spec.fabrics):
        path = f"spec.fabrics[{index}]"
        if named.setdefault(fabric.name, index) != index:
            yield Problem(
                what=f"{path}.name: the fabric {fabric.name} is there already",
                instead="write all its adapters in one place",
                where=manifest.at(f"{path}.name"),
            )
        for place, hca in enumerate(fabric.hcas):
            at = f"{path}.hcas[{place}]"
            if not _HCA.fullmatch(hca):
                yield Problem(
                    what=f"{at}: {hca!r} is no adapter's name",
                    instead="write it as /sys/class/infiniband has it, such as mlx5_0; mlx5_0:1 is its first port only",
                    where=manifest.at(at),
                )
            device, _, port = hca.partition(":")
            others = {device} if port else {known for known in whose if known.partition(":")[0] == device}
            for other in sorted(others & whose.keys() | ({hca} & whose.keys())):
                yield Problem(
                    what=f"{at}: {hca} is in the fabric {whose[other]} already{f' (as {other})' if other != hca else ''}",
                    instead="an adapter, or each of its ports, belongs to one fabric",
                    where=manifest.at(at),
                )
            whose.setdefault(hca, fabric.name)


def _pretended(
    manifest: Manifest,
    spec: NodeSpec,
    texts: Mapping[str, str],
    read: dict[str, Facts | None],
    problems: list[Problem],
) -> Facts | None:
    if spec.local is None or spec.local.facts is None:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(manifest.where.file), spec.local.facts))
    if path in read:
        return read[path]
    read[path] = None
    try:
        read[path] = loads(Facts, texts[path], strict=True)
    except KeyError:
        what = f"spec.local.facts names {path}, which was not read"
        problems.append(Problem(what=what, instead="correct the path", where=manifest.at("spec.local.facts")))
    except CodecError as wrong:
        instead = "write facts as `llmgw-agent` reports them; examples/pretend-cluster has some"
        problems.append(Problem(what=str(wrong), instead=instead, where=Where(file=path)))
    return read[path]


def _shared_addresses(places: list[_Place]) -> Iterator[Problem]:
    """Nodes of one machine may share an address as long as their engines can't meet on a port."""
    by_address: dict[str, list[_Place]] = {}
    for place in places:
        by_address.setdefault(_written_one_way(place.node.address), []).append(place)
    for address, sharing in by_address.items():
        ordered = sorted(sharing, key=lambda place: (place.node.spec.ports.from_port, place.node.name))
        before = ordered[0]
        for place in ordered[1:]:
            ports, others = place.node.spec.ports, before.node.spec.ports
            local = place.node.spec.transport == before.node.spec.transport == "local"
            if not local:
                yield Problem(
                    what=f"the address {address} is also the node {before.node.name}'s ({before.manifest.where})",
                    instead="every node needs an address of its own",
                    where=place.at("spec.address"),
                )
            elif ports.from_port <= others.to_port:
                yield Problem(
                    what=f"ports {ports.from_port}-{ports.to_port} at {address} overlap with the node "
                    f"{before.node.name}'s {others.from_port}-{others.to_port} ({before.manifest.where})",
                    instead="give each local node a port range of its own (spec.ports)",
                    where=place.at("spec.ports"),
                )
            if ports.to_port > others.to_port:
                before = place


def _written_one_way(address: str) -> str:
    """An IPv6 address can be written in many ways, a host name in large letters or small."""
    try:
        return str(ip_address(address))
    except ValueError:
        return address.lower().rstrip(".")


def _shared_folders(places: list[_Place]) -> Iterator[Problem]:
    """Two agents in one directory would take each other's shards for their own."""
    first: dict[str, _Place] = {}
    for place in places:
        spec = place.node.spec
        if spec.transport != "local":
            continue
        folder = posixpath.normpath((spec.local or Local()).work_dir)
        other = first.setdefault(folder, place)
        if other is not place:
            yield Problem(
                what=f"the work directory {folder} is also the node {other.node.name}'s ({other.manifest.where})",
                instead="give each local node a directory of its own (spec.local.workDir)",
                where=place.at("spec.local.workDir"),
            )


def _shared_gpus(places: list[_Place]) -> Iterator[Problem]:
    """GPUs are known by UUID everywhere, so a pretended one may exist once only."""
    first: dict[str, _Place] = {}
    for place in places:
        told = False
        for gpu in place.node.pretended.gpus if place.node.pretended else ():
            other = first.setdefault(gpu.uuid, place)
            if other is not place and not told:
                told = True
                yield Problem(
                    what=f"the pretended GPU {gpu.uuid} is also the node {other.node.name}'s",
                    instead="give each node a facts file with UUIDs of its own",
                    where=place.at("spec.local.facts"),
                )
