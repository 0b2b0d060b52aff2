"""Where one model stands: its copies by ordinal, what it is to become, and what its rollout still allows."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from llmgw.core.adapter import Need
from llmgw.core.fabric.choice import wish_of
from llmgw.core.moves.round import Copy, Round
from llmgw.core.moves.sizes import need_of
from llmgw.core.place.candidates import Request, breaks_rules
from llmgw.core.seen.condition import Health, condition, outdated
from llmgw.model.desired import DesiredModel
from llmgw.model.ids import Digest, ReplicaId, ReplicaName, parse_replica_id, replica_id
from llmgw.model.manifest import Custom
from llmgw.model.plan import Action, FieldChange
from llmgw.model.record import Attempts, Evicted, Held, ModelRecord, ReplicaPhase, ReplicaRecord, ReplicaSpec


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
    number: int = 0  # placement numbers up to this one were given to an earlier model of that name

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
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


def standing(
    round_: Round, model: DesiredModel, replicas: list[ReplicaRecord], adopted: frozenset[str]
) -> Standing:
    known = round_.record.models.get(model.name)
    held = known.held if known is not None and known.held is not None else None
    held = held if held is not None and held.spec_digest == model.spec_digest else None
    goal = _goal(model, known, held)
    copies: dict[int, list[Copy]] = {}
    for replica in replicas:
        copy = Copy(replica=replica, state=condition(replica, round_.survey))
        copies.setdefault(replica.ordinal, []).append(copy)
    for of_ordinal in copies.values():
        of_ordinal.sort(key=lambda copy: -copy.replica.n)
    every = [copy for of_ordinal in copies.values() for copy in of_ordinal]
    adapter = round_.adapters[(goal or model).profile.engine.name]
    fetch = adapter.fetch(goal or model, round_.book.pip)
    lora = adapter.lora(goal or model)
    return Standing(
        model=model,
        known=known,
        held=held,
        goal=goal,
        need=need_of(round_, goal or model),
        reads=adapter.weights(goal or model),
        weights=fetch.digest if fetch is not None else None,
        copies=copies,
        total=sum(1 for copy in every if not copy.state.given_up),
        serving={copy.replica.ordinal for copy in every if serves(copy)},
        ready=sum(1 for copy in every if serves(copy)),
        nodes=Counter(node for copy in every if not copy.leaving for node in copy.nodes),
        adapter_paths=tuple(each.path for each in lora.adapters if each.path) if lora is not None else (),
        moving=any(copy.leaving or copy.state.health is Health.COMING for copy in every),
        adopted=adopted,
        placements=_placements(known, every, _unrecorded(round_, model, known)),
        number=round_.record.numbers.get(known.id_prefix if known is not None else model.name, 0),
    )


def serves(copy: Copy) -> bool:
    """Also a gang whose leader answers while a node of another rank has been silent for too long: for all that is known."""
    leader = copy.state.leader
    by_leader = copy.state.given_up and leader is not None and leader.state == Health.READY.value
    answers = by_leader and copy.replica.ranks[0].node not in copy.state.unknown_nodes
    return (copy.state.health is Health.READY or answers) and not copy.leaving


def _unrecorded(round_: Round, model: DesiredModel, known: ModelRecord | None) -> list[ReplicaName]:
    """Copies that a node knows and the record does not: their numbers are taken."""
    prefix = known.id_prefix if known is not None else model.name
    seen = (shard.report.replica for shard in round_.survey.shards.values())
    begins = f"{prefix}-"
    strays = (
        it
        for it in (*seen, *round_.record.forgotten)
        if it.startswith(begins) and it not in round_.record.replicas
    )
    names = (parse_replica_id(replica) for replica in strays)
    return [name for name in names if name is not None and name.prefix == prefix]


def _placements(
    known: ModelRecord | None, copies: list[Copy], unrecorded: list[ReplicaName]
) -> dict[int, int]:
    counts = {int(ordinal): n for ordinal, n in known.placements.items()} if known is not None else {}
    for copy in copies:
        counts[copy.replica.ordinal] = max(counts.get(copy.replica.ordinal, 0), copy.replica.n)
    for name in unrecorded:
        counts[name.ordinal] = max(counts.get(name.ordinal, 0), name.n)
    return counts


def _goal(model: DesiredModel, known: ModelRecord | None, held: Held | None) -> DesiredModel | None:
    """While Git's spec is held the model goes back to what was last good, if it may and that is something else."""
    if held is None:
        return model
    if (
        not model.spec.rollout.auto_revert
        or known is None
        or known.last_good_spec is None
        or known.last_good in (None, held.spec_digest)
    ):
        return None
    return as_desired(model, known.last_good_spec, str(known.last_good))


