"""What the machine's own people allow: which file is believed, what each rule refuses, and that a broken one allows nothing."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.agent.policy import PolicyFile
from llmgw.model.claims import Claims, GpuClaim
from llmgw.model.facts import EngineFact, Gpu
from llmgw.model.launch import LaunchSpec, Process
from llmgw.model.struct import replace
from tests.agent.agents import DIGEST, fetch_spec, install_spec, launch_spec

GPU = Gpu(uuid="GPU-1", index=0, name="A", gpu_class="a-1g", memory_total=1)
SLICE = replace(GPU, uuid="MIG-1", parent="GPU-1")


class Rules:
    """A policy file, and what was told of it."""

    def __init__(self, folder: Path, *, user: str = "nobody", engines: tuple[EngineFact, ...] = ()) -> None:
        self.path = folder / "agent.yaml"
        self.told: list[str] = []
        self.file = PolicyFile(self.path, user=user, engines=lambda: engines, told=self.told.append)

    def write(self, text: str) -> "Rules":
        beside = self.path.with_suffix(".new")
        beside.write_text(text)
        beside.chmod(0o644)
        beside.replace(self.path)
        return self

    def start(self, spec: LaunchSpec, *gpus: Gpu) -> str:
        return self.file.start(spec, gpus)


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    tmp_path.chmod(0o755)
    return Rules(tmp_path)


def shard(*argv: str, **changes: object) -> LaunchSpec:
    spec = replace(launch_spec(), processes=(Process(name="engine", argv=argv or ("${engine}/bin/x",)),))
    return replace(spec, **changes)  # type: ignore[arg-type]


def test_without_a_file_everything_is_allowed_and_nothing_is_told(rules: Rules) -> None:
    assert rules.start(shard("/bin/anything")) == ""
    assert rules.file.install(install_spec()) == rules.file.fetch(fetch_spec(path="/x")) == ""
    assert rules.file.facts() is None
    assert rules.told == []


def test_an_engine_that_is_not_named_is_neither_installed_nor_started(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    engine = EngineFact(name="sim", version="1", digest=DIGEST, path="/e")
    rules = Rules(tmp_path, engines=(engine,)).write("# ours\nengines: [vllm]\n")
    wanted = f"{rules.path}:2: the machine's policy allows vllm in `engines`, not engine sim: add it there, or use another node"
    assert rules.file.install(install_spec(engine="sim")) == wanted
    assert rules.file.install(install_spec(engine="vllm")) == ""
    assert rules.start(shard(engine=DIGEST)) == wanted
    rules.write("engines: [sim, vllm]\n")
    assert rules.start(shard(engine=DIGEST)) == ""


def test_programs_come_from_the_engine_or_from_a_directory_that_is_allowed(
    rules: Rules, tmp_path: Path
) -> None:
    rules.write(f"engines: [vllm, {tmp_path}/opt]\n")
    assert rules.start(shard("${engine}/bin/vllm")) == ""
    assert rules.start(shard(f"{tmp_path}/opt/bin/x", engine_path=f"{tmp_path}/opt/vllm")) == ""
    assert "not the engine in /usr/lib" in rules.start(shard(engine_path="/usr/lib"))
    assert "not ${engine}/../../bin/sh" in rules.start(shard("${engine}/../../bin/sh"))
    assert "not sh:" in rules.start(shard("sh"))
    assert "sh:" in rules.start(shard("/bin/sh"))
    sidecar = Process(name="sidecar", argv=("/bin/sh",))
    spec = shard()
    assert "sh:" in rules.start(replace(spec, processes=(sidecar, *spec.processes)))


def test_a_link_does_not_lead_out_of_an_allowed_directory(rules: Rules, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "secret")
    rules.write(f"paths: [{tmp_path}/data]\n")
    for refused in (f"{tmp_path}/data/link", f"{tmp_path}/data/../secret", f"{tmp_path}/database"):
        assert "`paths`" in rules.start(shard(weights_path=refused))
        assert "`paths`" in rules.file.fetch(fetch_spec(path=refused))
    assert rules.start(shard(weights_path=f"{tmp_path}/data/model")) == ""
    assert rules.file.fetch(fetch_spec(path=f"{tmp_path}/data")) == ""
    assert rules.file.fetch(fetch_spec(url="https://example.org/x")) == ""


def test_no_engine_runs_as_root_where_root_is_not_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    as_root = Rules(tmp_path, user="root").write("users: [nobody]\n")
    assert "allows nobody in `users`, not engines as root" in as_root.start(shard())
    assert "`users`" in as_root.file.install(install_spec())
    facts = as_root.file.facts()
    assert facts is not None
    assert "`users`" in facts.obstacle
    assert Rules(tmp_path, user="nobody").start(shard()) == ""
    as_root.write("users: [nobody, root]\n")
    assert as_root.start(shard()) == ""


def test_a_reserved_gpu_is_refused_with_its_slices(rules: Rules) -> None:
    rules.write("reserve: {gpus: [GPU-1], memory: 4GiB}\n")
    assert rules.file.memory_kept() == 4 * 1024**3
    for gpu in (GPU, SLICE):
        claimed = shard(claims=Claims(gpus=(GpuClaim(uuid=gpu.uuid),)))
        assert f"GPU {gpu.uuid} is kept for people" in rules.start(claimed, GPU, SLICE)
    assert rules.start(shard(claims=Claims(gpus=(GpuClaim(uuid="GPU-2"),)))) == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("engines: [vllm]\nengine: x\n", ":2: 'engine' is no rule"),
        ("engines: vllm\n", ":1: a list is wanted"),
        ("engines: [1.0]\n", ":1: a text is wanted"),
        ("engines: [opt/x]\n", ":1: opt/x: write an engine's name, or an absolute directory"),
        ("paths:\n- data\n", ":2: data: write an absolute directory"),
        ("users: [a]\nusers: [b]\n", ":2: users stands here twice"),
        ("reserve: {gpus: [0]}\n", ":1: a text is wanted"),
        ("reserve: {gpus: ['0']}\n", ":1: 0: write the GPU's UUID"),
        ("reserve: {memory: much}\n", "is no size"),
        ("reserve: {disk: 1GiB}\n", "'disk' is no rule: there are gpus, memory"),
        ("- x\n", ":1: the policy is a mapping"),
        ("a: [\n", "no YAML"),
        ("a: !!python/object:x {}\n", "is no rule"),
        ("[" * 5000, "no YAML"),
    ],
)
def test_a_broken_policy_allows_nothing_and_names_the_line(rules: Rules, text: str, told: str) -> None:
    rules.write(text)
    refused = rules.start(shard())
    assert told in refused
    assert str(rules.path) in refused
    assert (
        rules.file.install(install_spec())
        == rules.file.fetch(fetch_spec())
        == rules.file.problem()
        == refused
    )


def test_a_policy_that_others_may_write_is_not_believed(rules: Rules, tmp_path: Path) -> None:
    rules.write("engines: [sim]\n")
    rules.path.chmod(0o646)
    assert "others than root may write to it" in rules.start(shard())
    rules.path.chmod(0o644)
    assert rules.start(shard()) == ""
    tmp_path.chmod(0o777)
    assert "its folder" in rules.start(shard())
    tmp_path.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_policy_of_another_user_is_not_believed(rules: Rules) -> None:
    rules.write("engines: [sim]\n")
    os.chown(rules.path, 65534, -1)
    assert "belongs to user number 65534" in rules.start(shard())


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.mkdir(),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.write_text("#" * 70_000),
        os.mkfifo,
    ],
)
def test_what_is_no_policy_file_allows_nothing(rules: Rules, make: Callable[[Path], None]) -> None:
    make(rules.path)
    rules.path.chmod(0o644)
    assert "can't be used" in rules.start(shard())


def test_a_change_counts_at_once_and_is_told_once(rules: Rules) -> None:
    rules.write("")
    assert rules.start(shard("/bin/sh")) == ""
    rules.write("engines: [vllm]\nreserve: {memory: 1GiB}\n")
    assert rules.start(shard("/bin/sh")) != ""
    assert rules.start(shard("/bin/sh")) != ""
    rules.write("engines: [vllm\n")
    assert "can't be used" in rules.start(shard())
    rules.path.unlink()
    assert rules.start(shard("/bin/sh")) == ""
    assert [text.removeprefix(str(rules.path)) for text in (rules.told[0], rules.told[1], rules.told[3])] == [
        " was read: rules for nothing",
        " was read: rules for engines, reserve",
        " is gone: everything is allowed here",
    ]
    assert "can't be used" in rules.told[2]
    assert len(rules.told) == 4
