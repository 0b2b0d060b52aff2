"""How every command begins and ends: at once, with one message, with a known exit code."""

import io
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from llmgw.cli import main, output
from llmgw.model.problems import (
    HeldError,
    InvalidError,
    LlmgwError,
    Problem,
    RetryError,
    StaleError,
    StalledError,
    Where,
)

HEAVY = ("rich", "httpx", "jsonschema_rs", "ruamel", "asyncio", "psutil")
UNASKED = (
    "rich",
    "pygments",
    "httpx",
    "paramiko",
    "starlette",
    "uvicorn",
    "prometheus_client",
    "ruamel",
    "psutil",
    "importlib.metadata",
    "llmgw.controller.nodes.bootstrap.install",
    "llmgw.controller.passes.reconcile",
    "llmgw.core.show.status",
)
"""What a plan loads only when it has to: for a terminal, for weights that nobody has seen, for nodes behind SSH, for machines
without an agent; and what only an apply or a status does."""
EVERY = [(name, entry) for section in main.COMMANDS.values() for name, entry in section.items()]


def llmgw(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmgw.cli.main", *words],
        cwd=cwd,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(cwd),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "heavy"), [(["--help"], HEAVY), (["plan", "--help"], UNASKED)], ids=" ".join
)
def test_nothing_heavy_is_imported_that_is_not_needed(words: list[str], heavy: tuple[str, ...]) -> None:
    program = (
        "import sys, json\n"
        "from llmgw.cli.main import run\n"
        f"code = run({words!r})\n"
        "print(json.dumps([code, sorted(sys.modules)]))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    code, modules = json.loads(said.stdout.splitlines()[-1])
    assert code == 0
    assert not set(heavy) & set(modules)


@pytest.mark.parametrize(("name", "entry"), EVERY, ids=[name for name, _ in EVERY])
def test_the_table_of_commands_agrees_with_the_commands(name: str, entry: main.Entry) -> None:
    module, _, attribute = entry.place.partition(":")
    command = getattr(import_module(f"llmgw.cli.{module}"), attribute)
    assert isinstance(command, click.Command)
    assert command.get_short_help_str(limit=200) == entry.help


@pytest.mark.parametrize("name", [name for name, _ in EVERY])
def test_every_command_explains_itself_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"llmgw {name}" in text.partition("Options:")[0] or name == "node"


@pytest.mark.parametrize(
    "words", [["plann"], ["plan", "--nope"], ["--nope"], ["history", "x"], ["schema", "nope"], ["logs"]]
)
def test_wrong_usage_is_64(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(words) == 64
    assert "Error:" in capsys.readouterr().err


def test_a_slip_of_the_keyboard_is_answered_with_the_command_that_was_meant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main.run(["aply"])
    assert "Did you mean 'apply'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StaleError("x"), 3),
        (HeldError("x"), 4),
        (StalledError("x"), 1),
        (RetryError("x"), 1),
        (InvalidError((Problem(what="x"),)), 1),
        (click.UsageError("x"), 64),
        (ValueError("x"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert output.exit_code(error) == code


def test_a_command_that_only_looks_does_not_say_that_nothing_was_done(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: Modle\n")
    done = llmgw("validate", str(tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[1:]) == (1, ["Error: 1 problem"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scale", "chat", "two"], "'two' is no whole number from 0 up: write one such as 3"),
        (["history", "abc"], "'abc' is no whole number from 0 up: write one such as 12"),
        (["history", "-n", "0"], "'0' is no whole number from 1 to 2000: write one such as 50"),
    ],
)
def test_what_is_no_number_is_refused_with_what_is_expected(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(words) == output.USAGE
    assert said in capsys.readouterr().err


def test_problems_are_told_one_a_line_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    first = Problem(
        what="no such profile", instead="there is small", where=Where(file="m.yaml", line=3, column=5)
    )
    output.explain(InvalidError((first, Problem(what="another"))))
    assert capsys.readouterr().err.splitlines() == [
        "m.yaml:3:5: no such profile: there is small",
        "another",
        "Error: 2 problems: nothing was done",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "head"), [("", "\x1b["), ("1", "Error: ")])
def test_an_error_is_in_colour_only_where_somebody_wants_it(
    no_color: str, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    output.complain("it broke")
    assert isinstance(sys.stderr, Terminal)
    assert sys.stderr.getvalue().startswith(head)


def test_no_secret_shows_in_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    canary = "canary-5f1c09d2-do-not-print"
    output.redactor().learn(canary)
    output.explain(LlmgwError(f"pushing to https://ann:{canary}@example.org/x failed with {canary}"))
    output.note(f"still {canary}")
    told = capsys.readouterr()
    assert canary not in told.out + told.err
    assert "example.org/x" in told.err


def test_outside_of_a_repository_the_error_says_what_to_do(tmp_path: Path) -> None:
    said = llmgw("plan", cwd=tmp_path)
    assert said.returncode == 1
    assert "--repo" in said.stderr
    assert "Traceback" not in said.stderr
    assert "Traceback" in llmgw("plan", cwd=tmp_path, LLMGW_DEBUG="1").stderr


def test_options_of_the_fleet_may_stand_before_or_behind_the_command(tmp_path: Path) -> None:
    for words in (("--repo", "/nowhere", "plan"), ("plan", "--repo", "/nowhere")):
        said = llmgw(*words, cwd=tmp_path)
        assert said.returncode == 1
        assert "/nowhere" in said.stderr


def test_a_reader_who_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    words = f"{sys.executable} -m llmgw.cli.main schema plan | head -n 1"
    said = subprocess.run(
        ["bash", "-o", "pipefail", "-c", words],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.stderr == ""
    assert said.returncode == 0


def test_apply_asks_only_where_somebody_can_answer(tmp_path: Path) -> None:
    said = llmgw("apply", cwd=tmp_path)
    assert said.returncode == 64
    assert "--yes" in said.stderr
