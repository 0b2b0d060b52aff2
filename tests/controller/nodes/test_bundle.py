"""Bundles: what an agent needs on a machine, no more, the same bytes each time, and it runs there."""

import asyncio
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import llmgw
from llmgw import __version__
from llmgw.controller.nodes.bootstrap.bundle import Bundle, Bundles
from llmgw.controller.nodes.bootstrap.packages import ROOTS, Need, read_wheel, required
from llmgw.controller.nodes.bootstrap.target import Target, target_of
from llmgw.controller.nodes.bootstrap.wheels import Wheels, newest
from llmgw.controller.nodes.link import open_link
from llmgw.model.manifest import Pip
from llmgw.model.problems import StalledError
from llmgw.wire import codec
from llmgw.wire.setup import AgentSettings
from tests.controller.nodes.machines import inside


def _python310() -> Path:
    """From the PATH or from pyenv; a path that is not there when there is none."""
    kept = sorted(Path.home().glob(".pyenv/versions/3.10.*/bin/python3.10"))
    found = shutil.which("python3.10", path="/usr/bin:/usr/local/bin")
    return Path(found) if found else next(iter(kept), Path("/usr/bin/python3.10"))


PYTHON310 = _python310()
HERE = target_of(inside())
PY310 = Target(arch="x86_64", libc="glibc", libc_version=(2, 31), python=(3, 10))
PROJECT = Path(llmgw.__file__).parent.parent


LOADED = "import sys; sys.path.insert(0, {}); import llmgw, httpx, psutil, pynvml as n; print(llmgw.__file__, httpx.__file__, psutil.__file__, n.__file__)"


def bundles(folder: Path, environ: Mapping[str, str] | None = None) -> Bundles:
    env = dict(os.environ) if environ is None else environ
    return Bundles(folder / "bundles", Wheels(cache=folder / "wheels", home=folder, environ=env))


def build(made: Bundles, target: Target, pip: Pip = Pip()) -> Bundle:  # noqa: B008 - a frozen value
    return asyncio.run(made.bundle(target, pip))


def build_or_skip(folder: Path, target: Target, unproved: str) -> Bundle:
    try:
        return build(bundles(folder), target)
    except StalledError as wrong:
        if "fetching a wheel" not in str(wrong):
            raise
        pytest.skip(f"no package index ({wrong}): not proved that {unproved}")


def files(bundle: Bundle) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(bundle.data), mode="r:gz") as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr] # all are files


def test_the_bundle_for_this_python_needs_no_index(tmp_path: Path) -> None:
    bundle = build(bundles(tmp_path, environ={"PATH": "/nowhere"}), HERE)
    assert not (tmp_path / "wheels").exists()
    names = {package.partition("==")[0] for package in bundle.packages}
    assert {canonicalize_name(Requirement(root).name) for root in ROOTS} | {
        "httpcore",
        "h11",
        "anyio",
        "certifi",
        "idna",
    } <= names


