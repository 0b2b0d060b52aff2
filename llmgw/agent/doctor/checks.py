"""Every check of a node that only the node itself can make, beside those of its facts: one function a subject, what was
seen in, lines with what to do out. Pure."""

from collections.abc import Callable, Iterator
from pathlib import PurePath

from llmgw.agent.doctor.looking import Entry, Looks
from llmgw.core.symptoms import symptoms
from llmgw.model.checkup import Check, fail, warn, well
from llmgw.model.facts import Facts
from llmgw.model.report import Report
from llmgw.model.struct import Struct
from llmgw.wire.setup import AgentSettings


class Seen(Struct):
    """``report`` None: no agent answers, for the reason in ``silence``. ``strays``: shards that processes belong to, and that
    nobody has orders for. ``policy``: the file where the machine's own rules would stand."""

    node: str
    work: str
    settings: AgentSettings
    facts: Facts
    looks: Looks
    policy: str
    report: Report | None = None
    silence: str = ""
    strays: tuple[str, ...] = ()


def checks(seen: Seen) -> tuple[Check, ...]:
    subjects: tuple[Callable[[Seen], Iterator[Check]], ...] = (
        _agent,
        _socket,
        _directories,
        _user,
        _policy,
        _symptoms,
        _orders,
        _shards,
        _jobs,
        _strays,
        _journal,
        _clock,
    )
    return tuple(check for subject in subjects for check in subject(seen))


def _agent(seen: Seen) -> Iterator[Check]:
    if seen.report is None:
        yield fail(
            "agent",
            f"no agent answers in {seen.work}: {seen.silence}",
            f"start it: `systemctl start llmgw-agent`, or `llmgw node bootstrap {seen.node}` from the controller",
        )
        return
    agent = seen.report.agent
    yield well("agent", f"{agent.version} runs as {agent.user or '?'}, pid {agent.pid}")
    # The policy has a line of its own.
    policy = seen.facts.policy.obstacle if seen.facts.policy is not None else ""
    told = {text for text in seen.report.problems if text and text != policy}
    for text in sorted(told):
        yield warn("agent", text, f"see {seen.work}/agent.log")


def _socket(seen: Seen) -> Iterator[Check]:
    socket = seen.looks.socket
    if socket.mode is None:
        if seen.report is not None:
            yield fail("socket", f"{socket.path} is gone", "start the agent anew: engines run on")
        return
    yield _as_wanted("socket", socket, seen)


def _directories(seen: Seen) -> Iterator[Check]:
    wrong = [_as_wanted("directories", entry, seen) for entry in seen.looks.entries]
    wrong = [check for check in wrong if check.do]
    yield from wrong
    if not wrong:
        yield well("directories", f"{len(seen.looks.entries)} below {seen.work} are there, with their modes")


def _as_wanted(name: str, entry: Entry, seen: Seen) -> Check:
    if entry.error:
        return warn(name, f"{entry.path} can't be looked at: {entry.error}", "run this as root")
    if entry.mode is None:
        return fail(name, f"{entry.path} is missing", "start the agent anew: it makes its directories itself")
    if entry.owner not in (0, seen.looks.own_user):
        return warn(name, f"{entry.path} belongs to user number {entry.owner}", f"`chown root {entry.path}`")
    open_bits = entry.mode & ~entry.wanted
    if open_bits:
        text = f"{entry.path} has mode {entry.mode:04o}, not {entry.wanted:04o}: others may do more there than they should"
        return warn(name, text, f"`chmod {entry.wanted:o} {entry.path}`")
    if entry.mode != entry.wanted:
        text = f"{entry.path} has mode {entry.mode:04o}, not {entry.wanted:04o}"
        return warn(name, text, f"`chmod {entry.wanted:o} {entry.path}`")
    return well(name, f"{entry.path} has mode {entry.mode:04o}")


