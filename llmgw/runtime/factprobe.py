"""What a machine is, read only, for machines without an agent: prints Facts as JSON.

Runs by itself, standard library only, on any Python from 3.7: ``python3 -I -S - < factprobe.py``. Starts nothing but
``nvidia-smi``, with a deadline; changes nothing.
"""

from __future__ import annotations

import argparse
import array
import csv
import fcntl
import json
import os
import platform
import pwd
import re
import shutil
import socket
import struct
import subprocess
import sys
from typing import Any
from xml.etree import ElementTree as ET

DEADLINE = 10
MIB = 1024 * 1024
GIB = 1024 * MIB
INTEGRATED = re.compile(r"\b(GB10|Orin|Thor|Xavier|Tegra)\b")
"""GPUs without memory of their own share the host's; their drivers tell none."""
TABLE = ("--query-gpu=index,uuid,compute_cap", "--format=csv,noheader,nounits")
INSTANCE = "mig_devices/mig_device"
UNITS = {"": 1, "B": 1, "KiB": 1024, "MiB": MIB, "GiB": GIB}
MARK = b"LLMGW_SHARD="
EMPTY_LINK_LOCAL = "fe80:0000:0000:0000:0000:0000:0000:0000"
FATAL = (
    ("gpu is lost", "the GPU is lost: the driver can't reach it"),
    ("gpu requires reset", "the GPU must be reset before it can be used"),
)
REPAIR = "a repair of its hardware waits for a reset of the GPU"
PAGES = "broken memory pages wait for a reset of the GPU to be retired"
SICK = (
    ("remapped_rows/remapped_row_failure", "remapping of broken memory rows failed"),
    ("remapped_rows/remapped_row_pending", "broken memory rows wait for a reset of the GPU to be remapped"),
    ("retired_pages/pending_retirement", PAGES),
    ("retired_pages/pending_blacklist", PAGES),
    ("ecc_errors/channel_repair_pending", REPAIR),
    ("ecc_errors/tpc_repair_pending", REPAIR),
    ("ecc_errors/unrepairable_memory", "its memory can't be repaired any more: have it replaced"),
    ("gpu_reset_status/reset_required", "the driver asks for this: reset the GPU"),
    (
        "gpu_reset_status/drain_and_reset_recommended",
        "the driver asks for this: end its work, then reset the GPU",
    ),
)
NOISE = re.compile(r"^(nvidia|tesla|geforce|quadro|generation|graphics|\d+gb|hbm\d*e?|sxm\d*|pcie|nvl)$")


def first_line(path: str) -> str:
    """Empty where there is nothing to be read: EINVAL is a driver's way to say *none*."""
    try:
        with open(path, errors="replace") as file:
            return file.readline(4096).strip("\0 \t\r\n")
    except OSError:
        return ""


def memory() -> tuple[int, int | None]:
    """Total and available bytes."""
    found: dict[str, int] = {}
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                name, _, rest = line.partition(":")
                found[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return found.get("MemTotal", 0), found.get("MemAvailable")


def os_name() -> str:
    try:
        with open("/etc/os-release", errors="replace") as file:
            for line in file:
                if line.startswith("PRETTY_NAME="):
                    return line.partition("=")[2].strip().strip("\"'")
    except OSError:
        pass
    return ""


def disks(folders: list[str]) -> list[dict[str, Any]]:
    """Of the nearest directory that exists; several on one file system are told each."""
    found = []
    for folder in folders:
        there = os.path.abspath(folder)
        while not os.path.isdir(there) and there != "/":
            there = os.path.dirname(there)
        try:
            usage = shutil.disk_usage(there)
        except OSError:
            continue
        found.append({"path": folder, "total": usage.total, "free": usage.free})
    return found


def interfaces() -> list[dict[str, Any]]:
    """Names and states from /sys; IPv4 addresses from the kernel, IPv6 from /proc."""
    ipv4, ipv6 = ipv4_addresses(), ipv6_addresses()
    found = []
    for name in entries("/sys/class/net"):
        speed = first_line("/sys/class/net/%s/speed" % name)
        found.append(
            {
                "name": name,
                "addresses": ipv4.get(name, []) + ipv6.get(name, []),
                "speed": int(speed) if speed.isdigit() and int(speed) > 0 else None,
                "up": first_line("/sys/class/net/%s/operstate" % name) in ("up", "unknown"),
            }
        )
    return found


def ipv4_addresses() -> dict[str, list[str]]:
    """All of every interface, by SIOCGIFCONF; aliases (``eth0:1``) under the interface that they are of."""
    size, room = 40, 1024  # of one entry of 64-bit kernels, and for how many
    table = array.array("B", bytes(size * room))
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            request = struct.pack("iL", len(table), table.buffer_info()[0])
            answer = fcntl.ioctl(asked.fileno(), 0x8912, request)
        except OSError:
            return found
    for start in range(0, struct.unpack("iL", answer)[0], size):
        entry = table.tobytes()[start : start + size]
        name = entry[:16].partition(b"\0")[0].decode("utf-8", "replace").partition(":")[0]
        found.setdefault(name, []).append(socket.inet_ntoa(entry[20:24]))
    return found


def ipv6_addresses() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    try:
        with open("/proc/net/if_inet6") as file:
            for line in file:
                cells = line.split()
                address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(cells[0]))
                found.setdefault(cells[5], []).append(address)
    except (OSError, ValueError, IndexError):
        pass
    return found


