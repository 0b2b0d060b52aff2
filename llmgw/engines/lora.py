"""LoRA adapters as engines take them: all at the start (static), or by their API while they run, up to so many at a
time (on demand). Where each lies only the node knows: ``${adapter:NAME}``.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llmgw.engines import weights
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import ADAPTER, FetchSpec, HttpProbe, LoraAdapter, LoraCalls, LoraListing
from llmgw.model.manifest import ADAPTER_RANK, Adapter, Pip, Source
from llmgw.model.problems import Problem
from llmgw.model.struct import Struct

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*")
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM takes for the highest; for others steps that leave room for the next adapter."""
OPENAI_LIST = LoraListing(
    probe=HttpProbe(path="/v1/models", authorized=True), at="data", name="id", place="root", parent="parent"
)
"""Beside the model itself ``/v1/models`` lists its adapters, whose ``parent`` is the model."""


class Lora(Struct):
    """``static`` are (name, path) of adapters loaded at the start, ``slots`` how many a batch may use, ``rank`` the highest
    rank among all that are listed."""

    slots: int
    rank: int
    static: tuple[tuple[str, str], ...] = ()

    @property
    def on_demand(self) -> bool:
        return not self.static

    @property
    def set_aside(self) -> int:
        """The rank that memory is set aside for."""
        return max(self.rank, rounded(self.rank, RANKS))


def lora(model: DesiredModel) -> Lora | None:
    """None: the engine runs without LoRA. ``maxLoadedAdapters`` makes adapters loadable, also where none is listed yet."""
    adapters, most = model.spec.adapters, model.spec.max_loaded_adapters
    if not adapters and not most:
        return None
    rank = max((adapter.rank for adapter in adapters), default=ADAPTER_RANK)
    if most:
        return Lora(slots=most, rank=rank)
    paths = tuple((adapter.name, place(adapter)) for adapter in adapters)
    return Lora(slots=len(adapters), rank=rank, static=paths)


def place(adapter: Adapter) -> str:
    return f"${{{ADAPTER}{adapter.name}}}"


def rounded(rank: int, allowed: tuple[int, ...]) -> int:
    """The smallest allowed rank that is not below; the largest where there is none."""
    return allowed[min(bisect_left(allowed, rank), len(allowed) - 1)]


# ---- what the agent is told ----------------------------------------------------------------------------


def loaded(model: DesiredModel) -> tuple[Adapter, ...]:
    """Those that a replica has. Of more than may be loaded, the first as the manifest lists them."""
    most = model.spec.max_loaded_adapters
    return model.spec.adapters[:most] if most else model.spec.adapters


def adapters(
    model: DesiredModel, asked_by: Callable[[int, Adapter], Mapping[str, Any]]
) -> tuple[LoraAdapter, ...]:
    """``asked_by`` (index, adapter): the fields of a request that is to be answered by it."""
    return tuple(
        LoraAdapter(
            name=adapter.name,
            digest=weights.weights_digest(adapter.source),
            rank=adapter.rank,
            send=json.dumps(asked_by(index, adapter), ensure_ascii=False),
            path=adapter.source.path,
            job=weights.job(adapter.source),
        )
        for index, adapter in enumerate(loaded(model))
    )


def by_name(_: int, adapter: Adapter) -> Mapping[str, Any]:
    """The adapter is a model of its own to those who ask."""
    return {"model": adapter.name}


def fetches(model: DesiredModel, pip: Pip) -> tuple[FetchSpec, ...]:
    """Each source once, however many adapters come from it."""
    every = (weights.fetch(adapter.source, pip) for adapter in loaded(model))
    return tuple({fetch.digest: fetch for fetch in every if fetch is not None}.values())


def calls(
    model: DesiredModel, *, highest_rank: int, prefix: str = "", in_place: bool = False, already: str
) -> LoraCalls | None:
    """The routes that vLLM has made usual; None where adapters are loaded at the start. ``in_place``: vLLM's word for loading
    one whose name it has already."""
    if not model.spec.max_loaded_adapters:
        return None
    also = ',"load_inplace":true' if in_place else ""
    return LoraCalls(
        load=_post(
            f"{prefix}/load_lora_adapter", '{"lora_name":"${name}","lora_path":"${path}"' + also + "}"
        ),
        unload=_post(f"{prefix}/unload_lora_adapter", '{"lora_name":"${name}"}'),
        most=model.spec.max_loaded_adapters,
        highest_rank=highest_rank,
        already=already,
    )


def _post(path: str, body: str) -> HttpProbe:
    return HttpProbe(path=path, method="POST", body=body, authorized=True)


# ---- what can't be -------------------------------------------------------------------------------------


def problems(model: DesiredModel, *, highest: int | None, engine: str) -> Iterator[Problem]:
    """``highest``: the largest rank that the engine takes; None: any."""
    taken = {model.served_name: "the model's own name"}
    taken |= dict.fromkeys(model.spec.aliases, "an alias of the model")
    for index, adapter in enumerate(model.spec.adapters):
        place = f"spec.adapters[{index}]"
        if not NAME.fullmatch(adapter.name):
            yield Problem(
                what=f"{place}.name: {adapter.name!r} can't be a name in requests and on command lines",
                instead="use letters, digits, and . _ - / :, beginning with a letter or digit",
            )
        if adapter.name in taken:
            yield Problem(
                what=f"{place}.name: {adapter.name} is {taken[adapter.name]}",
                instead="give each adapter a name of its own: requests choose it by that",
            )
        taken[adapter.name] = "the name of another adapter"
        if highest is not None and adapter.rank > highest:
            yield Problem(
                what=f"{place}.rank: {engine} takes ranks up to {highest}, not {adapter.rank}",
                instead="use an adapter of a lower rank",
            )


def peft_problems(model: DesiredModel, engine: str) -> Iterator[Problem]:
    """For engines that read the directory which PEFT writes: one file can't be it."""
    for index, adapter in enumerate(model.spec.adapters):
        field, named = _named(adapter.source)
        is_file = field in ("url", "pip.file") or named.lower().endswith(".gguf")
        if is_file:
            yield Problem(
                what=f"spec.adapters[{index}].source.{field}: {engine} reads the directory that PEFT writes, and "
                f"{named!r} is one file",
                instead="name a repository (huggingFace:) or a directory on the node (path:) with adapter_config.json",
            )


def gguf_problems(model: DesiredModel) -> Iterator[Problem]:
    """For llama.cpp, which reads one file an adapter, and takes commas and colons of its path for its own."""
    for index, adapter in enumerate(model.spec.adapters):
        field, named = _named(adapter.source)
        place = f"spec.adapters[{index}].source.{field}"
        if field == "huggingFace" or not named.lower().endswith(".gguf"):
            yield Problem(
                what=f"{place}: llama.cpp reads adapters as GGUF files, and {named!r} is none",
                instead="turn it into one with llama.cpp's convert_lora_to_gguf.py, and name the file",
            )
        elif field == "path" and ("," in named or ":" in named):
            yield Problem(
                what=f"{place}: llama.cpp takes the comma or colon in {named!r} for the end of the path",
                instead="give the file another name",
            )


def _named(source: Source) -> tuple[str, str]:
    """Which field of a source names it, and how."""
    if source.pip is not None:
        return "pip.file", source.pip.file
    if source.url is not None:
        return "url", source.url.partition("?")[0]
    if source.hugging_face is not None:
        return "huggingFace", source.hugging_face
    return "path", source.path or ""
