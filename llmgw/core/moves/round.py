"""One round of planning: what it looks at, and what it has decided so far."""

import dataclasses
from collections.abc import Mapping
from datetime import datetime

from llmgw.core.adapter import EngineAdapter, GpuKind
from llmgw.core.moves.standing import Standing
from llmgw.core.moves.steps import StepBook
from llmgw.core.place.clearing import Tenant
from llmgw.core.place.placement import Placer
from llmgw.core.seen.survey import Survey
from llmgw.model.desired import Desired
from llmgw.model.plan import Change, Notice
from llmgw.model.record import Record
from llmgw.model.struct import Struct, field
from llmgw.model.weights import Weights


@dataclasses.dataclass(slots=True, kw_only=True)
class Told:
    """What the plan will say, in the order in which it was decided."""

    changes: list[Change] = dataclasses.field(default_factory=list)
    waiting: list[str] = dataclasses.field(default_factory=list)
    warnings: list[Notice] = dataclasses.field(default_factory=list)
    due: list[datetime] = dataclasses.field(default_factory=list)
    unchanged: set[str] = dataclasses.field(default_factory=set)
    """Replicas that are as they should be, unless one of them makes room for another in the end."""


class Round(Struct):
    desired: Desired
    record: Record
    survey: Survey
    placer: Placer
    book: StepBook
    adapters: Mapping[str, EngineAdapter]
    key_id: str
    now: datetime
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Old names of models by new ones, where the new one comes with this plan."""
    renamed_nodes: frozenset[str] = frozenset()
    weights: Mapping[str, Weights] = field(default_factory=dict)
    kinds: tuple[GpuKind, ...] = ()
    allow_unknown_size: bool = False
    nearest: dict[str, str] = field(default_factory=dict)
    """The nearest shape that fits, by the spec's digest: found once for all replicas that ask."""
    stands: dict[str, Standing] = field(default_factory=dict)
    """Every model of Git, once it is settled what goes and stays."""
    tenants: list[Tenant] = field(default_factory=list)
    """Those who may be asked to make room, who goes first before others; found when somebody asks for the first time."""
    departing: set[str] = field(default_factory=set)
    """Replicas that this plan lets go, now or once their successors are ready."""
    told: Told = field(default_factory=Told)