def _user(seen: Seen) -> Iterator[Check]:
    user = seen.looks.user
    if user.uid is None:
        yield fail(
            "engine user",
            f"there is no user {user.name}, so no engine can be started",
            f"`llmgw node bootstrap {seen.node}` makes it",
        )
    elif user.uid == 0:
        do = f"bootstrap as root where useradd may make a user, and a Python that everybody may run: `llmgw node bootstrap {seen.node}`"
        yield warn("engine user", "engines run as root, as the agent does", do)
    elif user.lacking and seen.facts.gpus:
        do = "none is needed for engines that llmgw starts; `usermod -aG` for what you start as that user by hand"
        yield well("engine user", f"{user.name}; the account is not in {', '.join(user.lacking)} ({do})")
    else:
        yield well("engine user", user.name)


def _symptoms(seen: Seen) -> Iterator[Check]:
    yield from symptoms(seen.facts, band=seen.settings.ports, kept_ports=seen.looks.kept_ports)


def _policy(seen: Seen) -> Iterator[Check]:
    policy = seen.facts.policy
    if policy is None:
        yield well("policy", f"there is no {seen.policy}: everything is allowed")
    elif policy.obstacle:
        yield fail("policy", policy.obstacle, "put that line right; what runs is left alone meanwhile")
    else:
        yield well("policy", f"{policy.file} is in force")


def _orders(seen: Seen) -> Iterator[Check]:
    for path in seen.looks.unreadable:
        shard = PurePath(path).name.removesuffix(".json")
        yield fail(
            "orders",
            f"the order of shard {shard} can't be read; it lies in {path}",
            f"the next `llmgw apply` sends it again; `llmgw-agent stop {shard}` ends what still runs of it",
        )
    if not seen.looks.unreadable and seen.report is not None:
        yield well("orders", f"{len(seen.report.shards)}, all readable")


def _shards(seen: Seen) -> Iterator[Check]:
    for shard in seen.report.shards if seen.report is not None else ():
        if shard.state in ("failed", "backoff"):
            text = f"{shard.shard} is {shard.state}: {shard.last_error or shard.reason}"
            yield fail("shards", text, f"`llmgw-agent logs {shard.shard}`")
        if shard.by_hand is not None and shard.by_hand.verb != "started":
            text = f"{shard.shard} was {shard.by_hand.verb} by hand by {shard.by_hand.by}"
            yield warn("shards", text, "the next `llmgw apply` starts it again")


def _jobs(seen: Seen) -> Iterator[Check]:
    for job in seen.report.jobs if seen.report is not None else ():
        if job.state == "failed":
            yield fail("jobs", f"{job.job} ({job.description}): {job.error}", "`llmgw apply` tries it again")


def _strays(seen: Seen) -> Iterator[Check]:
    for shard in seen.strays:
        yield warn(
            "leftovers",
            f"processes of shard {shard} live, and nobody has an order for it",
            f"the next `llmgw apply` sends its order again or stops it; by hand: `llmgw-agent stop {shard}` ends it",
        )
    if not seen.strays:
        yield well("leftovers", "no process of ours without an order")


def _journal(seen: Seen) -> Iterator[Check]:
    looks = seen.looks
    if looks.journal_error:
        yield fail("journal", looks.journal_error, "see to that file and its disk")
    for first, last in looks.gaps:
        yield warn(
            "journal",
            f"entries {first} to {last} are missing: the machine lost its last writes, or its disk was full",
            "nothing to do but to know: what happened then stands in the record only as far as a controller saw it",
        )
    if not looks.journal_error and not looks.gaps:
        yield well("journal", "no entry is missing")


def _clock(seen: Seen) -> Iterator[Check]:
    if seen.looks.clock_kept is None:
        yield well("clock", "the kernel does not tell whether anything keeps it")
    elif seen.looks.clock_kept:
        yield well("clock", "it is kept")
    else:
        do = "run chrony or systemd-timesyncd; in a container, on the host"
        yield warn("clock", "nothing keeps it: it will drift from the other nodes'", do)
