"""The GPUs as ``nvidia-smi`` tells them, for machines whose agent can't load NVML. Its report is XML whose elements
change with the driver (schemas 11 to 13); any cell may hold words instead of a number."""

import asyncio
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from xml.etree import ElementTree as ET

from llmgw.agent.discovery.commands import AskError, run_program
from llmgw.agent.discovery.readings import Held, Look, Lost, Reading, bus_id
from llmgw.model.struct import Struct, replace

PROGRAM = "nvidia-smi"
REPORT = ("-q", "-x")
TABLE = ("--query-gpu=index,uuid,compute_cap", "--format=csv,noheader,nounits")
LISTING = ("-L",)
TOPOLOGY = ("topo", "-m")
UNITS = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
INSTANCE = "mig_devices/mig_device"
MAX_GPUS = 64
MAX_PROBLEMS = 8

_BEGIN, _END = "<?xml", "</nvidia_smi_log>"
_AMOUNT = re.compile(r"^(\d+)\s*(B|KiB|MiB|GiB)?$")
_HANDLE = re.compile(
    r"device handle for (?:GPU ?\d*:? *)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)"
)
_GPU_LINE = re.compile(r"^GPU (\d+): .*\(UUID: (GPU-[^)]+)\)")
_MIG_LINE = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+):\s+\(UUID: (MIG-[^)]+)\)")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_NOT_TOLD = frozenset({"", "n/a", "none", "not supported", "requested functionality has been deprecated"})


async def ask(env: Mapping[str, str], *, deadline: float) -> Look:
    """Raises FileNotFoundError without the program, AskError when it tells of no GPU at all."""
    end = asyncio.get_running_loop().time() + deadline
    said = await run_program((PROGRAM, *REPORT), env=env, deadline=deadline)
    if _END not in said.out:
        raise AskError(said.failure or f"{PROGRAM}'s report has no end")
    extra = Beside(
        table=await _beside(TABLE, env, end),
        listing=await _beside(LISTING, env, end) if "<mig_device>" in said.out else "",
        topology=await _beside(TOPOLOGY, env, end) if said.out.count("<gpu id=") > 1 else "",
    )
    look = read(said.out, extra)
    outside = [*said.err.splitlines(), *said.out.partition(_BEGIN)[0].splitlines()]
    lost, told = _complaints(outside)
    problems = (*look.problems, *told) or ((said.failure,) if said.failure and not lost else ())
    return replace(look, lost=(*look.lost, *lost), problems=problems)


async def _beside(arguments: Sequence[str], env: Mapping[str, str], end: float) -> str:
    """What older drivers don't know, or don't say in time, is left out. With a GPU that is lost it tells of the others
    and fails."""
    left = end - asyncio.get_running_loop().time()
    try:
        return (await run_program((PROGRAM, *arguments), env=env, deadline=max(left, 0.1))).out
    except AskError:
        return ""


class Beside(Struct):
    """What the report itself does not tell."""

    table: str = ""
    listing: str = ""
    topology: str = ""


def read(report: str, beside: Beside) -> Look:
    """Pure. Raises AskError for what is no report."""
    text = report[max(report.find(_BEGIN), 0) : report.find(_END) + len(_END)]
    if "<!ENTITY" in text:
        raise AskError(f"{PROGRAM}'s report defines entities, which it never does")
    try:
        root = ET.fromstring(text)  # noqa: S314 - without entities there is nothing to blow up
    except ET.ParseError as wrong:
        raise AskError(f"{PROGRAM}'s report is no XML: {wrong}") from wrong
    rows = {
        row[1]: row for row in csv.reader(beside.table.splitlines(), skipinitialspace=True) if len(row) == 3
    }
    instances = _listed(beside.listing)
    gpus: list[Reading] = []
    lost: list[Lost] = []
    problems: list[str] = []
    for position, element in enumerate(root.findall("gpu")[:MAX_GPUS]):
        pci = bus_id(element.get("id", ""))
        gpu = _gpu(element, pci, position, rows)
        if not gpu.uuid:
            why = gpu.fatal[0] if gpu.fatal else f"{PROGRAM} tells no UUID of it: {_cell(element, 'uuid')}"
            lost.append(Lost(index=gpu.index, pci=pci, why=why))
            continue
        parts = list(_instances(element, gpu, instances, problems))
        inside = {held.pid for part in parts for held in part.processes}
        rest = tuple(held for held in gpu.processes if held.pid not in inside)
        unnamed = len(element.findall(INSTANCE)) - len(parts)
        gpus += [replace(gpu, processes=rest, unnamed=unnamed), *parts]
    driver = _cell(root, "driver_version")
    return Look(
        driver=driver,
        gpus=_connected(gpus, beside.topology),
        lost=tuple(lost),
        problems=tuple(problems),
    )


