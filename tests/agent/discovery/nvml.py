"""Builds the fake libnvidia-ml.so.1 and runs the real discovery on it: through the agent's child and NVML's binding."""

import asyncio
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from llmgw.agent.discovery.gpus import GpuDiscovery, GpuSample

SOURCE = Path(__file__).with_name("fake_nvml.c")
NAME = "libnvidia-ml.so.1"
FLAGS = (
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    f"-Wl,-soname,{NAME}",
)

HOST = (512 * 1024**3, 400 * 1024**3)

H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-aaaa",
    "pci": "00000000:19:00.0",
    "memory": "85520809984 85000000000 520809984",
    "capability": "9 0",
    "ecc_uncorrected_volatile": "0",
    "ecc_uncorrected_aggregate": "0",
    "remapped_rows": "0 0 0 0",
    "mig_mode": "0 0",
    "max_mig": "7",
}


def build(folder: Path, *definitions: str) -> Path:
    """The folder that holds the library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip(
            "no C compiler: NVML's real binding and its error paths were NOT tested (apt install gcc)"
        )
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [compiler, *FLAGS, *definitions, "-o", str(folder / NAME), str(SOURCE)], check=True, timeout=60
    )
    return folder


def h100(number: int = 0, **changed: str) -> dict[str, str]:
    own = {"uuid": f"GPU-{'abcdefgh'[number] * 4}", "pci": f"00000000:{0x19 + number:02X}:00.0"}
    return {**H100, **own, **changed}


def write(file: Path, gpus: Mapping[str, Mapping[str, str]], **system: str) -> None:
    """What the library tells from now on; whole at once, because it may be reading."""
    lines = [f"{key} = {value}" for key, value in {"driver": "590.48.01", **system}.items()]
    for section, keys in gpus.items():
        lines += [f"[{section}]", *(f"{key} = {value}" for key, value in keys.items())]
    beside = file.with_suffix(".new")
    beside.write_text("\n".join(lines) + "\n")
    beside.replace(file)


@dataclass(slots=True)
class Machine:
    """What the fake tells: a file that is read anew by every call."""

    library: Path
    file: Path
    discovery: GpuDiscovery

    @classmethod
    def at(cls, folder: Path, library: Path, deadline: float = 20.0) -> "Machine":
        file = folder / "gpus.txt"
        env = {"LD_LIBRARY_PATH": str(library), "LLMGW_FAKE_NVML": str(file), "PATH": "/nowhere"}
        return cls(library, file, GpuDiscovery(env=env, deadline=deadline, host_memory=lambda: HOST))

    def tell(self, gpus: Mapping[str, Mapping[str, str]], **system: str) -> None:
        write(self.file, gpus, **system)

    def sample(self) -> GpuSample:
        return asyncio.run(self.discovery.sample())
