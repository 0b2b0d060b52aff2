"""Engines are installed for real: environments, pip from a wheel directory, our own programs, and clear errors."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.jobs.commands import run_command
from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.files import NoSpaceError, sync_disk
from llmgw.agent.jobs.install import Installer, install_program
from llmgw.agent.jobs.targets import ENGINE_MARKER, DiskTargets
from llmgw.model.launch import HelpSpec, InstallSpec, Program
from llmgw.model.problems import StalledError
from tests.agent.agents import install_spec, until
from tests.agent.jobs.wheels import make_wheel

PROGRAM = "import sys, json\nprint(json.dumps([sys.prefix, sys.argv[1:]]))\n"
ENV = {"PATH": os.defpath, "HOME": "/nonexistent", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, timeout=100))


def installer(folder: Path, **changes: Any) -> Installer:
    (folder / "engines").mkdir(parents=True, exist_ok=True)
    (folder / "runtime").mkdir(exist_ok=True)
    (folder / "runtime" / "tool.py").write_text(PROGRAM)
    given = {"env": ENV, "reserve": 0, **changes}
    return Installer(engines=folder / "engines", runtime=folder / "runtime", **given)


def with_program(**changes: Any) -> InstallSpec:
    return install_spec(programs=(Program(runtime="tool", install_as="a-tool"),), **changes)


def test_an_engine_of_our_own_is_an_environment_without_pip_that_runs_its_program(tmp_path: Path) -> None:
    doer = installer(tmp_path)
    spec = with_program()

    async def main() -> None:
        assert not doer.complete(spec)
        await doer.run(spec, Progress())
        assert doer.complete(spec)

    run(main())
    folder = tmp_path / "engines" / "sim-1-abababab"
    told = subprocess.run([folder / "bin" / "a-tool", "x y"], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == f'["{folder}", ["x y"]]'
    assert not list(folder.glob("lib/python*/site-packages/pip"))
    targets = DiskTargets(engines_folder=tmp_path / "engines", weights_folder=tmp_path / "weights")
    assert [(engine.name, engine.digest, engine.path) for engine in targets.engines()] == [
        ("sim", spec.digest, str(folder))
    ]
    assert [entry.name for entry in (tmp_path / "engines").iterdir()] == ["sim-1-abababab"]


@pytest.mark.parametrize(
    ("sure", "flags", "problem"),
    [
        (("--port",), ("--port", "-h"), ""),
        (("--host",), None, "its help looks truncated: it names 2 flags, and not --host"),
    ],
)
def test_its_help_is_read_once_it_is_installed_and_bad_help_fails_no_install(
    tmp_path: Path, sure: tuple[str, ...], flags: tuple[str, ...] | None, problem: str
) -> None:
    doer = installer(tmp_path)
    (tmp_path / "runtime" / "tool.py").write_text("print('usage: tool [-h]\\n\\n  --port PORT  where')\n")
    spec = with_program(help=HelpSpec(argv=("${engine}/bin/a-tool", "--help"), sure=sure))
    run(doer.run(spec, Progress()))
    assert doer.complete(spec)
    (engine,) = DiskTargets(
        engines_folder=tmp_path / "engines", weights_folder=tmp_path / "weights"
    ).engines()
    assert (engine.flags, engine.flags_problem) == (flags, problem)


@pytest.mark.parametrize("name", ["with space", "l" * 140], ids=["space", "long"])
def test_a_program_runs_from_paths_that_a_hash_bang_line_cannot_hold(tmp_path: Path, name: str) -> None:
    doer = installer(tmp_path / name)
    run(doer.run(with_program(), Progress()))
    folder = tmp_path / name / "engines" / "sim-1-abababab"
    told = subprocess.run([folder / "bin" / "a-tool", "x y"], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == f'["{folder}", ["x y"]]'


def test_requirements_come_from_a_wheel_directory_and_nowhere_else(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "tinydep", files={"tinydep.py": b"VALUE = 7\n"})
    make_wheel(
        wheels, "tinyengine", files={"tinyengine.py": b"from tinydep import VALUE\n"}, requires="tinydep"
    )
    doer = installer(tmp_path)
    spec = install_spec(requirements=("tinyengine==1.0",), wheel_dir=str(wheels))
    progress = Progress()
    run(doer.run(spec, progress))
    python = tmp_path / "engines" / "sim-1-abababab" / "bin" / "python"
    told = subprocess.run(
        [python, "-c", "import tinyengine; print(tinyengine.VALUE)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "7\n"
    assert progress.line == "installed"


def test_a_requirement_that_is_nowhere_is_an_error_with_pips_own_words(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    doer = installer(tmp_path)
    spec = install_spec(requirements=("nosuchengine==1.0",), wheel_dir=str(tmp_path / "wheels"))
    with pytest.raises(StalledError, match=r"installing sim 1 by pip: ERROR.*nosuchengine==1\.0"):
        run(doer.run(spec, Progress()))
    assert not doer.complete(spec)


def test_a_wheel_directory_that_is_missing_is_said_before_anything_is_made(tmp_path: Path) -> None:
    doer = installer(tmp_path)
    spec = install_spec(requirements=("x",), wheel_dir=str(tmp_path / "nowhere"))
    with pytest.raises(StalledError, match="no such directory on this node"):
        run(doer.run(spec, Progress()))
    assert list((tmp_path / "engines").iterdir()) == []


def test_a_python_without_venv_is_an_error_with_the_line_that_installs_it(tmp_path: Path) -> None:
    fake = tmp_path / "python3"
    fake.write_text(
        f'#!/bin/sh\nif [ "$2" = venv ]; then echo "ensurepip is not available" >&2; exit 1; fi\nexec {sys.executable} "$@"\n'
    )
    fake.chmod(0o755)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    doer = installer(tmp_path, python=str(fake))
    with pytest.raises(StalledError, match=rf"ensurepip is not available.*apt install python{version}-venv"):
        run(doer.run(install_spec(), Progress()))


def test_a_python_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    doer = installer(tmp_path)
    with pytest.raises(StalledError, match=r"starting /no/such/python: No such file"):
        run(doer.run(install_spec(python="/no/such/python"), Progress()))


def test_a_full_disk_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    doer = installer(tmp_path, reserve=2**60)
    with pytest.raises(NoSpaceError, match="free space there"):
        run(doer.run(install_spec(), Progress()))
    assert list((tmp_path / "engines").iterdir()) == []


def test_a_program_that_this_agent_does_not_have_asks_for_an_upgrade(tmp_path: Path) -> None:
    installer(tmp_path)
    with pytest.raises(StalledError, match="upgrade the agent"):
        install_program(
            Program(runtime="future", install_as="x"), runtime=tmp_path / "runtime", environment=tmp_path
        )


@pytest.mark.parametrize("changes", [{"engine": "../x"}, {"version": "1/../../x"}, {"version": ""}])
def test_an_engine_is_never_a_path(tmp_path: Path, changes: dict[str, str]) -> None:
    with pytest.raises(StalledError, match="only letters"):
        installer(tmp_path).complete(install_spec(**changes))


def test_an_engine_is_on_the_disk_before_it_is_marked_whole(tmp_path: Path) -> None:
    """A marker that outlives a power failure would vouch for files that do not."""
    seen: list[tuple[bool, bool]] = []

    def settle(folder: Path) -> None:
        sync_disk(folder)
        seen.append(((folder / "bin" / "a-tool").exists(), (folder / ENGINE_MARKER).exists()))

    doer, spec = installer(tmp_path, settle=settle), with_program()
    run(doer.run(spec, Progress()))
    assert seen == [(True, False)]
    assert doer.complete(spec)


def test_an_engine_that_cannot_be_brought_onto_the_disk_is_not_marked_whole(tmp_path: Path) -> None:
    def settle(folder: Path) -> None:
        sync_disk(folder / "nowhere")

    doer, spec = installer(tmp_path, settle=settle), with_program()
    with pytest.raises(StalledError, match="see to the node's disk"):
        run(doer.run(spec, Progress()))
    assert not doer.complete(spec)


def test_a_half_made_engine_is_made_anew(tmp_path: Path) -> None:
    doer = installer(tmp_path)
    spec = with_program()
    half = tmp_path / "engines" / "sim-1-abababab"
    (half / "bin").mkdir(parents=True)
    (half / "rubbish").write_text("x")
    assert not doer.complete(spec)
    run(doer.run(spec, Progress()))
    assert doer.complete(spec)
    assert not (half / "rubbish").exists()


def test_a_cancelled_install_leaves_no_process_behind(tmp_path: Path) -> None:
    script = "import subprocess, sys, time; subprocess.Popen(['sleep', '600']); print('up', flush=True); time.sleep(600)"

    async def main() -> None:
        lines: list[str] = []
        task = asyncio.ensure_future(
            run_command(
                [sys.executable, "-c", script],
                env=ENV,
                directory=tmp_path,
                told=lines.append,
            )
        )
        await until(lambda: lines)
        assert len(marked(tmp_path)) == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not marked(tmp_path))

    run(main())


def marked(folder: Path) -> list[int]:
    """Pids that work below the folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                if (process / "cwd").readlink().is_relative_to(folder):
                    found.append(int(process.name))
    return found


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_an_index_with_a_password_is_neither_in_the_command_line_nor_in_the_error(tmp_path: Path) -> None:
    doer = installer(tmp_path)
    spec = install_spec(requirements=("x",), index_url="http://ann:canary-7f3a@127.0.0.1:1/simple")

    async def main() -> None:
        progress = Progress()
        seen: list[str] = []
        task = asyncio.ensure_future(doer.run(spec, progress))
        while not task.done():
            seen.extend(command_line(pid) for pid in marked(tmp_path))
            assert "canary" not in progress.line
            await asyncio.sleep(0.02)
        with pytest.raises(StalledError) as caught:
            await task
        assert "canary" not in str(caught.value)
        assert any("install" in line for line in seen)
        assert not any("canary" in line for line in seen)

    run(main())
