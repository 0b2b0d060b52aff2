"""A driver's command line tool for hosts that have no GPU: it tells of some, and of the processes that hold them."""

from typing import Final

from tests.rig.host import Host

MEMORY: Final = 46068
HELD: Final = 20000
"""MiB that each process holds of its GPU."""
PROGRAM: Final = f"""\
#!/usr/bin/python3 -IS
# Whoever has a GPU's number in CUDA_VISIBLE_DEVICES holds memory of it, as an engine that computes would.
import os, socket, sys

GPUS = int(open("/usr/local/share/gpus").read())
held = {{number: [] for number in range(GPUS)}}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{{pid}}/environ", "rb") as file:
            entries = file.read().split(b"\\0")
        state = open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        continue
    if state in "ZX" or not any(entry.startswith(b"LLMGW_SHARD=") for entry in entries):
        continue
    for entry in entries:
        name, _, value = entry.partition(b"=")
        if name == b"CUDA_VISIBLE_DEVICES":
            for number in filter(str.isdigit, value.decode().split(",")):
                held[int(number)].append(int(pid))

name = socket.gethostname()
if "-x" in sys.argv:
    print('<?xml version="1.0" ?>\\n<nvidia_smi_log><driver_version>590.48.01</driver_version>')
    for number, pids in held.items():
        used = {HELD} * len(pids)
        print(f'<gpu id="00000000:{{number + 16}}:00.0"><product_name>NVIDIA L40S</product_name>')
        print(f"<uuid>GPU-{{name}}-{{number}}</uuid><fb_memory_usage><total>{MEMORY} MiB</total>")
        print(f"<used>{{used}} MiB</used><free>{{max({MEMORY} - used, 0)}} MiB</free></fb_memory_usage><processes>")
        for pid in pids:
            print(f"<process_info><pid>{{pid}}</pid><type>C</type><used_memory>{HELD} MiB</used_memory></process_info>")
        print("</processes></gpu>")
    print("</nvidia_smi_log>")
for asked in [word.partition("=")[2].split(",") for word in sys.argv if word.startswith("--query-gpu=")]:
    for number, pids in held.items():
        used = {HELD} * len(pids)
        told = {{
            "index": number, "uuid": f"GPU-{{name}}-{{number}}", "name": "NVIDIA L40S", "compute_cap": "8.9",
            "memory.total": {MEMORY}, "memory.used": used, "memory.free": max({MEMORY} - used, 0),
            "pci.bus_id": f"00000000:{{number + 16}}:00.0", "driver_version": "590.48.01",
        }}
        print(", ".join(str(told.get(field, "[N/A]")) for field in asked))
"""


def add_gpus(host: Host, count: int) -> None:
    """From the next look on."""
    host.write("/usr/local/share/gpus", str(count))
    host.fake("nvidia-smi", PROGRAM)