def _gpu(element: ET.Element, pci: str, position: int, rows: Mapping[str, Sequence[str]]) -> Reading:
    uuid = _cell(element, "uuid")
    uuid = uuid if uuid.startswith("GPU-") else ""
    row = rows.get(uuid, ())
    current, pending = (_cell(element, f"mig_mode/{name}_mig") for name in ("current", "pending"))
    total, used, free = (_amount(element, f"fb_memory_usage/{name}") for name in ("total", "used", "free"))
    words = _words(element)
    return Reading(
        uuid=uuid,
        index=int(row[0]) if row and row[0].isdigit() else position,
        name=_cell(element, "product_name"),
        total=total,
        used=used,
        free=free,
        pci=pci or bus_id(_cell(element, "pci/pci_bus_id")),
        capability=row[2] if row and re.match(r"^\d+\.\d+$", row[2]) else "",
        mig=current == "Enabled",
        mig_pending=bool(pending) and pending != current,
        ecc_volatile=_uncorrected(element, "volatile"),
        ecc_aggregate=_uncorrected(element, "aggregate"),
        remap_pending=_yes(element, "remapped_rows/remapped_row_pending"),
        remap_failed=_yes(element, "remapped_rows/remapped_row_failure"),
        pages_pending=_any_yes(
            element, "retired_pages/pending_retirement", "retired_pages/pending_blacklist"
        ),
        repair_pending=_any_yes(element, "*/channel_repair_pending", "*/tpc_repair_pending"),
        unrepairable=_yes(element, "ecc_errors/unrepairable_memory"),
        sram_worn=_yes(element, "ecc_errors/aggregate/sram_threshold_exceeded"),
        action=_action(element),
        refused=_refused(element, words, total),
        fatal=_fatal(words),
        processes=tuple(held for held, _ in _processes(element)),
    )


def _instances(
    element: ET.Element,
    gpu: Reading,
    listed: Mapping[tuple[str, str], tuple[str, str]],
    problems: list[str],
) -> Iterator[Reading]:
    running = list(_processes(element))
    for part in element.findall(INSTANCE):
        number = _cell(part, "index")
        profile, uuid = listed.get((gpu.uuid, number), ("", _cell(part, "uuid")))
        if not uuid.startswith("MIG-"):
            problems.append(f"MIG instance {number} of GPU {gpu.index}: {PROGRAM} tells no UUID of it")
            continue
        place = (_cell(part, "gpu_instance_id"), _cell(part, "compute_instance_id"))
        total, used, free = (_amount(part, f"fb_memory_usage/{name}") for name in ("total", "used", "free"))
        yield Reading(
            uuid=uuid,
            index=gpu.index,
            name=f"{gpu.name} MIG {profile}".rstrip(),
            total=total,
            used=used,
            free=free,
            parent=gpu.uuid,
            ecc_volatile=_sum(part.findall("ecc_error_count/volatile_count/*")),
            processes=tuple(held for held, where in running if where == place),
        )