def test_the_same_content_is_the_same_bytes_whenever_and_by_whomever_it_is_built(tmp_path: Path) -> None:
    copied = tmp_path / "elsewhere" / "llmgw"
    shutil.copytree(Path(llmgw.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    for path in copied.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    first = build(bundles(tmp_path / "a"), HERE)
    other = Bundles(tmp_path / "b", Wheels(cache=tmp_path / "w", home=tmp_path, environ={}), package=copied)
    assert build(other, HERE) == first
    (copied / "agent" / "daemon.py").write_text("# another\n")
    changed = Bundles(tmp_path / "c", Wheels(cache=tmp_path / "w", home=tmp_path, environ={}), package=copied)
    assert build(changed, HERE).digest != first.digest


def test_the_controllers_part_and_this_machines_traces_stay_here(tmp_path: Path) -> None:
    names = files(build(bundles(tmp_path), HERE))
    parts = {name.split("/")[2] for name in names if name.startswith("lib/llmgw/")}
    assert {"agent", "runtime", "model", "wire", "core", "clock.py", "__init__.py"} <= parts
    assert not {"controller", "cli", "engines", "manifests", "gateway", "schemas"} & parts
    core = {name.removeprefix("lib/llmgw/core/") for name in names if name.startswith("lib/llmgw/core/")}
    assert "lifecycle.py" in {name.rpartition("/")[2] for name in core}
    assert not [name for name in core if "plan" in name or "place" in name or "resolv" in name]
    assert not [
        name for name in names if name.endswith((".pyc", "/RECORD", "/direct_url.json")) or ".." in name
    ]
    assert [name for name in names if "licen" in name.lower() and "psutil" in name], (
        "licences travel with the code"
    )
    told = b"".join(names[name] for name in names if name.startswith("lib/llmgw/") or name == "bundle.json")
    assert str(PROJECT).encode() not in told


def test_the_roots_are_what_the_project_says_that_both_parts_need() -> None:
    declared = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]
    both = {str(Requirement(text)) for text in declared if Requirement(text).marker is None}
    assert {str(Requirement(text)) for text in ROOTS} == both - {"click>=8.1"}, "click is the command line's"


def test_a_bundle_is_built_once_a_kind_and_kept_for_people_who_want_to_look_into_it(tmp_path: Path) -> None:
    made = bundles(tmp_path)
    first = build(made, HERE)
    kept = list((tmp_path / "bundles").iterdir())
    assert [path.read_bytes() for path in kept] == [first.data]
    assert build(made, HERE) is first


@pytest.mark.parametrize(
    ("target", "native"),
    [
        (PY310, "x86_64"),
        (Target(arch="aarch64", libc="glibc", libc_version=(2, 35), python=(3, 12)), "aarch64"),
        (Target(arch="x86_64", libc="musl", libc_version=(1, 2), python=(3, 12)), "musl"),
    ],
    ids=str,
)
def test_bundles_for_other_kinds_of_machines_come_from_the_index(
    tmp_path: Path, target: Target, native: str
) -> None:
    bundle = build_or_skip(tmp_path, target, f"a bundle for {target} can be made")
    names = files(bundle)
    asked = {"exceptiongroup", "typing-extensions"} if target.python == (3, 10) else set()
    assert asked <= {package.partition("==")[0] for package in bundle.packages}
    wheels = [about.decode() for name, about in names.items() if name.endswith("WHEEL") and "psutil" in name]
    assert len(wheels) == 1
    assert native in wheels[0]
    library = next(
        data for name, data in names.items() if name.startswith("lib/psutil/") and name.endswith(".so")
    )
    assert library[18:20] == (b"\xb7\x00" if target.arch == "aarch64" else b"\x3e\x00"), "the ELF machine"


@pytest.mark.parametrize(
    ("python", "target"),
    [(Path("/usr/bin/python3"), None), (PYTHON310, PY310)],
    ids=["the system's", "3.10"],
)
def test_the_agent_answers_from_its_bundle_and_nothing_else(
    tmp_path: Path, python: Path, target: Target | None
) -> None:
    if not python.exists():
        pytest.skip(f"no {python}: not proved that an agent runs on it")
    target = target or target_of(inside(str(python)))
    if target.python < (3, 10):
        pytest.skip(f"{python} is older than 3.10: not proved that an agent runs on it")
    bundle = build_or_skip(tmp_path, target, f"an agent runs on {python}")
    home, work = tmp_path / "bundle", tmp_path / "work"
    with tarfile.open(fileobj=io.BytesIO(bundle.data), mode="r:gz") as archive:
        archive.extractall(home, filter="data")
    work.mkdir()
    (work / "agent.json").write_bytes(codec.dumps(AgentSettings(node="n1")))
    argv = [str(python), "-I", "-S", str(home / "main.py")]
    loaded = subprocess.run(
        [
            *argv[:3],
            "-c",
            LOADED.format(repr(str(home / "lib"))),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )  # fmt: skip - one command
    assert all(name.startswith(str(home)) for name in loaded.stdout.split())
    agent = subprocess.Popen([*argv, "daemon", "--work", str(work)], env={"PATH": os.defpath}, cwd="/")
    try:
        asyncio.run(_hello(work, agent))
    finally:
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(20) == 0


async def _hello(work: Path, agent: "subprocess.Popen[bytes]") -> None:
    async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(work / "agent.sock"))

    async with asyncio.timeout(30):
        while not (work / "agent.sock").exists():
            assert agent.poll() is None, "the agent has ended"
            await asyncio.sleep(0.05)
        link = await open_link(dial, node="n1", fleet="fleet-1")
        assert (link.hello.agent_version, link.hello.node) == (__version__, "n1")
        await link.close()


# ---- wheels ---------------------------------------------------------------------------------------------


def wheel(folder: Path, name: str, *, requires: tuple[str, ...] = (), tag: str = "py3-none-any") -> Path:
    """``name`` is ``package-version``."""
    folder.mkdir(exist_ok=True)
    package, _, version = name.partition("-")
    path = folder / f"{name}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        asks = "".join(f"Requires-Dist: {one}\n" for one in requires)
        archive.writestr(f"{package}/__init__.py", "")
        archive.writestr(f"{name}.data/purelib/{package}/more.py", "")
        archive.writestr(f"{name}.data/scripts/run", "#!python")
        archive.writestr(
            f"{name}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n{asks}",
        )
        archive.writestr(f"{name}.dist-info/RECORD", "")
    return path


def test_a_wheel_gives_its_modules_and_metadata_and_no_scripts(tmp_path: Path) -> None:
    package = read_wheel(wheel(tmp_path, "good-1.0", requires=("other>=2", "old; python_version < '3.11'")))
    assert sorted(package.files) == ["good-1.0.dist-info/METADATA", "good/__init__.py", "good/more.py"]
    assert [str(one) for one in required(package, HERE)] == ["other>=2"]
    assert [one.name for one in required(package, PY310)] == ["other", "old"]


@pytest.mark.parametrize(
    ("tag", "runs"),
    [
        ("py3-none-any", True),
        ("cp36-abi3-manylinux_2_12_x86_64", True),
        ("cp310-cp310-manylinux2014_x86_64", True),
        ("cp310-cp310-manylinux_2_31_x86_64", True),
        ("cp310-cp310-manylinux_2_32_x86_64", False),
        ("cp311-cp311-manylinux2014_x86_64", False),
        ("cp311-abi3-manylinux2014_x86_64", False),
        ("cp310-cp310-manylinux2014_aarch64", False),
        ("cp310-cp310-musllinux_1_1_x86_64", False),
        ("py2-none-any", False),
    ],
)
def test_which_wheels_run_on_a_python_310_with_glibc_231(tag: str, runs: bool) -> None:  # noqa: FBT001 - a table
    assert PY310.runs(f"x-1.0-{tag}.whl") is runs


def test_the_wheel_directory_gives_the_pinned_version_else_the_newest_that_fits(tmp_path: Path) -> None:
    for name in ("x-1.0", "x-1.10", "x-1.9", "x-2.0"):
        wheel(tmp_path, name)
    wheel(tmp_path, "x-3.0", tag="cp311-cp311-win_amd64")
    (tmp_path / "x-9-nonsense.whl").write_text("")
    anything = Need(requirement=Requirement("X>=1,<2"))
    assert newest(tmp_path, anything, HERE) == tmp_path / "x-1.10-py3-none-any.whl"
    pinned = Need(requirement=Requirement("x"), pinned="1.9")
    assert newest(tmp_path, pinned, HERE) == tmp_path / "x-1.9-py3-none-any.whl"
    assert newest(tmp_path, Need(requirement=Requirement("y")), HERE) is None
    assert newest(tmp_path / "nowhere", anything, HERE) is None


def test_a_wheel_directory_without_the_package_is_named_and_no_index_is_asked(tmp_path: Path) -> None:
    (tmp_path / "wheels-of-ours").mkdir()
    pip = Pip(wheel_dir="~/wheels-of-ours")
    with pytest.raises(StalledError) as caught:
        build(
            bundles(tmp_path, environ={}),
            Target(arch="s390x", libc="glibc", libc_version=(2, 28), python=(3, 12)),
            pip,
        )
    assert str(caught.value) == (
        f"looking for a wheel of msgspec==7.2.2 for s390x-glibc2.28-py312 in {tmp_path}/wheels-of-ours (pip.wheelDir): none there"
        " runs on it: put one there"
    ).replace("7.2.2", _installed("msgspec"))


def test_an_index_with_a_password_is_in_no_argument_and_no_error(tmp_path: Path) -> None:
    wheels = Wheels(
        cache=tmp_path,
        home=tmp_path,
        environ={"PATH": os.defpath, "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"},
    )
    need = Need(requirement=Requirement("psutil"), pinned="7.2.2")
    pip = Pip(index_url="http://ann:canary-1@127.0.0.1:9/simple")
    assert not [
        word for word in wheels.command(need, PY310, tmp_path) if "canary" in word or "127.0.0.1" in word
    ]
    with pytest.raises(
        StalledError, match=r"fetching a wheel of psutil==7\.2\.2 for x86_64-glibc2\.31-py310"
    ) as caught:
        asyncio.run(wheels.find(need, PY310, pip))
    assert "canary" not in str(caught.value)
    assert "name it in Fleet.spec.pip.wheelDir" in str(caught.value)


def test_without_pip_the_way_out_is_told(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f"#!/bin/sh\necho '{sys.executable}: No module named pip' >&2\nexit 1\n")
    bare.chmod(0o755)
    wheels = Wheels(cache=tmp_path, home=tmp_path, environ={}, python=str(bare))
    with pytest.raises(StalledError, match=r"has no pip: install it, or put wheels .* into a directory"):
        asyncio.run(wheels.find(Need(requirement=Requirement("psutil")), PY310, Pip()))


def _installed(name: str) -> str:
    from importlib.metadata import version  # noqa: PLC0415 - one use

    return version(name)
