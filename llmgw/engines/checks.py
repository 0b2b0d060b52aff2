"""What can be wrong whatever the engine: how it is named, flags that llmgw writes itself, variables it keeps."""

import re
from collections.abc import Iterator, Mapping

from llmgw.core.adapter import Need
from llmgw.model.desired import DesiredModel
from llmgw.model.manifest import GIB
from llmgw.model.problems import Problem

PINNED = re.compile(r"[0-9]+(\.[0-9]+)*([a-z0-9.+-]*[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEPT = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def engine_problems(
    model: DesiredModel, *, version_needed: bool, example: str, archives: bool = False
) -> Iterator[Problem]:
    """``archives``: releases of this engine come as archives too, which hold its program."""
    engine = model.profile.engine
    if model.profile.custom is not None and engine.name != "custom":
        yield Problem(
            what=f"spec.custom: only the engine custom is told by it, not {engine.name}",
            instead="leave it out, or write engine: {name: custom}",
        )
    if engine.url is not None and not archives:
        yield Problem(
            what=f"spec.engine.url: {engine.name} does not come as an archive",
            instead="write version: alone, and pip installs it",
        )
    if engine.version is not None and engine.path is not None:
        yield Problem(
            what="spec.engine: version and path exclude each other",
            instead="version lets llmgw install the engine, path uses the one that is there: write one of them",
        )
    if version_needed and engine.version is None and engine.path is None:
        yield Problem(
            what=f"spec.engine.version: {engine.name} needs a version or a path",
            instead=f'write version: "{example}", or path: with where the engine lies on the node',
        )
    if engine.url is None and engine.version is not None and not PINNED.fullmatch(engine.version):
        yield Problem(
            what=f"spec.engine.version: {engine.version!r} is not one version",
            instead=f'write it exactly, like "{example}", so that every node gets the same',
        )
    if engine.path is not None and not engine.path.startswith("/"):
        yield Problem(
            what=f"spec.engine.path: {engine.path!r} is not absolute",
            instead="write the whole path on the node, beginning with /",
        )


def gpu_problems(model: DesiredModel) -> Iterator[Problem]:
    gpus = model.profile.gpus
    if gpus.share is not None and gpus.per_node > 1:
        yield Problem(
            what=f"spec.gpus.share: a share is a part of one GPU, but perNode is {gpus.per_node}",
            instead="write perNode: 1, or leave share out",
        )


def name_problems(model: DesiredModel) -> Iterator[Problem]:
    """A served name goes into command lines, probes and every client's request."""
    name = model.served_name
    if not name or any(char.isspace() or not char.isprintable() or char == "," for char in name):
        yield Problem(
            what=f"spec.servedName: {name!r} has spaces, commas or control characters",
            instead="use letters, digits, and . _ - / :",
        )


def argument_problems(
    model: DesiredModel, ours: Mapping[str, str], *, argparse: bool = False
) -> Iterator[Problem]:
    """``ours`` maps the flags that llmgw writes to what people should write instead. Values of flags are not told
    apart from flags; none looks like one of ours. ``argparse``: the engine takes flags as Python programs do, which
    understand the beginning of a flag for the whole, and a value that follows its letter at once."""
    for args in (model.profile.args, model.spec.args):
        for index, arg in enumerate(args):
            flag = arg.partition("=")[0]
            meant = _meant(flag, ours) if argparse else _declared(flag)
            if meant in ours:
                short = "" if meant == flag else f", which stands for {meant},"
                yield Problem(
                    what=f"spec.args[{index}]: llmgw decides about {flag}{short} itself", instead=ours[meant]
                )


def _meant(flag: str, ours: Mapping[str, str]) -> str:
    if not flag.startswith("-") or flag in ("-", "--"):
        return flag
    plain = _declared(flag)
    if plain in ours:
        return plain
    if plain[:2] in ours:
        return plain[:2]  # -n2: a letter with its value
    return next((each for each in ours if each.startswith(plain)), flag)


def variable_problems(model: DesiredModel, kept: Mapping[str, str]) -> Iterator[Problem]:
    """``kept`` maps the engine's own variables, or prefixes that end in ``*``, to what to do instead."""
    ours = {
        **dict.fromkeys(_KEPT, "llmgw sets it to the GPUs that the plan has chosen: leave it out"),
        "LLMGW_*": "these names belong to llmgw: choose another",
        **kept,
    }
    for env in (model.profile.env, model.spec.env):
        for name in env:
            yield from _variable(name, ours)


def _variable(name: str, ours: Mapping[str, str]) -> Iterator[Problem]:
    if not _VARIABLE.fullmatch(name):
        yield Problem(
            what=f"spec.env: {name!r} is not the name of a variable", instead="use letters, digits and _"
        )
    for pattern, instead in ours.items():
        prefix, star, _ = pattern.partition("*")
        if name == pattern or (star and name.startswith(prefix)):
            yield Problem(what=f"spec.env.{name}: can't be set here", instead=instead)


def take(args: tuple[str, ...], names: frozenset[str]) -> tuple[str | None, tuple[str, ...]]:
    """Takes a flag with its value out of ``args``: (last value given, what is left). ``""``: the value is missing."""
    value: str | None = None
    left: list[str] = []
    rest = iter(args)
    for arg in rest:
        flag, equals, attached = arg.partition("=")
        if _declared(flag) not in names:
            left.append(arg)
        else:
            value = attached if equals else next(rest, "")
    return value, tuple(left)


def given(model: DesiredModel, *names: str) -> bool:
    """Whether people ask for one of these flags."""
    return any(_declared(arg.partition("=")[0]) in names for arg in model.profile.args + model.spec.args)


def place_of(args: tuple[str, ...], names: frozenset[str]) -> str:
    """The manifest path of the flag that :func:`take` takes."""
    places = [index for index, arg in enumerate(args) if _declared(arg.partition("=")[0]) in names]
    return f"spec.args[{places[-1]}]"


def _declared(flag: str) -> str:
    """As engines declare it: all of them take underscores for dashes."""
    return flag.replace("_", "-") if flag.startswith("--") else flag


def stated_need(model: DesiredModel, *, ports: int, leader_ports: int = 0) -> Need:
    """What the profile states, and plain words where it states nothing: no engine's use is guessed."""
    gpus, memory = model.profile.gpus, model.profile.memory
    if gpus.per_node == 0:
        parts = ["no GPU"]
    elif gpus.share is not None:
        parts = [f"{_gib(gpus.share)} of one GPU (gpus.share)"]
    else:
        least = f" of at least {_gib(gpus.min_memory)} (gpus.minMemory)" if gpus.min_memory else ""
        parts = [f"{gpus.per_node} whole GPU{'s' if gpus.per_node > 1 else ''}{least}"]
    parts.append(
        f"{_gib(memory)} of host memory (memory)"
        if memory is not None
        else "host memory not stated (memory), so none is set aside"
    )
    gpu_memory = 0 if gpus.per_node == 0 else gpus.share or gpus.min_memory
    return Need(
        ports=ports,
        leader_ports=leader_ports,
        gpu_memory=gpu_memory,
        memory=memory or 0,
        sum=", ".join(parts),
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
