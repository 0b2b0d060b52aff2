"""What a service manager is told: over a real socket, as systemd's."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llmgw.notify import ServiceManager


@contextmanager
def manager(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address)
        listening.settimeout(10)
        yield listening


def said(listening: socket.socket) -> str:
    return listening.recv(1024).decode()


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_it_is_told_ready_goes_on_at_intervals_and_stopping(tmp_path: Path, kind: str) -> None:
    name = str(tmp_path / "notify")
    shown, address = (name, name) if kind == "path" else (f"@{name}", f"\0{name}")

    async def story(listening: socket.socket) -> list[str]:
        env = {"NOTIFY_SOCKET": shown, "WATCHDOG_USEC": "60000", "WATCHDOG_PID": str(os.getpid())}
        one = ServiceManager(env)
        one.ready()
        found = [await asyncio.to_thread(said, listening) for _ in range(4)]
        one.stopping()
        while found[-1] != "STOPPING=1":
            found.append(await asyncio.to_thread(said, listening))
        return found

    with manager(address) as listening:
        found = asyncio.run(story(listening))
    assert found[:4] == ["READY=1", *["WATCHDOG=1"] * 3]
    assert found[-1] == "STOPPING=1"


def test_another_processes_watchdog_is_not_ours_to_feed(tmp_path: Path) -> None:
    async def story(listening: socket.socket) -> list[str]:
        env = {"NOTIFY_SOCKET": str(tmp_path / "n"), "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
        one = ServiceManager(env)
        one.ready()
        await asyncio.sleep(0.05)
        one.stopping()
        return [said(listening), said(listening)]

    with manager(str(tmp_path / "n")) as listening:
        assert asyncio.run(story(listening)) == ["READY=1", "STOPPING=1"]


@pytest.mark.parametrize("address", ["", "/nowhere/at/all", "nonsense", "@"])
def test_without_a_manager_nothing_happens(address: str) -> None:
    async def story() -> None:
        one = ServiceManager({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "x"})
        one.ready()
        one.stopping()

    asyncio.run(story())
