"""Reads the machine's own policy: a small YAML file, strictly. Whatever is not understood is an error with its line, never
a rule that silently means nothing."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from llmgw.model.localpolicy import LocalPolicy
from llmgw.model.manifest import Reserve, Size
from llmgw.model.units import size

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

MAX_ENTRIES = 1_000
EXAMPLE = "engines: [vllm, /opt/engines]"


class BrokenPolicyError(Exception):
    """``line`` counts from 1; 0: the whole file."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def read_policy(text: str, file: str) -> LocalPolicy:
    """Raises BrokenPolicyError."""
    node = _composed(text)
    if node is None:
        return LocalPolicy(file=file)
    rules: dict[str, Any] = {}
    lines: dict[str, int] = {}
    readers: Mapping[str, Callable[[Any], object]] = {
        "engines": _engines,
        "users": _names,
        "paths": _paths,
        "reserve": _reserve,
    }
    for name, line, value in _entries(node, known=tuple(readers), what="the policy"):
        rules[name], lines[name] = readers[name](value), line
    return LocalPolicy(file=file, lines=lines, **rules)


def _composed(text: str) -> "Node | None":
    # Nodes without a policy, which most are, never load it.
    from ruamel.yaml import YAML  # noqa: PLC0415
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

    try:
        reader = YAML(typ="safe", pure=True)
        reader.allow_duplicate_keys = True  # found below, with both lines
        found: Node | None = reader.compose(text)
    except MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        raise BrokenPolicyError(
            mark.line + 1 if mark else 0, f"no YAML: {wrong.problem or wrong.context}"
        ) from wrong
    except (YAMLError, RecursionError, ValueError) as wrong:
        raise BrokenPolicyError(0, f"no YAML: {wrong}") from wrong
    return found


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


def _entries(node: Any, *, known: tuple[str, ...], what: str) -> list[tuple[str, int, Any]]:
    if node.id != "mapping":
        raise BrokenPolicyError(_line(node), f"{what} is a mapping of {', '.join(known)}")
    found: dict[str, tuple[int, Any]] = {}
    for key, value in node.value:
        name = _text(key)
        if name not in known:
            raise BrokenPolicyError(_line(key), f"{name!r:.60} is no rule: there are {', '.join(known)}")
        if name in found:
            raise BrokenPolicyError(_line(key), f"{name} stands here twice, first in line {found[name][0]}")
        found[name] = (_line(key), value)
    return [(name, line, value) for name, (line, value) in found.items()]


def _text(node: Any) -> str:
    if node.id != "scalar" or node.tag != "tag:yaml.org,2002:str" or not node.value:
        raise BrokenPolicyError(_line(node), f"a text is wanted here, such as in `{EXAMPLE}`")
    return str(node.value)


def _names(node: Any) -> tuple[str, ...]:
    if node.id != "sequence":
        raise BrokenPolicyError(_line(node), f"a list is wanted here, such as in `{EXAMPLE}`")
    if len(node.value) > MAX_ENTRIES:
        raise BrokenPolicyError(_line(node), f"more than {MAX_ENTRIES} entries")
    return tuple(_text(entry) for entry in node.value)


def _engines(node: Any) -> tuple[str, ...]:
    for entry, name in zip(node.value, _names(node), strict=True):
        if "/" in name and not name.startswith("/"):
            raise BrokenPolicyError(_line(entry), f"{name}: write an engine's name, or an absolute directory")
    return _names(node)


def _paths(node: Any) -> tuple[str, ...]:
    for entry, name in zip(node.value, _names(node), strict=True):
        if not name.startswith("/"):
            raise BrokenPolicyError(_line(entry), f"{name}: write an absolute directory")
    return _names(node)


def _reserve(node: Any) -> Reserve:
    gpus: tuple[str, ...] = ()
    memory = 0
    for name, _, value in _entries(node, known=("gpus", "memory"), what="reserve"):
        if name == "gpus":
            gpus = _gpus(value)
        else:
            memory = _size(value)
    return Reserve(gpus=gpus, memory=Size(memory))


def _gpus(node: Any) -> tuple[str, ...]:
    for entry, name in zip(node.value, _names(node), strict=True):
        if not name.startswith(("GPU-", "MIG-")):
            raise BrokenPolicyError(
                _line(entry), f"{name}: write the GPU's UUID, as `nvidia-smi -L` shows it: numbers change"
            )
    return _names(node)


def _size(node: Any) -> int:
    try:
        return size(_text(node))
    except ValueError as wrong:
        raise BrokenPolicyError(_line(node), str(wrong)) from wrong
