"""Every check of a node, one function a subject: what was seen in, lines with what to do out. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llmgw.agent.doctor.looking import Entry, Looks
from llmgw.model.checkup import Check, fail, warn, well
from llmgw.model.facts import Facts
from llmgw.model.report import Report
from llmgw.wire.setup import AgentSettings

GIB = 1024**3
LITTLE_DISK = GIB
"""Below it no job begins (jobs keep it free), and soon nothing can be written."""
SCARCE_DISK = 10 * GIB
SMALL_SHM = GIB
"""Engines on several GPUs pass data through /dev/shm: containers' usual 64 MiB break them."""
ACTIVE = "ACTIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
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
        _disks,
        _shared_memory,
        _ports,
        _user,
        _policy,
        _driver,
        _gpus,
        _foreign,
        _adapters,
        _orders,
        _shards,
        _jobs,
        _strays,
        _journal,
        _clock,
        _discovery,
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
    told = {text for text in seen.report.problems if text}
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


def _disks(seen: Seen) -> Iterator[Check]:
    for disk in seen.facts.disks:
        text = f"{disk.path}: {_gib(disk.free)} of {_gib(disk.total)} free"
        do = "`llmgw node gc`, or move what is not llmgw's"
        if disk.free < LITTLE_DISK:
            yield fail("disk", text, do)
        elif disk.free < SCARCE_DISK:
            yield warn("disk", text, do)
        else:
            yield well("disk", text)


def _shared_memory(seen: Seen) -> Iterator[Check]:
    total = seen.facts.shm_total
    if total is None:
        yield fail("shared memory", "there is no /dev/shm", "mount a tmpfs: engines on several GPUs need it")
    elif total < SMALL_SHM:
        text = f"{total / 1024**2:.0f} MiB in /dev/shm, which is little for engines on several GPUs"
        yield warn(
            "shared memory",
            text,
            "`mount -o remount,size=50% /dev/shm`; in a container --shm-size or --ipc=host",
        )
    else:
        yield well("shared memory", f"{_gib(total)} in /dev/shm")


def _ports(seen: Seen) -> Iterator[Check]:
    band, kernel = seen.settings.ports, seen.facts.ephemeral_ports
    text = f"engines use {band.from_port} to {band.to_port}"
    if kernel is None:
        yield well("ports", text)
        return
    first, last = max(band.from_port, kernel[0]), min(band.to_port, kernel[1])
    kept = any(low <= first and last <= high for low, high in seen.looks.kept_ports)
    if first > last or kept:
        yield well(
            "ports",
            f"{text}, the kernel hands out {kernel[0]} to {kernel[1]}{' without them' if kept else ''}",
        )
        return
    yield warn(
        "ports",
        f"{text}, and the kernel hands out {kernel[0]} to {kernel[1]} to any connection: an engine may find its port taken",
        f"`sysctl -w net.ipv4.ip_local_reserved_ports={band.from_port}-{band.to_port}`, and the same in /etc/sysctl.d",
    )


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


def _policy(seen: Seen) -> Iterator[Check]:
    policy = seen.facts.policy
    if policy is None:
        yield well("policy", f"there is no {seen.policy}: everything is allowed")
    elif policy.obstacle:
        yield fail("policy", policy.obstacle, "put that line right; what runs is left alone meanwhile")
    else:
        yield well("policy", f"{policy.file} is in force")


def _driver(seen: Seen) -> Iterator[Check]:
    facts = seen.facts
    wrong = [text for text in facts.problems if "GPU" in text or "NVML" in text or "nvidia" in text]
    for text in wrong:
        yield fail(
            "driver",
            text,
            "`nvidia-smi` on the node says more; a driver of another version than its library wants a reboot",
        )
    if not wrong:
        yield well(
            "driver", f"{facts.driver or 'unknown'} by {facts.gpu_source}" if facts.gpus else "no GPU here"
        )


def _gpus(seen: Seen) -> Iterator[Check]:
    for gpu in seen.facts.gpus:
        for reason in gpu.health:
            yield fail(
                "gpu",
                f"GPU {gpu.index} ({gpu.uuid}): {reason}",
                "docs/operations.md tells what each reason wants",
            )
    sound = sum(1 for gpu in seen.facts.gpus if not gpu.health)
    if seen.facts.gpus and sound:
        yield well("gpu", f"{sound} of {len(seen.facts.gpus)} healthy")


def _foreign(seen: Seen) -> Iterator[Check]:
    for gpu in seen.facts.gpus:
        for process in gpu.processes:
            if process.shard is None:
                held = _gib(process.memory) if process.memory is not None else "memory"
                yield warn(
                    "gpu processes",
                    f"GPU {gpu.index}: pid {process.pid} of user {process.user} ({process.command or '?'}) holds {held}, and is no"
                    " shard's",
                    "nothing is placed there meanwhile: ask that user, or reserve the GPU for people",
                )


def _adapters(seen: Seen) -> Iterator[Check]:
    ports = seen.facts.hca_ports
    for port in ports:
        if port.state != ACTIVE:
            state = f"{port.state}{f' ({port.physical})' if port.physical else ''}"
            yield warn(
                "adapters",
                f"{port.device} port {port.port} ({port.link_layer}) is {state}",
                "see cable, switch and subnet manager (`ibstat`); leave it out of fabrics when it is not meant to work",
            )
    active = sum(1 for port in ports if port.state == ACTIVE)
    if active:
        yield well("adapters", f"{active} of {len(ports)} ports active")


def _orders(seen: Seen) -> Iterator[Check]:
    for name in seen.looks.unreadable:
        shard = name.removesuffix(".json")
        yield fail(
            "orders",
            f"the order of shard {shard} can't be read; it is kept in {seen.work}/shards/unreadable",
            "the next `llmgw apply` sends it again; `llmgw-agent stop` ends what still runs of it",
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
            "start the agent anew: it ends what is provably its own and in no order",
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


def _discovery(seen: Seen) -> Iterator[Check]:
    for text in seen.facts.problems:
        if not ("GPU" in text or "NVML" in text or "nvidia" in text):
            yield warn("facts", text, f"see {seen.work}/agent.log")


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
