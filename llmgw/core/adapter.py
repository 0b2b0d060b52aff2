"""What an engine must answer: the only thing that core knows of engines, and engines of core.

An adapter is pure: (resolved model, facts of the chosen nodes) in, launch specs out. It never looks at a clock, a
file or a network. Golden files hold what it says, to the letter.
"""

from collections.abc import Mapping
from typing import Protocol

from llmgw.model.desired import DesiredModel
from llmgw.model.facts import Facts, Gpu
from llmgw.model.ids import ReplicaId
from llmgw.model.launch import FetchSpec, HelpSpec, InstallSpec, LaunchSpec, LoraOrder
from llmgw.model.manifest import NodeSpec, Pip
from llmgw.model.problems import Problem
from llmgw.model.record import RankPlacement
from llmgw.model.struct import Struct, field
from llmgw.model.weights import Measured, Weights


class NodeContext(Struct):
    """What an adapter may know of a node. ``facts`` is None before first contact."""

    name: str
    spec: NodeSpec
    facts: Facts | None


class OpenPath(Struct):
    """A path that an engine answers without a key. ``gives`` says what whoever reaches it gets; ``harmful``: more than a look."""

    path: str
    gives: str
    harmful: bool = False


class GpuKind(Struct):
    """GPUs that are alike: what a sum has to know of them."""

    gpu_class: str
    memory: int
    capability: str = ""  # "9.0"; empty: not told

    @staticmethod
    def of(gpu: Gpu) -> "GpuKind":
        return GpuKind(gpu_class=gpu.gpu_class, memory=gpu.memory_total, capability=gpu.compute_capability)


class Known(Struct):
    """What the planner knows beside the manifests: of the model's weights (None: nothing), of the fleet's GPUs, and what
    replicas were seen to take, by the key of what it holds for."""

    weights: Weights | None = None
    kinds: tuple[GpuKind, ...] = ()
    measured: Mapping[str, Measured] = field(default_factory=dict)


NOTHING_KNOWN = Known()
STATE_IT = "write memory: in the profile with what one shard takes, or allow it with --allow-unknown-size"
"""What to do where a size is not known."""


class GpuNeed(Struct):
    """What one rank takes of each of its GPUs, if they are of one kind. ``memory`` must fit into ``room``, which is what the
    engine may use of such a GPU; ``takes`` is what it takes as it starts, so much must be free. ``refused``: it can't run on
    this kind, whatever is free, and why. ``unknown``: the sum is known for other kinds only, and why not for this one."""

    kind: GpuKind
    memory: int
    room: int
    takes: int
    sum: str = ""
    refused: str = ""
    unknown: str = ""

    @property
    def fits(self) -> bool:
        return not self.refused and not self.unknown and self.memory <= self.room


class Need(Struct):
    """What one rank of a model takes of its node.

    ``gpu_memory`` is bytes on each of its GPUs, ``memory`` host memory; ``on`` is the same by kind of GPU, where the sum is
    known. ``sum`` says how they came about, for people; ``reckoned``: from the weights, not stated. ``unknown``: the size is not
    known and why (what to do about it is said where it is refused), which is a reason to refuse, never zero. ``refused``: it can't run in this shape anywhere, and why.
    ``leader_ports`` are taken besides by rank 0 alone: where the ranks of a gang meet.
    """

    ports: int = 1
    leader_ports: int = 0
    gpu_memory: int = 0
    memory: int = 0
    on: tuple[GpuNeed, ...] = ()
    sum: str = ""
    reckoned: bool = False
    unknown: str = ""
    refused: str = ""

    def of(self, gpu: Gpu) -> GpuNeed | None:
        """What it takes of such a GPU; None where only ``gpu_memory`` says so."""
        if not self.on:  # asked for each GPU of a fleet
            return None
        kind = GpuKind.of(gpu)
        return next((each for each in self.on if each.kind == kind), None)


class Variable(Struct):
    """A variable of the environment and, for people, where its value comes from."""

    value: str
    reason: str


class RankNetwork(Struct):
    """How one rank of a gang reaches the others: what its processes are told, and what must still hold on its node just
    before they start (``gids`` as in :class:`llmgw.model.launch.Expect`). Found by core/fabric."""

    environment: Mapping[str, Variable] = field(default_factory=dict)
    gids: Mapping[str, str] = field(default_factory=dict)
    interface_address: str | None = None


class Placed(Struct):
    """A replica whose place is settled: what ``launch`` turns into words. ``network`` by rank; empty for a single one.
    ``weights_size`` in bytes; zero: not known."""

    model: DesiredModel
    replica: ReplicaId
    ranks: tuple[RankPlacement, ...]
    nodes: Mapping[str, NodeContext]
    pip: Pip = Pip()
    network: Mapping[int, RankNetwork] = field(default_factory=dict)
    weights_size: int = 0


class EngineAdapter(Protocol):
    """One engine. See llmgw/engines/ for the ones that exist and how to add another."""

    @property
    def name(self) -> str:
        """As written in ``Profile.spec.engine.name``."""
        ...

    def validate(self, model: DesiredModel) -> tuple[Problem, ...]:
        """What this engine cannot do of what the model asks; places are filled in by the caller. ``Problem.where`` is
        None; ``Problem.what`` begins with the manifest path it is about, such as ``spec.parallel.tensor``."""
        ...

    def warnings(self, model: DesiredModel) -> tuple[Problem, ...]:
        """What people should know before they go on; nothing is refused. In the form of ``validate``'s."""
        ...

    def weights(self, model: DesiredModel) -> str | None:
        """The digest of the weights that must be known before ``need`` can tell all; None: it never looks at any."""
        ...

    def need(self, model: DesiredModel, known: Known = NOTHING_KNOWN) -> Need:
        """What one rank takes of its node, as far as what is known allows to tell."""
        ...

    def install(self, model: DesiredModel, node: NodeContext, pip: Pip) -> InstallSpec | None:
        """How the engine gets onto the node; None when the profile names a path."""
        ...

    def help(self, model: DesiredModel) -> HelpSpec | None:
        """How its program is asked which flags it knows; None: nobody can ask it."""
        ...

    def fetch(self, model: DesiredModel, pip: Pip) -> FetchSpec | None:
        """How the weights get onto a node; None when the manifest names a path there."""
        ...

    @property
    def lora_ranks(self) -> tuple[int, ...]:
        """The highest ranks that it can be started for so that it loads LoRA adapters while it runs, smallest first; empty:
        it loads them when it starts, if at all."""
        ...

    def lora(self, model: DesiredModel) -> LoraOrder | None:
        """The LoRA adapters that a replica has, and how they are loaded; None: it runs without."""
        ...

    def lora_fetches(self, model: DesiredModel, pip: Pip) -> tuple[FetchSpec, ...]:
        """How those adapters get onto a node; nothing for those that lie there already."""
        ...

    def launch(self, placed: Placed) -> tuple[LaunchSpec, ...]:
        """One spec a rank, in order of rank."""
        ...
