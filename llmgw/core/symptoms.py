"""What the facts of a node alone tell of its health, with what to do: for an agent's doctor, and for a controller that sees
a machine without one. Pure, and part of what runs on nodes."""

from collections.abc import Iterable, Iterator

from llmgw.model.checkup import Check, fail, warn, well
from llmgw.model.facts import Facts
from llmgw.model.manifest import PortRange

GIB = 1024**3
LITTLE_DISK = GIB
"""Below it no job begins (jobs keep it free), and soon nothing can be written."""
SCARCE_DISK = 10 * GIB
SMALL_SHM = GIB
"""Engines on several GPUs pass data through /dev/shm: containers' usual 64 MiB break them."""
ACTIVE = "ACTIVE"
DRIVER_WORDS = ("GPU", "NVML", "nvidia")


def symptoms(facts: Facts, *, band: PortRange, kept_ports: Iterable[tuple[int, int]] = ()) -> Iterator[Check]:
    """``band``: the node's ports for engines; ``kept_ports``: those that its kernel never hands out by itself."""
    yield from _disks(facts)
    yield from _shared_memory(facts)
    yield from _ports(facts, band, kept_ports)
    yield from _driver(facts)
    yield from _gpus(facts)
    yield from _foreign(facts)
    yield from _adapters(facts)
    yield from _discovery(facts)


def _of_the_driver(text: str) -> bool:
    return any(word in text for word in DRIVER_WORDS)


def _disks(facts: Facts) -> Iterator[Check]:
    for disk in facts.disks:
        text = f"{disk.path}: {_gib(disk.free)} of {_gib(disk.total)} free"
        do = "`llmgw node gc`, or move what is not llmgw's"
        if disk.free < LITTLE_DISK:
            yield fail("disk", f"{text}, and jobs leave {_gib(LITTLE_DISK)} alone", do)
        elif disk.free < SCARCE_DISK:
            yield warn("disk", f"{text}, less than {_gib(SCARCE_DISK)}", do)
        else:
            yield well("disk", text)


def _shared_memory(facts: Facts) -> Iterator[Check]:
    total = facts.shm_total
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


def _ports(facts: Facts, band: PortRange, kept_ports: Iterable[tuple[int, int]]) -> Iterator[Check]:
    kernel = facts.ephemeral_ports
    text = f"engines use {band.from_port} to {band.to_port}"
    if kernel is None:
        yield well("ports", text)
        return
    first, last = max(band.from_port, kernel[0]), min(band.to_port, kernel[1])
    kept = any(low <= first and last <= high for low, high in kept_ports)
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


def _driver(facts: Facts) -> Iterator[Check]:
    wrong = [text for text in facts.problems if _of_the_driver(text)]
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


def _gpus(facts: Facts) -> Iterator[Check]:
    for gpu in facts.gpus:
        for reason in gpu.health:
            yield fail(
                "gpu",
                f"GPU {gpu.index} ({gpu.uuid}): {reason}",
                "docs/nodes.md tells what each reason wants",
            )
    sound = sum(1 for gpu in facts.gpus if not gpu.health)
    if facts.gpus and sound:
        yield well("gpu", f"{sound} of {len(facts.gpus)} healthy")


def _foreign(facts: Facts) -> Iterator[Check]:
    for gpu in facts.gpus:
        for process in gpu.processes:
            if process.shard is None:
                held = _gib(process.memory) if process.memory is not None else "memory"
                yield warn(
                    "gpu processes",
                    f"GPU {gpu.index}: pid {process.pid} of user {process.user} ({process.command or '?'}) holds {held}, and is no"
                    " shard's",
                    "nothing is placed there meanwhile: ask that user, or reserve the GPU for people",
                )


def _adapters(facts: Facts) -> Iterator[Check]:
    ports = facts.hca_ports
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


def _discovery(facts: Facts) -> Iterator[Check]:
    for text in facts.problems:
        if not _of_the_driver(text):
            yield warn("facts", text, "see the agent's log, `agent.log` in its work directory")


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
