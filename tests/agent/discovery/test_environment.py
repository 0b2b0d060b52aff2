"""Whoever puts a program where a driver's should be learns nothing of the node's secrets from being asked."""

import os
from pathlib import Path

import pytest

from llmgw.agent.discovery.commands import looking_environment
from tests.agent.agents import FLEET
from tests.agent.processes import Machine, on_machine


def test_a_program_that_looks_gets_what_finds_drivers_and_nothing_else() -> None:
    env = {"PATH": "/bin", "LD_LIBRARY_PATH": "/usr/lib", "HF_TOKEN": "secret", "HTTPS_PROXY": "http://u:p@x"}
    assert looking_environment(env) == {
        "LC_ALL": "C.UTF-8",
        "PATH": "/bin",
        "LD_LIBRARY_PATH": "/usr/lib",
    }
    assert looking_environment({}) == {"LC_ALL": "C.UTF-8"}


@pytest.mark.slow
def test_an_agent_asks_the_drivers_program_without_the_nodes_environment(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nenv >> {told}\nexit 9\n")
    program.chmod(0o755)

    async def main(machine: Machine) -> None:
        node = machine.node(env={"HF_TOKEN": "sesame-hub"})
        await machine.transport.bootstrap(node, fleet=FLEET)
        await machine.report(node)
        assert "sesame-hub" in (machine.work(node) / "agent.json").read_text()
        seen = told.read_text()
        assert "PATH=" in seen
        assert "sesame" not in seen

    path = f"{program.parent}:{os.defpath}"
    on_machine(tmp_path, main, environ={"PATH": path, "HOME": str(tmp_path)})