def listening(ports: tuple[int, int]) -> list[int]:
    """TCP ports of the range with a listener, whoever it is."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as file:
                rows = file.read(8 * MIB).splitlines()[1:]
        except OSError:
            continue
        for cells in map(str.split, rows):
            if len(cells) > 3 and cells[3] == "0A":
                found.add(int(cells[1].rpartition(":")[2], 16))
    return sorted(port for port in found if ports[0] <= port <= ports[1])


# ---- GPUs -----------------------------------------------------------------------------------------------


def gpu_class(name: str, total: int) -> str:
    words = re.split(r"[^a-z0-9.]+", name.lower())
    kept = [word for word in words if word and not NOISE.match(word)]
    return "%s-%dg" % ("-".join(kept) or "gpu", round(total / GIB))


def text(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip()[-4000:]


def ask(*arguments: str) -> tuple[int, str, str]:
    """How nvidia-smi ended, what it said and what it complained of. Raises OSError and SubprocessError."""
    answer = subprocess.run(
        ["nvidia-smi", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=DEADLINE,
        check=False,
    )
    return answer.returncode, answer.stdout.decode("utf-8", "replace"), text(answer.stderr)


def beside(*arguments: str) -> str:
    """What older drivers don't know is left out."""
    try:
        return ask(*arguments)[1]
    except (OSError, subprocess.SubprocessError):
        return ""


def gpus() -> tuple[list[dict[str, Any]], str, list[str]]:
    """GPUs, MIG instances behind theirs, driver and problems by nvidia-smi; nothing of it where there is none."""
    if shutil.which("nvidia-smi") is None:
        return [], "", []
    try:
        code, said, wrong = ask("-q", "-x")
        report = read_report(said)
    except (OSError, subprocess.SubprocessError, ValueError) as why:
        return [], "", ["asking for GPUs by nvidia-smi: %s" % why]
    if report is None:
        return [], "", ["nvidia-smi ended with %d: %s" % (code, wrong or said.strip()[-4000:])]
    table = csv.reader(beside(*TABLE).splitlines(), skipinitialspace=True)
    rows = {row[1]: row for row in table if len(row) == 3 and row[0].isdigit()}
    listed = mig_names(beside("-L")) if "<mig_device>" in said else {}
    problems = ["nvidia-smi: %s" % line[:200] for line in wrong.splitlines()[:8]]
    found: list[dict[str, Any]] = []
    for position, element in enumerate(report.findall("gpu")[:64]):
        one = gpu(element, position, rows)
        if not one["uuid"].startswith("GPU-"):
            problems.append(
                "GPU %d: %s" % (position, "; ".join(one["health"]) or "nvidia-smi tells no UUID of it")
            )
            continue
        found += [one, *instances(element, one, listed)]
    if code and not problems:
        problems = ["nvidia-smi ended with %d" % code]
    return found, cell(report, "driver_version"), problems


