"""A pretended Git repository of manifests: what people ask for, and how they change their minds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any, Literal

from llmgw import __version__
from llmgw.core.resolving.resolve import RENAMED_FROM, resolve
from llmgw.engines.registry import ADAPTERS
from llmgw.model.desired import Desired
from llmgw.model.ids import Commit
from llmgw.model.manifest import (
    GIB,
    Adapter,
    AgentSettings,
    Duration,
    Engine,
    FleetSpec,
    Gpus,
    Local,
    Manifest,
    Manifests,
    Metadata,
    ModelSpec,
    NodeSpec,
    PlacementRules,
    PortRange,
    ProfileSpec,
    Restart,
    Rollout,
    Size,
    Source,
    Spec,
    SyncWindow,
    Timeouts,
    Unreachable,
)
from llmgw.model.problems import StalledError, Where
from llmgw.model.struct import Struct, replace

Shape = Literal["whole", "pair", "share", "cpu", "gang", "cpu gang"]
Manner = Literal["good", "slow", "never-ready", "exits", "exits later"]
Zone = Literal["UTC", "Asia/Kathmandu"]

SHAPES: tuple[Shape, ...] = ("whole", "pair", "share", "cpu")
BROKEN: tuple[Manner, ...] = ("never-ready", "exits", "exits later")
GPUS = {"node1": 3, "node2": 2, "node3": 4, "node4": 1}
"""Of a node that is added while nothing else says how many it has."""
NODES = tuple(GPUS)
PORTS = PortRange(from_port=18000, to_port=18011)
"""Few, so that histories come near to using them up and reuse them soon."""
OLD_AGENT = "0.0.9"
"""The version of an agent that a former llmgw has installed."""
AHEAD_OF_UTC: Mapping[Zone, int] = {"UTC": 0, "Asia/Kathmandu": 345}
"""Minutes, at any time of the year."""


class NodeWish(Struct):
    name: str
    gpus: int
    cordon: bool = False
    drain: bool = False


class ModelWish(Struct):
    name: str
    shape: Shape
    replicas: int = 1
    manner: Manner = "good"
    flag: int = 0  # any change of it is another specDigest
    priority: int = 100
    protect: bool = False
    max_surge: int = 1
    max_unavailable: int | Literal["auto"] = "auto"
    auto_revert: bool = True
    spread: bool = False
    label: int = 0
    adapters: tuple[str, ...] | None = None  # None: it runs without LoRA


class WindowWish(Struct):
    """Opens every so many minutes, a divisor of an hour, and stays open for ``minutes``."""

    kind: Literal["allow", "deny"]
    every: int
    minutes: int
    zone: Zone = "UTC"

    def is_open(self, now: datetime) -> bool:
        """By the minutes of the day alone, without a calendar."""
        return (now.hour * 60 + now.minute + AHEAD_OF_UTC[self.zone]) % self.every < self.minutes


class FleetWish(Struct):
    """Models and nodes are called by their first names here. What Git calls them is another matter: ``renames`` lists whom
    somebody has renamed, once for each time; every second time it is back to the first name."""

    nodes: tuple[NodeWish, ...]
    models: tuple[ModelWish, ...]
    suspend: bool = False
    grace: int = 300  # seconds until what runs on a silent node is replaced elsewhere
    renames: tuple[str, ...] = ()
    windows: tuple[WindowWish, ...] = ()
    agents: str = ""  # version that will do; empty: only the newest

    def model(self, name: str) -> ModelWish | None:
        """By any of its names."""
        return next((model for model in self.models if model.name == first_name(name)), None)

    def node(self, name: str) -> NodeWish | None:
        """By any of its names."""
        return next((node for node in self.nodes if node.name == first_name(name)), None)

    def called(self, name: str) -> str:
        """In Git."""
        return name + AGAIN * (self.renames.count(name) % 2)

    def called_before(self, name: str) -> str:
        """Before it was renamed the last time; empty: it never was."""
        times = self.renames.count(name)
        return name + AGAIN * ((times + 1) % 2) if times else ""

    def frozen(self, now: datetime) -> bool:
        """Whether nothing may be begun."""
        allowing = [it for it in self.windows if it.kind == "allow"]
        denied = any(it.is_open(now) for it in self.windows if it.kind == "deny")
        return (
            self.suspend or denied or (bool(allowing) and not any(window.is_open(now) for window in allowing))
        )

    def changed(self, model: ModelWish) -> "FleetWish":
        return replace(self, models=tuple(model if old.name == model.name else old for old in self.models))


AGAIN = "x"
"""What a name has more after it was changed; no first name ends so."""


def first_name(name: str) -> str:
    """Of a model or a node, whatever it is called now."""
    return name.removesuffix(AGAIN)


def unfrozen(wish: FleetWish) -> FleetWish:
    """The same wish, to be carried out at any time."""
    return replace(wish, suspend=False, windows=())


def with_gangs(wish: FleetWish) -> FleetWish:
    """The same wish on two nodes instead of one, but for single GPUs and shares; draws nothing, so that other histories stay
    the same."""
    gangs: Mapping[Shape, Shape] = {"pair": "gang", "cpu": "cpu gang"}
    models = (replace(it, shape=gangs.get(it.shape, it.shape)) for it in wish.models)
    return replace(wish, models=tuple(models))


def with_adapters(wish: FleetWish, turn: int) -> FleetWish:
    """The same wish with LoRA adapters that are others at each turn; draws nothing."""
    names = [f"lora/{(turn + number) % 5}" for number in range(turn % 4)]
    models = (replace(it, adapters=tuple(names)) for it in wish.models)
    return replace(wish, models=tuple(models))


def first_wish(rng: Random) -> FleetWish:
    nodes = tuple(NodeWish(name=f"node{n}", gpus=rng.randint(0, 4)) for n in range(1, rng.randint(1, 4) + 1))
    models = tuple(_new_model(rng, name) for name in ("ant", "bee", "cat", "dog")[: rng.randint(1, 4)])
    return FleetWish(nodes=nodes, models=models, grace=rng.choice((30, 90, 300)))


def _new_model(rng: Random, name: str) -> ModelWish:
    return ModelWish(
        name=name,
        shape=rng.choice(("whole", "whole", "pair", "share", "cpu")),
        replicas=rng.randint(0, 3),
        manner=rng.choice(("good", "good", "good", "slow")),
        priority=rng.choice((100, 100, 50, 200)),
        protect=rng.random() < 0.25,
        max_surge=rng.choice((1, 1, 0, 2)),
        max_unavailable=rng.choice(("auto", "auto", "auto", 1, 0)),
        auto_revert=rng.random() < 0.8,
        spread=rng.random() < 0.3,
    )


def edited(rng: Random, wish: FleetWish) -> tuple[str, FleetWish]:
    """What a person might commit next, in words and as a whole."""
    model = rng.choice(wish.models) if wish.models else None
    kinds = ["add", "cordon", "drain", "drain", "node goes", "node comes", "rename node"]
    kinds += ["suspend", "windows", "windows", "agents"]
    if model is not None:
        kinds += ["flag", "flag", "flag", "scale", "scale", "remove", "break", "break", "mend", "priority"]
        kinds += ["label", "protect", "shape", "rename"]
    kind = rng.choice(kinds)
    if kind == "add" or model is None:
        return _added(rng, wish)
    if kind in ("suspend", "windows", "agents"):
        return _other_rules(rng, wish, kind)
    if kind in ("cordon", "drain", "node goes", "node comes", "rename node"):
        return _other_nodes(rng, wish, kind)
    if kind == "rename":
        return _renamed(wish, model.name)
    if kind == "remove":
        rest = tuple(it for it in wish.models if it != model)
        return f"remove {model.name}", replace(wish, models=rest)
    changed = _edited_model(rng, model, kind)
    return f"{kind} {model.name}: {changed}", wish.changed(changed)


def _renamed(wish: FleetWish, name: str) -> tuple[str, FleetWish]:
    renamed = replace(wish, renames=(*wish.renames, name))
    return f"rename {wish.called(name)} to {renamed.called(name)}", renamed


def _other_rules(rng: Random, wish: FleetWish, kind: str) -> tuple[str, FleetWish]:
    if kind == "suspend":
        return "resume" if wish.suspend else "suspend", replace(wish, suspend=not wish.suspend)
    if kind == "agents":
        other = "" if wish.agents else OLD_AGENT
        return f"agents from {other or __version__} on will do", replace(wish, agents=other)
    window = WindowWish(
        kind=rng.choice(("allow", "allow", "deny")),
        every=rng.choice((4, 10, 20)),
        minutes=rng.choice((1, 2, 3)),
        zone=rng.choice(("UTC", "Asia/Kathmandu")),
    )
    windows = rng.choice(((window,), (window,), (*wish.windows, window), ()))
    return f"windows {windows}", replace(wish, windows=windows)


def _other_nodes(rng: Random, wish: FleetWish, kind: str) -> tuple[str, FleetWish]:
    node = rng.choice(wish.nodes)
    if kind == "rename node":
        return _renamed(wish, node.name)
    if kind in ("cordon", "drain"):
        other = (
            replace(node, cordon=not node.cordon) if kind == "cordon" else replace(node, drain=not node.drain)
        )
        nodes = tuple(other if it == node else it for it in wish.nodes)
        return f"{kind}: {other}", replace(wish, nodes=nodes)
    if kind == "node goes" and len(wish.nodes) > 1:
        return f"remove {node.name}", replace(wish, nodes=tuple(it for it in wish.nodes if it != node))
    there = {node.name for node in wish.nodes}
    absent = [name for name in NODES if name not in there]
    if not absent:
        return "nothing", wish
    nodes = (*wish.nodes, NodeWish(name=absent[0], gpus=GPUS[absent[0]]))
    return f"add {absent[0]}", replace(wish, nodes=tuple(sorted(nodes, key=lambda node: node.name)))


def _added(rng: Random, wish: FleetWish) -> tuple[str, FleetWish]:
    free = [name for name in ("ant", "bee", "cat", "dog", "elk") if wish.model(name) is None]
    if not free:
        return "nothing", wish
    model = _new_model(rng, rng.choice(free))
    return f"add {model}", replace(wish, models=(*wish.models, model))


def _edited_model(rng: Random, model: ModelWish, kind: str) -> ModelWish:
    edits: Mapping[str, Callable[[], Mapping[str, Any]]] = {
        "flag": lambda: {"flag": model.flag + 1},
        "scale": lambda: {"replicas": rng.randint(0, 3)},
        "break": lambda: {"flag": model.flag + 1, "manner": rng.choice(BROKEN)},
        "mend": lambda: {"flag": model.flag + 1, "manner": "good"},
        "priority": lambda: {"priority": rng.choice((10, 100, 300))},
        "label": lambda: {"label": model.label + 1},
        "protect": lambda: {"protect": not model.protect},
        "shape": lambda: {"shape": rng.choice(SHAPES)},
    }
    return replace(model, **edits[kind]())


# ---- As manifests ------------------------------------------------------------------------------------


def manifests_of(wish: FleetWish, commit: Commit) -> Manifests:
    return Manifests(
        commit=commit,
        fleet=_manifest("Fleet", "sim", _fleet_spec(wish)),
        nodes=tuple(_manifest("Node", it.name, _node_spec(it), wish=wish) for it in wish.nodes),
        profiles=tuple(_manifest("Profile", f"p-{it.name}", _profile_spec(it)) for it in wish.models),
        models=tuple(
            _manifest("Model", it.name, _model_spec(it), wish=wish, labels={"label": str(it.label)})
            for it in wish.models
        ),
    )


def _manifest(
    kind: str,
    name: str,
    spec: Spec,
    *,
    wish: FleetWish | None = None,
    labels: Mapping[str, str] | None = None,
) -> Manifest:
    """``wish`` knows by what name it goes."""
    before = wish.called_before(name) if wish is not None else ""
    called = wish.called(name) if wish is not None else name
    notes = {RENAMED_FROM: before} if before else {}
    return Manifest(
        kind=kind,
        metadata=Metadata(name=called, labels=labels or {}, annotations=notes),
        spec=spec,
        where=Where(file=f"{kind.lower()}-{name}.yaml", line=1, column=1),
    )


def address_of(node: str) -> str:
    return f"10.0.0.{node.removeprefix('node')}"


def _fleet_spec(wish: FleetWish) -> FleetSpec:
    return FleetSpec(
        suspend=wish.suspend,
        unreachable=Unreachable(grace=Duration(wish.grace)),
        agent=AgentSettings(version=wish.agents or None),
        sync_windows=tuple(
            SyncWindow(
                kind=window.kind,
                schedule=f"*/{window.every} * * * *",
                duration=Duration(60 * window.minutes),
                time_zone=window.zone,
            )
            for window in wish.windows
        ),
    )


def _node_spec(node: NodeWish) -> NodeSpec:
    return NodeSpec(
        transport="local",
        local=Local(work_dir=f"/pretended/{node.name}"),
        address=address_of(node.name),
        ports=PORTS,
        cordon=node.cordon,
        drain=node.drain,
    )


def _profile_spec(model: ModelWish) -> ProfileSpec:
    match model.shape:
        case "whole":
            gpus = Gpus(per_node=1)
        case "pair":
            gpus = Gpus(per_node=2)
        case "gang":
            gpus = Gpus(per_node=1)
        case "share":
            gpus = Gpus(per_node=1, share=Size(20 * GIB))
        case "cpu" | "cpu gang":
            gpus = Gpus(per_node=0)
    return ProfileSpec(
        engine=Engine(name="sim", version="1"),
        gpus=gpus,
        nodes=2 if model.shape in ("gang", "cpu gang") else 1,
        memory=Size(2 * GIB),
        args=("--token-delay", str(model.flag), *MANNERS[model.manner]),
        startup_timeout=Duration(90),
        timeouts=Timeouts(
            stop=Duration(20), adopt_ready=Duration(30), rendezvous=Duration(60), health=Duration(10)
        ),
        restart=Restart(backoff=Duration(2), max_backoff=Duration(20), give_up_after=3),
    )


MANNERS: Mapping[Manner, tuple[str, ...]] = {
    "good": (),
    "slow": ("--load-seconds", "60"),
    "never-ready": ("--never-ready",),
    "exits": ("--exit-after", "3"),
    "exits later": ("--exit-after", "30"),
}
"""As the sim engine itself would be told."""


LOADED = 2
"""Adapters that may be loaded at once: fewer than a wish may list."""


def _adapter(name: str) -> Adapter:
    """Half of them have to be fetched."""
    far = int(name[-1]) % 2
    fetched = Source(url=f"http://weights.invalid/{name}", sha256="0" * 64)
    return Adapter(name=name, source=fetched if far else Source(path=f"/adapters/{name}"))


def _model_spec(model: ModelWish) -> ModelSpec:
    return ModelSpec(
        served_name=model.name,
        source=Source(url=f"http://weights.invalid/{model.name}.gguf", sha256="0" * 64),
        profile=f"p-{model.name}",
        replicas=model.replicas,
        priority=model.priority,
        protect=model.protect,
        adapters=tuple(_adapter(name) for name in model.adapters or ()),
        max_loaded_adapters=0 if model.adapters is None else LOADED,
        placement=PlacementRules(spread="node" if model.spread else "none"),
        rollout=Rollout(
            max_surge=model.max_surge,
            max_unavailable=model.max_unavailable,
            drain_timeout=Duration(10),
            auto_revert=model.auto_revert,
        ),
    )


@dataclass(slots=True)
class Commits:
    """One branch, never rewritten. Implements controller.fleet.Source."""

    wishes: list[FleetWish] = field(default_factory=list)
    kept: set[Commit] = field(default_factory=set)
    resolved: dict[tuple[Commit, str], Desired] = field(default_factory=dict)

    def add(self, wish: FleetWish) -> Commit:
        self.wishes.append(wish)
        return self._name(len(self.wishes))

    def wish_of(self, commit: Commit) -> FleetWish:
        return self.wishes[self._number(commit) - 1]

    @staticmethod
    def _name(number: int) -> Commit:
        return Commit(f"c{number:039x}")

    @staticmethod
    def _number(commit: Commit) -> int:
        return int(commit[1:], 16)

    async def newest(self) -> Commit:
        return self._name(len(self.wishes))

    async def commit(self, name: str) -> Commit:
        if not 0 < self._number(Commit(name)) <= len(self.wishes):
            raise StalledError(f"there is no commit {name}")
        return Commit(name)

    async def desired(self, commit: Commit, *, key_id: str) -> Desired:
        return self.asked_by(commit, key_id)

    def asked_by(self, commit: Commit, key_id: str) -> Desired:
        """A commit says the same each time."""
        if (commit, key_id) not in self.resolved:
            manifests = manifests_of(self.wish_of(commit), commit)
            self.resolved[commit, key_id] = resolve(manifests, key_id=key_id, adapters=ADAPTERS)
        return self.resolved[commit, key_id]

    async def is_ancestor(self, older: Commit, newer: Commit) -> bool:
        return self._number(older) <= self._number(newer)

    async def unpushed(self, commit: Commit) -> bool:
        return False

    async def keep(self, commit: Commit) -> None:
        self.kept.add(commit)

    async def who_wrote(self, commit: Commit, where: Where) -> str:
        return f"commit {commit[:10]}"
