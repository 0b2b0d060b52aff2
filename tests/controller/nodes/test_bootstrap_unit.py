"""How an agent is started at boot: the best way that a machine has, in words that its tools accept."""

import shutil
import subprocess
from pathlib import Path

import pytest

from llmgw.controller.nodes.bootstrap.machine import Inside
from llmgw.controller.nodes.bootstrap.unit import boot_entry, in_background, init_script, unit
from tests.controller.nodes.machines import WORK, bare

OLD = bare(
    systemd=False, first="init", programs=("useradd", "crontab", "update-rc.d"), init_d=True, rc_local=True
)


def with_launcher(folder: Path) -> str:
    work = folder / "odd, work"
    program = work / "current" / "bin" / "llmgw-agent"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return str(work)


@pytest.mark.parametrize("odd", [False, True])
def test_systemd_accepts_the_unit(tmp_path: Path, odd: bool) -> None:  # noqa: FBT001 - two kinds of paths
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: not proved that systemd accepts the unit")
    work = with_launcher(tmp_path)
    if not odd:
        plain = tmp_path / "plain"
        plain.symlink_to(work)
        work = str(plain)
    file = tmp_path / "llmgw-agent.service"
    file.write_text(unit(work))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (
        done.returncode,
        [line for line in done.stderr.splitlines() if "llmgw-agent.service" in line],
    ) == (0, [])
    file.write_text(unit(work).replace("current/bin", "nowhere"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0, "the check can fail"


def test_the_unit_lets_engines_outlive_the_agent_and_hides_nothing_from_them() -> None:
    lines = unit(WORK).splitlines()
    assert {
        "KillMode=process",
        "Restart=always",
        "OOMPolicy=continue",
        "Delegate=yes",
        "LimitMEMLOCK=infinity",
    } <= set(lines)
    hiding = (
        "Protect",
        "Private",
        "Device",
        "Restrict",
        "SystemCall",
        "MemoryMax",
        "NoNew",
        "ReadOnly",
        "Inaccessible",
    )
    assert not [line for line in lines if line.startswith(hiding)]


@pytest.mark.parametrize(
    ("inside", "root", "way", "note"),
    [
        (bare(), True, "systemd", ""),
        (bare(programs=("crontab",), cron_runs=True), False, "crontab", ""),
        (OLD, True, "crontab", "its agent starts at boot by cron, but no cron daemon runs: start one"),
        (bare(systemd=False, first="init", programs=(), rc_local=True, init_d=True), True, "rc.local", ""),
        (bare(systemd=False, first="init", programs=("rc-update",), local_d=True), True, "local.d", ""),
        (bare(systemd=False, first="init", programs=("chkconfig",), init_d=True), True, "init.d", ""),
        (
            bare(systemd=False, first="sshd", programs=("update-rc.d",), init_d=True),
            True,
            "init.d",
            "its agent starts at boot by /etc/init.d; process 1 is sshd: see that it runs what lies there",
        ),
    ],
)
def test_the_best_way_that_there_is_is_taken(inside: Inside, root: bool, way: str, note: str) -> None:  # noqa: FBT001 - a table
    entry = boot_entry(inside, WORK, root=root)
    assert (entry.way, entry.note) == (way, note)


@pytest.mark.parametrize("root", [True, False])
def test_where_there_is_no_way_it_says_so_and_what_to_do(root: bool) -> None:  # noqa: FBT001 - a table
    entry = boot_entry(bare(systemd=False, first="tini", programs=(), init_d=True), WORK, root=root)
    assert (entry.way, entry.text) == ("none", "")
    assert entry.note == (
        "nothing here starts its agent at boot (no systemd, cron, rc.local or init.d): run `( /var/lib/llmgw-agent/current/bin/llmgw-agent"
        " daemon --work /var/lib/llmgw-agent </dev/null >>/var/lib/llmgw-agent/agent.log 2>&1 & )` when the machine boots, or bootstrap"
        " again after each boot"
    )


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_shells_accept_the_init_script_and_the_line_whatever_the_directory(
    tmp_path: Path, shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}: not proved that it accepts the init script")
    work = str(tmp_path / "so odd")
    for text in (init_script(work), in_background(work)):
        subprocess.run([shell, "-n"], input=text, text=True, check=True, timeout=10)
    told = subprocess.run(
        [shell, "-s", "status"],
        input=init_script(work),
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )
    assert told.returncode == 3
    assert told.stdout.endswith("does not run\n")
