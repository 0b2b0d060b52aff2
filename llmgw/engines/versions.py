"""What differs between versions of an engine: a table by version, with where each line was read.

An engine at a path has a version that nobody told; ``unknown`` says what is taken of it then.
"""

import re
from collections.abc import Iterator, Mapping

from llmgw.model.manifest import Engine
from llmgw.model.problems import Problem
from llmgw.model.struct import Struct

_RELEASE = re.compile(r"[0-9]+(?:\.[0-9]+)*")


class Trait(Struct):
    """Something that an engine has or does from a version on."""

    since: str
    unknown: bool
    source: str


class Versions(Struct):
    """The versions of one engine that its adapter was written for, both ends included, and what differs among them."""

    engine: str
    oldest: str
    newest: str
    traits: Mapping[str, Trait]

    def has(self, engine: Engine, name: str) -> bool:
        trait = self.traits[name]
        if engine.version is None:
            return trait.unknown
        return numbers(engine.version) >= numbers(trait.since)

    def untried(self, engine: Engine) -> Iterator[Problem]:
        """A version that the command line was not written for may know other flags."""
        if engine.version is None:
            return
        asked = numbers(engine.version)
        known = f"{self.oldest} to {self.newest}" if self.oldest != self.newest else self.newest
        if asked < numbers(self.oldest) or asked[:2] > numbers(self.newest)[:2]:
            yield Problem(
                what=f"spec.engine.version: {self.engine} {engine.version} is none of the versions that its flags are "
                f"known of ({known})",
                instead="compare the command line (--show-commands) with that version's help",
            )


def numbers(version: str) -> tuple[int, ...]:
    """``0.32.0.post1`` -> (0, 32); trailing zeros say nothing."""
    found = _RELEASE.match(version)
    parts = [int(part) for part in found[0].split(".")] if found else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


VLLM = Versions(
    engine="vLLM",
    oldest="0.32.0",
    newest="0.33.0",
    traits={
        "gpu-uuids": Trait(
            since="0.32.0",
            unknown=False,
            source="vllm/platforms/cuda.py of 0.32.0 looks UUIDs up; up to 0.23 int() of each entry of CUDA_VISIBLE_DEVICES "
            "fails (vllm-project/vllm issue 41848)",
        ),
        "shutdown-timeout": Trait(since="0.32.0", unknown=True, source="vllm serve --help=all of 0.32.0"),
    },
)
SGLANG = Versions(
    engine="SGLang",
    oldest="0.5.4",
    newest="0.5.23",
    traits={
        "config-file": Trait(
            since="0.5.4",
            unknown=True,
            source="server_args_config_parser.py is in the wheels of 0.5.4 and 0.5.23, and not in 0.5.2",
        ),
        "attention-handshake": Trait(
            since="0.5.6",
            unknown=True,
            source="DP_ATTENTION_HANDSHAKE_PORT_DELTA of srt/server_args.py: 13 in the wheels of 0.5.6 and 0.5.23; in 0.5.5 and "
            "0.5.4 the leader tells ports where ranks meet",
        ),
        "ready-route": Trait(
            since="0.5.23",
            unknown=False,
            source="srt/entrypoints/http_server.py: /ready in 0.5.23, not in 0.5.10",
        ),
    },
)
RAY = "2.60.0"
"""The Ray that vLLM is given where it has none: its command line was tried with this one."""
