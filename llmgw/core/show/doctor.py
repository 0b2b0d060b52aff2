"""What a controller adds to a node's own doctor: how it is reached, whether it is what Git says, and what an engine tells
those who have no key. Decides nothing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from llmgw.core.adapter import OpenPath
from llmgw.core.amounts import names
from llmgw.core.seen.cautions import LOOPBACK, SKEW, clock_text, expectation, unheld_address
from llmgw.core.symptoms import symptoms
from llmgw.model.checkup import Check, Checkup, fail, warn, well
from llmgw.model.desired import DesiredNode
from llmgw.model.report import NodeObservation, Reach
from llmgw.model.struct import Struct, field
from llmgw.wire.messages import Knocked

SLOW = 2.0
"""Seconds to connect and greet from which a pass over many nodes feels it."""
ANSWERS = frozenset({"open", "refused"})
REFUSALS = frozenset({401, 403})
NOT_THERE = 404
NO_ANSWER = 0


class Knock(Struct):
    """One port of the node, asked by node ``by``. ``shard`` and ``engine`` where one is known to listen there; ``error``: why
    the other node could not be made to ask."""

    by: str
    port: int
    knocked: Knocked | None = None
    shard: str = ""
    engine: str = ""
    error: str = ""


class Examined(Struct):
    """``seconds`` it took to connect and greet; ``checkup`` is the node's own, None for the reason in ``silence``. ``versions``
    are the agents' of the whole fleet, by node, as far as they answer."""

    node: DesiredNode
    seen: NodeObservation
    tool_version: str
    seconds: float | None = None
    checkup: Checkup | None = None
    silence: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    knocks: tuple[Knock, ...] = ()


def examined(
    one: Examined, open_paths: Mapping[str, Sequence[OpenPath]], *, guarded: str
) -> tuple[Check, ...]:
    """All checks, the controller's first. ``guarded`` is a path that no engine may answer without its key."""
    return (
        *_reach(one),
        *_agent(one),
        *_clock(one),
        *_as_in_git(one),
        *_ports(one),
        *_engines(one, open_paths, guarded),
        *_its_own(one),
    )


def paths_to_ask(open_paths: Iterable[OpenPath], *, guarded: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((guarded, *(path.path for path in open_paths))))


def _reach(one: Examined) -> Iterator[Check]:
    node, seen = one.node, one.seen
    if seen.reach is Reach.UNREACHABLE:
        yield fail("reach", seen.error, "see to what the error names; nothing else is known of it now")
        return
    if node.spec.transport == "ssh" and node.spec.ssh is not None:
        keys = node.spec.ssh.host_keys
        yield well("host key", f"it is the pinned one (spec.ssh.hostKeys has {len(keys)})")
    if one.seconds is None:
        yield well("reach", "the machine answers")
    elif one.seconds > SLOW:
        text = f"{one.seconds:.1f} s to connect and greet"
        yield warn("reach", text, "see to the network, a jump host on the way, or the machine's load")
    else:
        yield well("reach", f"{one.seconds * 1000:.0f} ms to connect and greet")


def _agent(one: Examined) -> Iterator[Check]:
    report = one.seen.report
    if one.seen.reach is Reach.NO_AGENT:
        do = f"`llmgw node bootstrap {one.node.name}`, or `llmgw apply`"
        yield fail("agent version", one.seen.error, do)
    if report is None:
        return
    own = report.agent.version
    if own != one.tool_version:
        text = f"its agent is {own}, this llmgw {one.tool_version}"
        yield warn(
            "agent version", text, "`llmgw apply` upgrades an older one; upgrade llmgw here for a newer one"
        )
        return
    others = sorted(name for name, version in one.versions.items() if version != own)
    if others:
        text = f"{own}, as this llmgw; {names(others)} have another"
        yield warn("agent version", text, "`llmgw apply` brings the fleet to one version")
    else:
        count = len(one.versions)
        all_of_them = f" and {count} other {'agent' if count == 1 else 'agents'} asked" if count else ""
        yield well("agent version", f"{own}, as this llmgw{all_of_them}")