def read_report(said: str) -> ET.Element | None:
    """None: it is no report. Raises ValueError for one that no nvidia-smi writes."""
    begin, end = said.find("<?xml"), said.find("</nvidia_smi_log>")
    if begin < 0 or end < 0:
        return None
    if "<!ENTITY" in said:
        raise ValueError("its report defines entities")
    try:
        # Without entities there is nothing to blow up.
        return ET.fromstring(said[begin : end + len("</nvidia_smi_log>")])  # noqa: S314 - see above
    except ET.ParseError as wrong:
        raise ValueError("its report is no XML: %s" % wrong) from wrong


def gpu(element: ET.Element, position: int, rows: dict[str, list[str]]) -> dict[str, Any]:
    uuid = cell(element, "uuid")
    row = rows.get(uuid, ["", "", ""])
    split = cell(element, "mig_mode/current_mig") == "Enabled"
    name = cell(element, "product_name")
    one = measured(element, uuid, int(row[0] or position), name)
    if not one["memoryTotal"] and INTEGRATED.search(name):
        total, available = memory()
        kind = gpu_class(name, total)
        one.update({"class": kind, "memoryTotal": total, "memoryFree": available, "health": []})
    one["pci"] = bus_id(element.get("id") or cell(element, "pci/pci_bus_id"))
    one["computeCapability"] = row[2] if re.match(r"^\d+\.\d+$", row[2]) else ""
    one["eccVolatile"] = uncorrected(element, "volatile")
    one["eccAggregate"] = uncorrected(element, "aggregate")
    one["health"] = broken(element, one["eccVolatile"]) + one["health"]
    one["processes"] = [process for process, _ in processes(element)]
    if split and not element.findall(INSTANCE):
        one["health"].append("MIG is on and it has no instances, so nothing can be computed on it")
    return one


def measured(element: ET.Element, uuid: str, index: int, name: str) -> dict[str, Any]:
    """What a GPU and a MIG instance have in common."""
    total, used, free = (amount(element, "fb_memory_usage/" + part) for part in ("total", "used", "free"))
    health = [] if total else ["the driver does not tell its memory"]
    if total and used is None:
        health = ["the driver does not tell how much of its memory is used"]
    return {
        "uuid": uuid,
        "index": index,
        "name": name,
        "class": gpu_class(name, total or 0),
        "memoryTotal": total or 0,
        "memoryUsed": used or 0,
        "memoryFree": free,
        "health": health,
    }


def instances(element: ET.Element, parent: dict[str, Any], listed: dict[Any, Any]) -> list[dict[str, Any]]:
    """MIG instances whose UUID is told: nothing can be started on another. They share their GPU's fate."""
    found = []
    running = list(processes(element))
    parts = element.findall(INSTANCE)
    sick = ["its GPU: %s" % why for why in broken(element, parent["eccVolatile"])]
    for part in parts:
        profile, uuid = listed.get((parent["uuid"], cell(part, "index")), ("", cell(part, "uuid")))
        if not uuid.startswith("MIG-"):
            continue
        place = (cell(part, "gpu_instance_id"), cell(part, "compute_instance_id"))
        one = measured(part, uuid, parent["index"], ("%s MIG %s" % (parent["name"], profile)).rstrip())
        one["health"] += sick
        one["processes"] = [process for process, where in running if where == place]
        one.update({"parent": parent["uuid"], "pci": parent["pci"]})
        one["computeCapability"] = parent["computeCapability"]
        one["eccVolatile"] = counted(part.findall("ecc_error_count/volatile_count/*"))
        found.append(one)
    inside = [process["pid"] for one in found for process in one["processes"]]
    parent["processes"] = [process for process in parent["processes"] if process["pid"] not in inside]
    if parts and not found:
        told = "MIG is on and the driver names none of its instances (%d), so none can be used"
        parent["health"].append(told % len(parts))
    return found


