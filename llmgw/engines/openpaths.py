"""Which paths each engine answers without a key, though it was given one: what a doctor knocks at, and what people must know
who let others reach an engine. As read in the engines' own sources; a doctor tells what is really open."""

from collections.abc import Mapping
from types import MappingProxyType

from llmgw.core.adapter import OpenPath

GUARDED = "/v1/models"
"""What every engine that llmgw starts must refuse without its key."""

_HEALTH = OpenPath(path="/health", gives="whether it lives")

OPEN_PATHS: Mapping[str, tuple[OpenPath, ...]] = MappingProxyType(
    {
        # Its middleware guards /v1, /v2, /inference and /cohere, and nothing else.
        "vllm": (
            _HEALTH,
            OpenPath(path="/ping", gives="whether it lives"),
            OpenPath(path="/version", gives="its version"),
            OpenPath(path="/load", gives="how busy it is"),
            OpenPath(path="/metrics", gives="how busy it is, and the model's name"),
            OpenPath(path="/docs", gives="its API's description"),
            OpenPath(path="/openapi.json", gives="its API's description"),
            OpenPath(path="/tokenize", gives="the use of its tokenizer", harmful=True),
            OpenPath(path="/detokenize", gives="the use of its tokenizer", harmful=True),
            OpenPath(path="/invocations", gives="the use of the model", harmful=True),
            OpenPath(path="/generative_scoring", gives="the use of the model", harmful=True),
            OpenPath(path="/adapters", gives="loading and unloading of LoRA adapters", harmful=True),
            OpenPath(path="/scale_elastic_ep", gives="its scaling", harmful=True),
        ),
        "sglang": (
            _HEALTH,
            OpenPath(path="/ready", gives="whether it serves"),
            OpenPath(path="/metrics", gives="how busy it is, and the model's name"),
        ),
        "llamacpp": (_HEALTH, OpenPath(path="/v1/health", gives="whether it lives")),
        "sim": (_HEALTH,),
        # Nobody knows what a command of one's own leaves open.
        "custom": (_HEALTH, OpenPath(path="/metrics", gives="how busy it is, and the model's name")),
    }
)
