"""How each engine's program is asked which flags it knows. Facts behind the words: docs/engines.md."""

from llmgw.engines.install import environment_program, program_path
from llmgw.model.launch import HelpSpec
from llmgw.model.manifest import Engine


def vllm(engine: Engine) -> HelpSpec:
    """Plain --help names groups of flags, and hardly a flag."""
    return HelpSpec(
        argv=(environment_program(engine, "vllm"), "serve", "--help=all"),
        sure=("--host", "--max-model-len", "--port", "--served-model-name"),
        env={"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        argparse=True,
    )


def sglang(engine: Engine) -> HelpSpec:
    return HelpSpec(
        argv=(environment_program(engine, "python"), "-m", "sglang.launch_server", "--help"),
        sure=("--context-length", "--host", "--model-path", "--port"),
        env={"HF_HUB_OFFLINE": "1"},
        argparse=True,
    )


def llamacpp(engine: Engine, server: str) -> HelpSpec:
    return HelpSpec(
        argv=(program_path(engine, server), "--help"),
        sure=("--host", "--model", "--port"),
        finds=server,
        devices=("--list-devices",),
    )


def sim(engine: Engine, server: str) -> HelpSpec:
    return HelpSpec(
        argv=(program_path(engine, server), "--help"),
        sure=("--host", "--port", "--served-name"),
        argparse=True,
        finds=server,
    )