def mig_names(listing: str) -> dict[tuple[str, str], tuple[str, str]]:
    """(GPU's UUID, number of the instance) -> (profile, the instance's UUID)."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    uuid = ""
    for line in listing.splitlines():
        whole = re.match(r"^GPU \d+: .*\(UUID: (GPU-[^)]+)\)", line)
        part = re.match(r"^\s+MIG (\S+)\s+Device\s+(\d+):\s+\(UUID: (MIG-[^)]+)\)", line)
        if whole:
            uuid = whole.group(1)
        elif part:
            found[uuid, part.group(2)] = (part.group(1), part.group(3))
    return found


def broken(element: ET.Element, errors: int | None) -> list[str]:
    """Why nothing should be computed on it."""
    words = {(part.text or "").strip().strip("[]").lower() for part in element.iter()}
    found = [why for word, why in FATAL if word in words]
    if errors:
        found.append("%d uncorrectable memory errors since the driver was loaded" % errors)
    found += [why for path, why in SICK if cell(element, path).lower() == "yes"]
    action = cell(element, "gpu_recovery_action").lower()
    if action not in ("", "n/a", "none", "not supported", "requested functionality has been deprecated"):
        found.append("the driver asks for this: %s" % action)
    return list(dict.fromkeys(found))


def uncorrected(element: ET.Element, when: str) -> int | None:
    """Older schemas count bits, newer ones tell kinds of memory."""
    cells = element.findall("ecc_errors/%s/*" % when)
    return counted(cells + element.findall("ecc_errors/%s/double_bit/total" % when))


def counted(cells: list[ET.Element]) -> int | None:
    told = [
        int(one.text or "")
        for one in cells
        if ("uncorrectable" in one.tag or one.tag == "total") and (one.text or "").strip().isdigit()
    ]
    return sum(told) if told else None


def processes(element: ET.Element) -> list[tuple[dict[str, Any], tuple[str, str] | None]]:
    """Each once, with the MIG instance that it is on."""
    found: dict[int, tuple[dict[str, Any], tuple[str, str] | None]] = {}
    for one in element.findall("processes/process_info"):
        pid = cell(one, "pid")
        place = (cell(one, "gpu_instance_id"), cell(one, "compute_instance_id"))
        if pid.isdigit():
            held = {"pid": int(pid), "memory": amount(one, "used_memory"), **who(int(pid))}
            before = found.get(int(pid))
            if before is None or (held["memory"] or 0) > (before[0]["memory"] or 0):
                found[int(pid)] = (held, place if place[0].isdigit() else None)
    return list(found.values())


def who(pid: int) -> dict[str, Any]:
    """Whose it is. Inside a pid namespace the driver tells the host's pids: then nobody here is called so."""
    folder = "/proc/%d" % pid
    try:
        owner = os.stat(folder).st_uid
    except OSError:
        return {"user": "?"}
    try:
        user = pwd.getpwuid(owner).pw_name
    except KeyError:
        user = str(owner)
    return {"user": user, "command": first_line(folder + "/comm"), "shard": shard(pid)}


def shard(pid: int) -> str | None:
    """The shard that it says it belongs to, by its control group or its environment, where an agent has gone and its
    engines run on. Good enough to show, and not to count it as a stranger; nothing is ever killed by it."""
    group = re.search(r"/llmgw-[^/]+/([^/]+)", first_line("/proc/%d/cgroup" % pid))
    if group:
        return group.group(1)
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            entries = file.read(MIB).split(b"\0")
    except OSError:
        return None
    marks = [entry[len(MARK) :] for entry in entries if entry.startswith(MARK)]
    return marks[0].decode("utf-8", "replace") if marks else None


def cell(element: ET.Element, path: str) -> str:
    return (element.findtext(path) or "").strip().strip("[]")


def amount(element: ET.Element, path: str) -> int | None:
    found = re.match(r"^(\d+)\s*(B|KiB|MiB|GiB)?$", cell(element, path))
    return int(found.group(1)) * UNITS[found.group(2) or ""] if found else None


def bus_id(address: str) -> str:
    """As sysfs writes it: 00000000:9B:00.0 -> 0000:9b:00.0."""
    found = re.match(r"^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])$", address)
    return ("%04x:%s" % (int(found.group(1), 16), found.group(2))).lower() if found else ""


# ---- InfiniBand and RoCE --------------------------------------------------------------------------------


