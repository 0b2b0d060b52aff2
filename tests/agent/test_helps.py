"""Engines are asked for their flags on the node: bounded, once a file, the right build, and never past the machine's own rules."""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from llmgw.agent.helps import Helps
from llmgw.agent.jobs import helptext
from llmgw.agent.jobs.helptext import Asker
from llmgw.agent.jobs.programs import for_cuda
from llmgw.agent.sampling import FixedFacts
from llmgw.agent.seams import Anything
from llmgw.model.facts import EngineFact, Facts, Gpu
from llmgw.model.launch import HelpSpec
from llmgw.model.localpolicy import LocalPolicy
from llmgw.model.problems import AgentError, StalledError
from llmgw.model.struct import replace
from llmgw.wire.messages import HelpParams
from tests.agent.agents import DIGEST, MemoryDisk, until

HELP = "usage: server [-h]\n\n  --host HOST  where\n  --port PORT  which\n  --lora FILE  adapters\n"
SPEC = HelpSpec(
    argv=("${engine}/bin/server", "--help"),
    sure=("--host", "--port"),
    finds="server",
    devices=("--list-devices",),
    timeout=20,
)
FLAGS = ("--host", "--lora", "--port", "-h")
GPU = Gpu(uuid="GPU-1", index=0, name="A", gpu_class="a-1g", memory_total=1)
VLLM = """\
if [ "$2" = --help=all ]; then cat <<'END'
usage: vllm serve [model_tag] [options]

Frontend:
  --host HOST           where
  --port PORT           which
  --served-model-name NAME [NAME ...]
ModelConfig:
  --max-model-len N     how much
  --enable-lora, --no-enable-lora
END
else printf 'usage: vllm serve [options]\\n\\nConfig Groups:\\n  Frontend\\nmore: --help=all\\n'; fi
"""


def program(at: Path, script: str = f"cat <<'END'\n{HELP}END\n") -> Path:
    at.parent.mkdir(parents=True, exist_ok=True)
    beside = at.with_name(f"{at.name}.new")
    beside.write_text(f"#!/bin/sh\n{script}")
    beside.chmod(0o755)
    beside.replace(at)
    return at


class Strict(Anything):
    def __init__(self, policy: LocalPolicy) -> None:
        self.policy = policy

    def facts(self) -> LocalPolicy | None:
        return self.policy


@dataclass
class Node:
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    installed: tuple[EngineFact, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    rules: Anything = field(default_factory=Anything)
    env: dict[str, str] = field(default_factory=dict)

    def helps(self) -> Helps:
        return Helps(
            disk=self.disk,
            asker=Asker(user=None, env=self.env),
            installed=lambda: self.installed,
            facts=FixedFacts(Facts(gpus=self.gpus)),
            rules=self.rules,
        )


def of(
    path: Path | None, spec: HelpSpec = SPEC, *, digest: str | None = None, devices: bool = False
) -> HelpParams:
    return HelpParams(
        name="llamacpp", spec=spec, path=str(path) if path else None, digest=digest, devices=devices
    )


async def told(helps: Helps, params: HelpParams) -> EngineFact:
    end = time.monotonic() + 30
    while (helped := await helps.ask(params)).engine is None:
        assert time.monotonic() < end, "the help was never read"
        await asyncio.sleep(0.01)
    return helped.engine


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), timeout=60))


def ask(node: Node, params: HelpParams) -> EngineFact:
    found: list[EngineFact] = []

    async def story() -> None:
        found.append(await told(node.helps(), params))

    run(story)
    return found[0]


# ---- reading -------------------------------------------------------------------------------------------


def test_an_engine_at_a_path_tells_its_flags_and_is_among_the_nodes_facts(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "server")

    async def story() -> None:
        helps = Node().helps()
        assert (await helps.ask(of(tmp_path))).engine is None, "nobody waits for it"
        engine = await told(helps, of(tmp_path))
        assert (engine.flags, engine.flags_problem, engine.program) == (FLAGS, "", "")
        assert helps.facts(()) == (engine,)
        assert (engine.name, engine.path, engine.digest) == ("llamacpp", str(tmp_path), "")

    run(story)


