"""What lies where a LoRA adapter should: whether it is one of the right kind, and of no higher rank than people say. Reads headers
and settings only, bounded."""

import json
import mmap
from pathlib import Path
from typing import Any

from llmgw.wire import gguf

CONFIG = "adapter_config.json"
MAX_CONFIG = 1024 * 1024
"""Bytes; PEFT writes some 800."""


def problem(path: str, form: str, rank: int) -> str:
    """Why an engine can't use it; empty: nothing is known against it. ``form`` as in model/launch.py."""
    try:
        if form == "peft":
            return _peft(Path(path), rank)
        return _gguf(Path(path)) if form == "gguf" else ""
    except OSError as wrong:
        return f"reading {path}: {wrong.strerror}"


def _peft(folder: Path, rank: int) -> str:
    if not folder.is_dir():
        return f"{folder} is no directory: PEFT writes one, with {CONFIG}"
    try:
        with (folder / CONFIG).open("rb") as file:
            data = file.read(MAX_CONFIG + 1)
    except FileNotFoundError:
        return f"{folder} holds no {CONFIG}: it is no adapter of PEFT"
    try:
        config = json.loads(data) if len(data) <= MAX_CONFIG else None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        return f"{folder / CONFIG} is not the JSON that PEFT writes"
    real = _rank(config)
    if real is not None and real > rank:
        return f"{folder / CONFIG} says rank {real}, the manifest {rank}: write rank: {real}"
    return ""


def _rank(config: dict[str, Any]) -> int | None:
    """The highest of all layers'; None: it is not told."""
    pattern = config.get("rank_pattern")
    told = [config.get("r"), *(pattern.values() if isinstance(pattern, dict) else ())]
    return max((each for each in told if type(each) is int), default=None)


def _gguf(file: Path) -> str:
    if not file.is_file():
        return f"{file} is no file: llama.cpp reads adapters as GGUF files"
    with file.open("rb") as stream:
        try:
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                settings = gguf.read(data).settings
        except gguf.TooShortError:
            return f"{file} ends within its header: copy it again"
        except ValueError as wrong:
            return f"{file}: {wrong}"  # empty, or no GGUF file
    if settings.get("general.type") != "adapter":
        return f"{file} is a model, no adapter: turn the adapter into a file with llama.cpp's convert_lora_to_gguf.py"
    return ""
