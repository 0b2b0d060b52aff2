"""Machines as a look would find them."""

import json
import subprocess
import sys
from typing import Any

from llmgw.controller.nodes.bootstrap.look import program
from llmgw.controller.nodes.bootstrap.machine import Folder, Inside, Machine, Python
from llmgw.model.struct import replace
from llmgw.wire import codec

WORK = "/var/lib/llmgw-agent"
GIB = 1024**3


def inside(python: str = sys.executable) -> Inside:
    """What a real interpreter of this machine tells."""
    told = subprocess.run(
        [python, "-I", "-S", "-", "/var/lib/none", "nobody-here", "none"],
        input=program(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    return codec.from_json(Inside, json.loads(told.stdout.removeprefix(b"look ")), strict=True)


def bare(**changed: Any) -> Inside:
    """A fresh Debian with systemd and everything that is wanted."""
    python = Python(version=(3, 11), executable="/usr/bin/python3.11", soabi="cpython-311-x86_64-linux-gnu")
    made = Inside(
        python=python,
        arch="x86_64",
        libc="glibc-2.36",
        folders=(Folder(path=WORK, nearest="/var/lib", free=100 * GIB),),
        systemd=True,
        first="systemd",
        programs=("systemctl", "useradd"),
    )
    return replace(made, **changed)


def machine(inside: Inside | None = None, **changed: Any) -> Machine:
    made = Machine(
        root=True,
        user="root",
        arch="x86_64",
        os_ids=("debian",),
        os_name="Debian GNU/Linux 12 (bookworm)",
        free=100 * GIB,
        nearest="/var/lib",
        writable=True,
        inside=bare() if inside is None else inside,
    )
    return replace(made, **changed)