def test_a_program_is_asked_once_and_again_when_it_is_another_file(tmp_path: Path) -> None:
    count = tmp_path / "count"
    counted = f"echo x >> {count}\ncat <<'END'\n{HELP}END\n"
    server = program(tmp_path / "bin" / "server", counted)
    node = Node()

    async def story() -> None:
        helps = node.helps()
        await told(helps, of(tmp_path))
        await told(helps, of(tmp_path))
        assert count.read_text() == "x\n"
        await helps.close()
        restarted = node.helps()
        await restarted.load()
        assert (await told(restarted, of(tmp_path))).flags == FLAGS
        assert count.read_text() == "x\n", "another agent asked it again"
        program(server, counted.replace("--lora FILE", "--newer FILE"))
        await until(lambda: restarted.facts(()) == ())  # of a file that is gone nothing is known
        assert "--newer" in ((await told(restarted, of(tmp_path))).flags or ())
        assert count.read_text() == "x\nx\n"

    run(story)


def test_help_that_only_names_groups_is_no_answer_and_where_the_rest_stands_is_told(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "vllm", VLLM)
    sure = ("--host", "--max-model-len", "--port", "--served-model-name")
    spec = HelpSpec(argv=("${engine}/bin/vllm", "serve", "--help"), sure=sure)
    short = ask(Node(), of(tmp_path, spec))
    assert short.flags is None
    assert "its help looks truncated: it names 0 flags, and not --host" in short.flags_problem
    assert short.flags_problem.endswith("; it points to --help=all")
    whole = ask(Node(), of(tmp_path, replace(spec, argv=(*spec.argv[:-1], "--help=all"))))
    assert whole.flags is not None
    assert {"--enable-lora", "--no-enable-lora", *sure} <= set(whole.flags)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'no libcuda.so.1' >&2; exit 127", "ended with 127: no libcuda.so.1"),
        ("sleep 60", "did not end within"),
        ("while :; do echo 0123456789012345678901234567890123456789; done", "said more than 1024 KiB"),
        ("echo '  --port-range A'; echo '  --host'", "names 2 flags, and not --port"),
    ],
    ids=["fails", "hangs", "babbles", "lacks"],
)
def test_what_is_no_help_is_told_and_bounded(tmp_path: Path, script: str, why: str) -> None:
    program(tmp_path / "bin" / "server", script)
    begun = time.monotonic()
    engine = ask(Node(), of(tmp_path, replace(SPEC, timeout=1 if "sleep" in script else 20)))
    assert engine.flags is None
    assert why in engine.flags_problem
    assert time.monotonic() - begun < 25


def test_it_runs_in_an_empty_home_with_nothing_of_the_nodes_environment_but_its_libraries(
    tmp_path: Path,
) -> None:
    seen = tmp_path / "seen"
    program(tmp_path / "bin" / "server", f"(env; pwd; ls -A) > {seen}\ncat <<'END'\n{HELP}END\n")
    node = Node(env={"LD_LIBRARY_PATH": "/opt/lib", "HF_TOKEN": "hf_secret", "PATH": "/nowhere"})
    ask(node, of(tmp_path, replace(SPEC, env={"HF_HUB_OFFLINE": "1"})))
    text = seen.read_text()
    assert "LD_LIBRARY_PATH=/opt/lib" in text
    assert "HF_HUB_OFFLINE=1" in text
    assert "hf_secret" not in text
    home = next(line for line in text.splitlines() if line.startswith("HOME=")).removeprefix("HOME=")
    assert text.rstrip().endswith(home), "it holds files already"
    assert not Path(home).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_it_runs_as_the_engines_user() -> None:
    async def story(folder: Path) -> None:
        server = program(
            folder / "server", f"touch mine && echo \"  --as-$(id -un)\"\ncat <<'END'\n{HELP}END\n"
        )
        heard = await Asker(user="nobody", env={}).help(SPEC, (str(server),))
        assert heard.flags == ("--as-nobody", *FLAGS)
        missing = await Asker(user="no-such-user", env={}).help(SPEC, (str(server),))
        assert "there is no user no-such-user" in missing.problem

    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders let nobody else in
        Path(folder).chmod(0o755)
        asyncio.run(story(Path(folder)))