def _listed(listing: str) -> dict[tuple[str, str], tuple[str, str]]:
    """(GPU's UUID, number of the instance) -> (profile, the instance's UUID)."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    uuid = ""
    for line in listing.splitlines():
        if gpu := _GPU_LINE.match(line):
            uuid = gpu[2]
        elif part := _MIG_LINE.match(line):
            found[uuid, part[2]] = (part[1], part[3])
    return found


def _processes(element: ET.Element) -> Iterator[tuple[Held, tuple[str, str]]]:
    """One that computes and draws is listed twice."""
    found: dict[int, tuple[Held, tuple[str, str]]] = {}
    for one in element.findall("processes/process_info"):
        pid = _cell(one, "pid")
        if not pid.isdigit():
            continue
        held = Held(pid=int(pid), memory=_amount(one, "used_memory"))
        place = (_cell(one, "gpu_instance_id"), _cell(one, "compute_instance_id"))
        before = found.get(held.pid)
        if before is None or (held.memory or 0) > (before[0].memory or 0):
            found[held.pid] = (held, place)
    yield from found.values()


def _connected(gpus: Sequence[Reading], matrix: str) -> tuple[Reading, ...]:
    rows: dict[int, list[str]] = {}
    for line in _ESCAPES.sub("", matrix).splitlines():
        name, *cells = [cell.strip() for cell in line.split("\t")]
        if (number := re.match(r"^GPU(\d+)$", name)) and cells and not cells[0].startswith("GPU"):
            rows[int(number[1])] = cells
    return tuple(_with_row(gpu, gpus, rows.get(gpu.index, [])[: len(rows)]) for gpu in gpus)


def _with_row(gpu: Reading, gpus: Sequence[Reading], row: Sequence[str]) -> Reading:
    if gpu.parent is not None or len(row) < 2:
        return gpu
    linked = {number for number, how in enumerate(row) if how.startswith("NV")}
    peers = tuple(other.uuid for other in gpus if other.parent is None and other.index in linked)
    return replace(gpu, topology=tuple(row), peers=peers)


# ---- Cells ------------------------------------------------------------------------------------------------


def _cell(element: ET.Element, path: str) -> str:
    """Without the brackets that some drivers put around words."""
    return (element.findtext(path) or "").strip().strip("[]")


def _amount(element: ET.Element, path: str) -> int | None:
    found = _AMOUNT.match(_cell(element, path))
    return int(found[1]) * UNITS[found[2] or ""] if found else None


def _yes(element: ET.Element, path: str) -> bool | None:
    return {"yes": True, "no": False}.get(_cell(element, path).lower())


def _any_yes(element: ET.Element, *paths: str) -> bool | None:
    told = [answer for path in paths if (answer := _yes(element, path)) is not None]
    return any(told) if told else None


def _uncorrected(element: ET.Element, when: str) -> int | None:
    """Older schemas count bits, newer ones tell kinds of memory, the newest causes as well."""
    cells = element.findall(f"ecc_errors/{when}/*")
    return _sum([*cells, *element.findall(f"ecc_errors/{when}/double_bit/total")])


def _sum(cells: Sequence[ET.Element]) -> int | None:
    told = [
        int(text)
        for cell in cells
        if ("uncorrectable" in cell.tag or cell.tag == "total")
        and (text := (cell.text or "").strip()).isdigit()
    ]
    return sum(told) if told else None


def _words(element: ET.Element) -> set[str]:
    return {(part.text or "").strip().strip("[]").lower() for part in element.iter()}


def _fatal(words: set[str]) -> tuple[str, ...]:
    found = []
    if "gpu is lost" in words:
        found.append("the GPU is lost: the driver can't reach it")
    if "gpu requires reset" in words:
        found.append("the GPU must be reset before it can be used")
    return tuple(found)


def _refused(element: ET.Element, words: set[str], total: int | None) -> dict[str, str]:
    odd = next((word for word in ("Unknown Error", "ERR!") if word.lower() in words), "")
    refused = {"whole state": odd} if odd else {}
    if total is None:
        refused["memory"] = _cell(element, "fb_memory_usage/total") or "N/A"
    return refused


def _action(element: ET.Element) -> str:
    if _yes(element, "gpu_reset_status/reset_required"):
        return "reset the GPU"
    if _yes(element, "gpu_reset_status/drain_and_reset_recommended"):
        return "end its work, then reset the GPU"
    action = _cell(element, "gpu_recovery_action").lower()
    return "" if action in _NOT_TOLD else action


def _complaints(lines: Sequence[str]) -> tuple[tuple[Lost, ...], tuple[str, ...]]:
    """What it says beside its report: GPUs that it can't reach, and anything else as it stands."""
    lost, rest = [], []
    for line in (line.strip() for line in lines if line.strip()):
        if found := _HANDLE.search(line):
            lost.append(Lost(pci=bus_id(found[1]), why=line[:200]))
        else:
            rest.append(f"{PROGRAM}: {line[:200]}")
    return tuple(lost[:MAX_GPUS]), tuple(rest[:MAX_PROBLEMS])