def adapters(root: str) -> list[dict[str, Any]]:
    """Ports of InfiniBand and RoCE adapters; files may refuse to be read, which means that there is nothing."""
    return [
        adapter_port(root, device, number)
        for device in entries(root)[:64]
        for number in numbers("%s/%s/ports" % (root, device))[:8]
    ]


def adapter_port(root: str, device: str, number: int) -> dict[str, Any]:
    folder = "%s/%s/ports/%d" % (root, device, number)
    state = first_line(folder + "/state").partition(":")[2].strip() or "UNKNOWN"
    rate = re.match(r"\d+(?:\.\d+)?", first_line(folder + "/rate")) if state == "ACTIVE" else None
    layer = first_line(folder + "/link_layer") or "Unknown"
    node = first_line("%s/%s/node_type" % (root, device)).partition(":")[2].strip()
    ethernet = "iWARP" if node == "RNIC" else "RoCE"
    found = gids(folder)
    netdev = next((gid["netdev"] for gid in found if gid["netdev"]), "")
    guid = first_line("%s/%s/node_guid" % (root, device)).lower()
    native = layer == "InfiniBand" and found and found[0]["index"] == 0
    members = first_line("%s/net/%s/bonding/slaves" % (os.path.dirname(root), netdev)) if netdev else ""
    return {
        "device": device,
        "port": number,
        "linkLayer": layer,
        "state": state,
        "rate": float(rate.group(0)) if rate else None,
        "guid": guid if guid.strip("0:") else "",
        "gids": found,
        "transport": {"InfiniBand": "InfiniBand", "Ethernet": ethernet}.get(layer, ""),
        "physical": first_line(folder + "/phys_state").partition(":")[2].strip(),
        "portGuid": ":".join(found[0]["gid"].split(":")[-4:]) if native else "",
        "netdev": netdev,
        "bond": sorted(members.split()[:16]),
    }


def gids(folder: str) -> list[dict[str, Any]]:
    found = []
    for index in numbers(folder + "/gids")[:1024]:
        gid = first_line("%s/gids/%d" % (folder, index)).lower()
        if gid.strip("0:") and gid != EMPTY_LINK_LOCAL:
            kind = first_line("%s/gid_attrs/types/%d" % (folder, index))
            netdev = first_line("%s/gid_attrs/ndevs/%d" % (folder, index))
            found.append({"index": index, "gid": gid, "gidType": kind, "netdev": netdev})
    return found


def entries(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def numbers(folder: str) -> list[int]:
    return sorted(int(name) for name in entries(folder) if name.isdigit())


# ---- all of it ------------------------------------------------------------------------------------------


def facts(folders: list[str], ports: tuple[int, int], sysfs: str) -> dict[str, Any]:
    total, available = memory()
    libc, version = platform.libc_ver()
    given = first_line("/proc/sys/net/ipv4/ip_local_port_range").split()
    shm = disks(["/dev/shm"])  # noqa: S108 - asks for its size, writes nothing
    found, driver, problems = gpus()
    return {
        "hostname": socket.gethostname(),
        "bootId": first_line("/proc/sys/kernel/random/boot_id"),
        "arch": platform.machine(),
        "libc": "%s-%s" % (libc or "unknown", version) if version else libc or "musl",
        "os": os_name(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "memoryTotal": total,
        "memoryAvailable": available,
        "shmTotal": shm[0]["total"] if shm else None,
        "ephemeralPorts": [int(given[0]), int(given[1])] if len(given) == 2 else None,
        "driver": driver,
        "gpuSource": "nvidia-smi" if found else "none",
        "gpus": found,
        "hcaPorts": adapters(sysfs),
        "interfaces": interfaces(),
        "disks": disks(folders),
        "listening": listening(ports),
        "problems": problems,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints what this machine is, as JSON. Changes nothing.")
    parser.add_argument("folders", nargs="*", default=["/"], help="whose disks matter")
    parser.add_argument("--ports", default="1-65535", help="FROM-TO: listeners that are told")
    parser.add_argument("--sysfs", default="/sys/class/infiniband", help="where adapters are described")
    options = parser.parse_args()
    first, _, last = options.ports.partition("-")
    json.dump(facts(options.folders, (int(first), int(last or first)), options.sysfs), sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
