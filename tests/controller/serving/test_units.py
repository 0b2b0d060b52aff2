"""The ready-made units and the crontab: systemd understands them, they keep little open, and their commands are llmgw's."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from llmgw.cli import output
from llmgw.cli.main import run

EXAMPLES = Path(__file__).parents[3] / "examples"
UNITS = sorted((EXAMPLES / "systemd").glob("llmgw-*"))
PROGRAM = "/opt/llmgw/bin/llmgw"
MOST_EXPOSED = 2.0
"""Of 10, by systemd's own reckoning; a service without any hardening has 9.6."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="no systemd-analyze here: not proved that systemd understands the units",
)


def analyze(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *words], capture_output=True, text=True, check=False, timeout=60
    )


@needs_systemd
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    for unit in UNITS:  # verify asks for the program as well, which is not installed here
        (tmp_path / unit.name).write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
    checked = analyze("verify", "--man=no", *(str(tmp_path / unit.name) for unit in UNITS))
    told = [line for line in checked.stderr.splitlines() if str(tmp_path) in line or "llmgw-" in line]
    assert told == []
    assert len(UNITS) == 3


@needs_systemd
@pytest.mark.parametrize("name", ["llmgw-serve.service", "llmgw-sync.service"])
def test_the_services_keep_little_open(name: str) -> None:
    found = analyze("security", "--offline=true", str(EXAMPLES / "systemd" / name))
    if "unrecognized option" in found.stderr:
        pytest.skip(
            "this systemd-analyze is too old to look at files: not proved how much the units keep open"
        )
    exposed = re.search(r"exposure level for \S+: ([\d.]+)", found.stdout)
    assert exposed, found.stdout + found.stderr
    assert float(exposed[1]) <= MOST_EXPOSED


def commands() -> list[str]:
    lines = [
        line for unit in UNITS for line in unit.read_text().splitlines() if line.startswith("ExecStart=")
    ]
    lines += re.findall(
        r"(?m)^[*/0-9 ]+\s(llmgw .*?)(?: >>.*)?$", (EXAMPLES / "cron" / "crontab").read_text()
    )
    return [line.removeprefix("ExecStart=") for line in lines]


def test_what_they_run_are_commands_of_llmgw_with_options_that_exist(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["serve", "--no-such-option", "--help"]) == output.USAGE
    seen = set()
    for line in commands():
        program, *words = shlex.split(line)
        assert program in (PROGRAM, "llmgw")
        assert run([*words, "--help"]) == output.DONE
        seen.update({"serve", "sync"} & set(words))
    assert seen == {"serve", "sync"}


def test_both_services_are_shut_in_alike() -> None:
    first, second = (
        text.partition("StateDirectory=")[2].partition("\n\n[Install]")[0].strip()
        for text in (
            (EXAMPLES / "systemd" / f"llmgw-{name}.service").read_text() for name in ("serve", "sync")
        )
    )
    assert first == second