def as_desired(model: DesiredModel, spec: ReplicaSpec, digest: str) -> DesiredModel:
    """A recorded spec under the placement, rollout and count that Git asks for now."""
    return replace(
        model,
        spec=replace(
            spec.model,
            replicas=model.spec.replicas,
            placement=model.spec.placement,
            priority=model.spec.priority,
            rollout=model.spec.rollout,
            aliases=model.spec.aliases,
            protect=model.spec.protect,
        ),
        profile_name=spec.profile_name,
        profile=spec.profile,
        served_name=spec.served_name,
        spec_digest=Digest(digest),
        also_runs_as=(),
    )


def is_current(round_: Round, stand: Standing, copy: Copy) -> bool:
    """Whether a copy is what it should be, where it may be."""
    if copy.leaving or copy.replica.replaced_by or not _runs_what_is_asked(stand, copy):
        return False
    if misplaced(round_, stand, copy):
        return False
    failure = copy.state.failure
    if copy.state.health is Health.FAILED:
        if failure is not None and outdated(failure):
            return False
        return stand.goal is not None
    return True


def _runs_what_is_asked(stand: Standing, copy: Copy) -> bool:
    """One that would have to be started again must be started as Git asks now, to the letter."""
    wanted = stand.goal if stand.goal is not None else stand.model
    if copy.state.health in (Health.MISSING, Health.STOPPED):
        return copy.replica.spec_digest == wanted.spec_digest
    return wanted.runs_as(copy.replica.spec_digest)


def broken(copy: Copy) -> bool:
    """Whether it is a gang that has lost a rank: nothing on its nodes starts it again, and all of it must go."""
    return len(copy.replica.ranks) > 1 and copy.state.health is Health.FAILED and not copy.state.lost


def misplaced(round_: Round, stand: Standing, copy: Copy) -> str:
    """Why a copy may not stay where it is; empty when it may. Never said of a node that can't be asked."""
    if copy.state.health is Health.UNKNOWN:
        return ""
    for rank in copy.replica.ranks:
        ledger = round_.placer.ledgers[rank.node]
        if ledger.view.desired is not None and ledger.view.desired.leaving:
            return f"{rank.node} is not in Git any more"
        if reason := breaks_rules(ledger, stand.model.spec.placement):
            return (
                f"{rank.node} is {reason}" if reason.startswith(("in ", "not ")) else f"{rank.node} {reason}"
            )
        if ledger.view.desired is not None and ledger.view.desired.spec.drain:
            return f"{rank.node} is being drained"
        if ledger.address != rank.address:
            return f"{rank.node} has another address now ({ledger.address}, it was {rank.address})"
    return ""


def best_current(copies: Iterable[Copy]) -> Copy | None:
    """Of several that are what is asked for, as when a node comes back after its replicas were started elsewhere."""
    return max(copies, key=lambda copy: (serves(copy), copy.replica.n), default=None)


def best_old(copies: list[Copy]) -> Copy | None:
    """The one to keep until its successor is ready: ready before not, newer before older."""
    served = [copy for copy in copies if copy.replica.phase is ReplicaPhase.SERVING]
    alive = [copy for copy in served if serves(copy) or copy.state.health is Health.COMING]
    return max(alive, key=lambda copy: (serves(copy), copy.replica.n), default=None)