def test_only_the_engines_place_may_stand_in_a_question() -> None:
    with pytest.raises(StalledError, match="can't stand in a question"):
        helptext.filled_in(("${key}",), "/opt")
    assert helptext.filled_in(("${engine}/a$$b",), "/opt") == ("/opt/a$b",)


# ---- which program ---------------------------------------------------------------------------------------


def test_a_program_is_found_two_directories_deep_and_no_deeper(tmp_path: Path) -> None:
    deep = program(tmp_path / "build" / "bin2" / "server")
    assert ask(Node(), of(tmp_path)).program == str(deep)
    deep.unlink()
    program(tmp_path / "a" / "b" / "c" / "server")
    missing = ask(Node(), of(tmp_path))
    assert missing.flags is None
    assert f"there is no server below {tmp_path}" in missing.flags_problem


@pytest.mark.parametrize("how", ["library", "linked"])
def test_of_several_builds_the_one_for_cuda_is_taken_where_there_are_gpus(tmp_path: Path, how: str) -> None:
    plain = program(tmp_path / "a-cpu" / "server")
    cuda = program(tmp_path / "build-cuda" / "bin2" / "server")
    if how == "library":
        (cuda.parent / "libggml-cuda.so.0").touch()
    else:
        cuda.write_bytes(cuda.read_bytes() + b"\n# \0libcudart.so.12\0\n")
    assert (for_cuda(cuda), for_cuda(plain)) == (True, False)
    assert ask(Node(), of(tmp_path)).program == str(plain)
    assert ask(Node(gpus=(GPU,)), of(tmp_path)).program == str(cuda)


def test_devices_are_listed_where_they_are_asked_for(tmp_path: Path) -> None:
    listing = (
        "if [ $1 = --list-devices ]; then echo 'Available devices:'; echo '  CUDA0: A (1 MiB)'; exit; fi\n"
    )
    program(tmp_path / "bin" / "server", f"{listing}cat <<'END'\n{HELP}END\n")

    async def story() -> None:
        helps = Node().helps()
        await told(helps, of(tmp_path, devices=True))
        helped = await helps.ask(of(tmp_path, devices=True))
        assert helped.devices == ("Available devices:", "CUDA0: A (1 MiB)")
        assert (await helps.ask(of(tmp_path))).devices == ()

    run(story)


# ---- installed engines -----------------------------------------------------------------------------------


def test_one_that_was_installed_before_anybody_asked_gets_its_flags_later(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "server")
    engine = EngineFact(name="llamacpp", version="1", digest=DIGEST, path=str(tmp_path))

    async def story() -> None:
        helps = Node(installed=(engine,)).helps()
        assert helps.facts((engine,)) == (engine,)
        found = await told(helps, of(None, digest=DIGEST))
        assert found == replace(engine, flags=FLAGS)
        assert helps.facts((engine,)) == (found,)

    run(story)


def test_one_that_told_its_flags_is_not_asked_and_one_that_is_not_there_has_none() -> None:
    engine = EngineFact(name="llamacpp", version="1", digest=DIGEST, path="/nowhere", flags=("--x",))
    assert ask(Node(installed=(engine,)), of(None, digest=DIGEST)) == engine
    assert "not installed" in ask(Node(), of(None, digest="f" * 64)).flags_problem


# ---- what may not be asked -------------------------------------------------------------------------------


def test_what_the_machines_own_people_forbid_is_not_even_asked(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program(tmp_path / "bin" / "server", f"touch {ran}")
    node = Node(rules=Strict(LocalPolicy(file="/etc/llmgw/agent.yaml", engines=("vllm", "/srv"))))

    async def story() -> None:
        with pytest.raises(AgentError, match="the machine's policy allows vllm, /srv"):
            await node.helps().ask(of(tmp_path))
        outside = replace(SPEC, argv=(f"{tmp_path}/bin/server", "--help"))
        with pytest.raises(AgentError, match="the machine's policy allows"):
            await node.helps().ask(of(Path("/srv/x"), outside))

    run(story)
    assert not ran.exists()


def test_a_question_without_a_whole_path_makes_no_sense() -> None:
    async def story() -> None:
        for path in (None, Path("opt/x")):
            with pytest.raises(StalledError, match="no whole path"):
                await Node().helps().ask(of(path))

    run(story)
