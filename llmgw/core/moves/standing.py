"""Where one model stands: its copies by ordinal, what it is to become, and what its rollout still allows."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from llmgw.core.adapter import Need
from llmgw.core.fabric.choice import wish_of
from llmgw.core.moves.copies import Copy
from llmgw.core.place.candidates import Request
from llmgw.model.desired import DesiredModel
from llmgw.model.ids import ReplicaId, replica_id
from llmgw.model.manifest import Custom
from llmgw.model.plan import Action, FieldChange
from llmgw.model.record import Attempts, Evicted, Held, ModelRecord
from llmgw.model.struct import Struct


@dataclass(slots=True, kw_only=True)
class Standing:
    """``goal`` is what replicas are to run: Git's spec, or the last good one while Git's is held; None: nothing new
    is started. ``total`` counts every copy, old and new, but those given up; ``serving`` the ordinals with a ready one, ``ready`` counts
    the copies that serve. ``moving`` tells whether anything of the model is on its way, so that waiting for it makes
    sense."""

    model: DesiredModel
    known: ModelRecord | None
    held: Held | None
    goal: DesiredModel | None
    need: Need
    weights: str | None
    reads: str | None
    copies: Mapping[int, list[Copy]]
    total: int
    serving: set[int]
    ready: int
    nodes: Counter[str]
    moving: bool
    adapter_paths: tuple[str, ...] = ()
    adopted: frozenset[str] = frozenset()
    placements: dict[int, int] = field(default_factory=dict)
    number: int = 0  # placement numbers up to this one were given to other models under the same idPrefix

    @property
    def allowed(self) -> int:
        """Copies that may exist at once."""
        return self.model.spec.replicas + self.model.spec.rollout.max_surge

    def must_serve(self) -> int:
        """How many must serve while old ones go, their successors being ready: every replica that has a copy at all, or had
        one that failed as a gang, less what may be missing; with a number in ``maxUnavailable`` every one that ever had a
        copy, so that what a fault took is not forgotten when the spec changes. One for which there never was room, or that
        was evicted, takes nothing from the others. Of a protected model one always."""
        asked = self.model.spec.rollout.max_unavailable
        if asked == "auto":
            failed = {int(ordinal) for ordinal in self.known.attempts} if self.known is not None else set()
            placed = self._asked_for(failed | self.copies.keys())
            return max(placed, 1 if self.model.spec.protect else 0)
        return max(self._asked_for(self.placements) - asked, 1 if self.model.spec.protect else 0)

    def must_serve_without(self) -> int:
        """The same where the successor only comes afterwards: replicas that are between two copies count as well. Where a
        surge fits, and one is on its way or going, auto allows nothing to be missing."""
        asked = self.model.spec.rollout.max_unavailable
        placed = self._asked_for(self.placements)
        auto = 0 if self.total > self.model.spec.replicas else 1
        return placed - (auto if asked == "auto" else asked)

    def _asked_for(self, ordinals: Iterable[int]) -> int:
        """How many of the ordinals Git asks for, without those that made room for others and have no copy."""
        evicted = self.evicted.keys() - self.copies.keys()
        return sum(1 for each in ordinals if each < self.model.spec.replicas and each not in evicted)

    @property
    def evicted(self) -> Mapping[int, Evicted]:
        known = self.known.evicted if self.known is not None else {}
        return {int(ordinal): why for ordinal, why in known.items()}

    def spare_one(self, least: int) -> bool:
        """Whether one that serves may go, so that ``least`` are left; counts it as gone then."""
        if self.ready <= least:
            return False
        self.ready -= 1
        return True

    def address(self, ordinal: int) -> str:
        return f"model/{self.model.name}/{ordinal}"

    def crowd(self, keep: Copy | None) -> Counter[str]:
        """How many of its replicas stay on each node, without ``keep``, whose place is taken over: for spreading."""
        return self.nodes - Counter(keep.nodes) if keep is not None else self.nodes

    def next_id(self, goal: DesiredModel, ordinal: int) -> ReplicaId:
        """Placement numbers only grow: a late command about an old copy can never touch this one."""
        n = max(self.placements.get(ordinal, 0), self.number) + 1
        prefix = self.known.id_prefix if self.known is not None else self.model.name
        return replica_id(prefix=prefix, spec_digest=goal.spec_digest, ordinal=ordinal, n=n)

    def failed_before(self, goal: DesiredModel, ordinal: int) -> Attempts | None:
        """How often it has failed with this very spec."""
        failed = self.known.attempts.get(str(ordinal)) if self.known is not None else None
        return failed if failed is not None and failed.spec_digest == goal.spec_digest else None

    def request(self, goal: DesiredModel, *, shunned: tuple[str, ...] = ()) -> Request:
        return Request(
            model=self.model.name,
            gpus=goal.profile.gpus,
            need=self.need,
            nodes=goal.profile.nodes,
            rules=self.model.spec.placement,
            weights=self.weights,
            reads=self.reads,
            network=wish_of(goal),
            alike=goal.profile.parallel.tensor > 1 and goal.profile.gpus.per_node > 1,
            engine=goal.profile.engine.name,
            engine_path=goal.profile.engine.path,
            programs=_programs(goal.profile.custom),
            weights_path=goal.spec.source.path,
            adapter_paths=self.adapter_paths,
            shunned=shunned,
        )


class Want(Struct):
    """An ordinal that needs a new copy. ``keep`` serves until it is there."""

    stand: Standing
    ordinal: int
    keep: Copy | None
    keyword: str
    reason: str
    action: Action = Action.CREATE
    fields: tuple[FieldChange, ...] = ()
    lost: str | None = None  # the copy that was given up
    shunned: tuple[str, ...] = ()  # nodes where it failed, newest last

    @property
    def order(self) -> tuple[int, bool, str, int]:
        """By priority first, or a copy that comes would be evicted by the next one."""
        model = self.stand.model
        had = self.ordinal in self.stand.placements
        return (-model.spec.priority, not had, model.name, self.ordinal)


def _programs(custom: Custom | None) -> tuple[str, ...]:
    """Of the commands that people wrote, as far as their place is known before they are on a node."""
    commands = (custom.command, custom.worker) if custom is not None else ()
    return tuple(words[0] for words in commands if words and "${" not in words[0])