def _clock(one: Examined) -> Iterator[Check]:
    skew = one.seen.skew
    if skew is None:
        return
    if abs(skew) > SKEW:
        text = f"it is {clock_text(skew)} this machine's"
        yield warn("clock skew", text, "run chrony or systemd-timesyncd on both")
    else:
        yield well("clock skew", f"{skew:+.2f} s against this machine")


def _as_in_git(one: Examined) -> Iterator[Check]:
    facts = one.seen.facts
    if facts is None:
        return
    wrong = [*expectation(one.node, facts), *unheld_address(one.node, facts)]
    for text in wrong:
        do = "see to the machine, or correct its manifest when it is meant to be so"
        yield fail("as in Git", text, do)
    if not wrong:
        yield well("as in Git", "GPUs and address are what its manifest says")


def _ports(one: Examined) -> Iterator[Check]:
    if one.knocks and one.node.address in LOOPBACK:
        yield well("port band", f"engines listen on {one.node.address}: only this machine can reach them")
        return
    for knock in one.knocks:
        where = f"{one.node.address} port {knock.port} from {knock.by}"
        if knock.knocked is None:
            yield warn(
                "port band", f"{where}: it could not be asked: {knock.error}", "upgrade or mend that agent"
            )
        elif knock.knocked.port not in ANSWERS:
            band = one.node.spec.ports
            yield fail(
                "port band",
                f"{where}: {knock.knocked.port}",
                f"let the nodes and whoever calls models reach {band.from_port} to {band.to_port}/tcp there (firewall, route)",
            )
        elif knock.shard and knock.knocked.port == "refused":
            yield fail(
                "port band",
                f"{where}: refused, where {knock.shard} should listen",
                "`llmgw logs` of that shard; a firewall that rejects looks the same",
            )
    asked = [knock for knock in one.knocks if knock.knocked is not None and knock.knocked.port in ANSWERS]
    if asked:
        ports = ", ".join(str(knock.port) for knock in asked)
        yield well("port band", f"reached from {names(dict.fromkeys(knock.by for knock in asked))} ({ports})")


def _engines(one: Examined, open_paths: Mapping[str, Sequence[OpenPath]], guarded: str) -> Iterator[Check]:
    for knock in one.knocks:
        if knock.shard and knock.knocked is not None and knock.knocked.port == "open":
            yield from _engine(knock, knock.knocked, open_paths.get(knock.engine, ()), guarded)


def _engine(knock: Knock, knocked: Knocked, known: Sequence[OpenPath], guarded: str) -> Iterator[Check]:
    """401 and 403 are refusals, 404 is nothing there; whatever else comes back was answered without a key."""
    answered = {
        path
        for path, status in knocked.statuses.items()
        if status not in REFUSALS and status not in (NOT_THERE, NO_ANSWER)
    }
    what = f"{knock.shard} ({knock.engine or 'an engine that is not recorded'}), asked by {knock.by} without its key"
    if guarded in answered:
        yield fail(
            "open paths",
            f"{what}: {guarded} answers",
            "it runs without its key: stop it, and see its arguments",
        )
    by_harm = {True: "", False: ""}
    for harmful in (True, False):
        found = [path for path in known if path.path in answered and path.harmful is harmful]
        by_harm[harmful] = ", ".join(f"{path.path} ({path.gives})" for path in found)
    if by_harm[True]:
        yield warn(
            "open paths",
            f"{what}: {by_harm[True]}",
            "only let the gateway and trusted machines reach the ports of engines: the engine guards no more than it does",
        )
    silent = sorted(path for path, status in knocked.statuses.items() if status == NO_ANSWER)
    if silent:
        yield warn(
            "open paths", f"{what}: no answer for {names(silent)}", "it is busy or hangs: `llmgw status`"
        )
    elif guarded not in answered:
        rest = f"; open and harmless: {by_harm[False]}" if by_harm[False] else ""
        yield well("open paths", f"{what}: {guarded} is refused{rest}")


def _its_own(one: Examined) -> Iterator[Check]:
    if one.checkup is not None:
        yield from one.checkup.checks
        return
    if one.silence:
        yield warn("node", one.silence, "what follows is what a look from outside can tell")
    if one.seen.facts is not None:
        yield from symptoms(one.seen.facts, band=one.node.spec.ports)
