"""Who makes room for a replica of higher priority that fits nowhere, and on what terms.

- Only replicas of models with a lower ``priority`` go, never of equals, nor of a model that is protected; who of them, and that
  nobody goes in vain, is found by core/place/clearing.
- Nobody goes for a replica that could come in the place of its own predecessor: that is a rollout's business. So the extra
  copy of a rollout evicts nobody.
- Everything that the new one needs is brought first; who goes is drained; the new one starts when they have stopped.
- Nothing is evicted from a node that can't be asked, nor anything at all while the brake holds: the room that seems to be
  lacking may only be out of sight. A replica in the middle of being replaced, started or adopted is left until that is done.

Without flapping: places are given by priority, so who was evicted gets one only after everybody of higher priority had the
choice, and what comes back needs nobody else to go. Only those of lower priority ever go, so two models can't push one another
round. A replica that failed evicts no more until its spec changes or it has run for long: it may only take what is free. Its
place stays taken while it is tried again, and while one that was given up rests; once it is held, removed, or given up as a
gang, who made room comes back. An eviction is no failure: nothing is counted.
"""

from collections.abc import Iterator
from itertools import takewhile

from llmgw.core.moves.copies import Copy, serves
from llmgw.core.moves.departure import depart
from llmgw.core.moves.round import Round
from llmgw.core.moves.standing import Standing, Want
from llmgw.core.place.clearing import Tenant
from llmgw.core.seen.condition import Health, evicted_text
from llmgw.model.desired import DesiredModel
from llmgw.model.ids import ReplicaId, shard_id
from llmgw.model.plan import Action, Change, Decision


def find_room(
    round_: Round, want: Want, goal: DesiredModel, *, instead: Copy | None = None
) -> tuple[Decision, tuple[Tenant, ...]]:
    """A place that is free once others have gone, and ``instead`` with them; no ranks where there is none."""
    if want.stand.failed_before(goal, want.ordinal) is not None or _braked(round_):
        return Decision(), ()
    return round_.placer.place_cleared(
        want.stand.request(goal),
        want.stand.crowd(want.keep),
        _tenants(round_, want.stand.model.spec.priority),
        gone=instead.replica.ranks if instead is not None else (),
        replica=instead.replica.id if instead is not None else "",
    )


def evict(
    round_: Round, want: Want, tenants: tuple[Tenant, ...], replica: ReplicaId, *, after: tuple[str, ...]
) -> tuple[str, ...]:
    """They go, each told as a change of its own. The steps after which nothing is left of them."""
    return tuple(_evict(round_, want, tenant, replica, after=after) for tenant in tenants)


def _evict(round_: Round, want: Want, tenant: Tenant, replica: ReplicaId, *, after: tuple[str, ...]) -> str:
    stand = round_.stands[tenant.model]
    copy = next(each for each in stand.copies[tenant.ordinal] if each.replica.id == tenant.replica)
    address = want.stand.address(want.ordinal)
    departure = depart(round_, copy, reason=f"makes room for {replica}", after=after)
    priorities = f"priority {want.stand.model.spec.priority} over {tenant.priority}"
    round_.told.changes.append(
        Change(
            address=copy.address,
            action=Action.REMOVE,
            keyword="evicted",
            reason=f"makes room for {address} ({priorities}); it comes back when there is room",
            model=tenant.model,
            ordinal=tenant.ordinal,
            previous=copy.replica.id,
            where=stand.model.where,
            outage=_outage(stand, copy),
            evicted_for=address,
        )
    )
    stand.moving = True
    if serves(copy):
        stand.ready -= 1
        stand.serving.discard(tenant.ordinal)
    return departure.tail


def _outage(stand: Standing, copy: Copy) -> str:
    if not serves(copy):
        return ""
    others = len(stand.serving - {copy.replica.ordinal})
    what = f"one replica less, {others} left" if others else f"{stand.model.name} does not answer"
    return f"{what} from the drain of {copy.replica.id} until there is room again"


def waits(want: Want) -> str:
    """Of an ordinal that was evicted: for whom and by which commit; empty for all others."""
    evicted = want.stand.evicted.get(want.ordinal)
    return evicted_text(evicted) if evicted is not None and want.keep is None else ""


# ---- who may be asked to go ----------------------------------------------------------------------------


def _tenants(round_: Round, priority: int) -> list[Tenant]:
    """Of lower priority, and neither going nor being started."""
    if not round_.tenants:
        round_.tenants.extend(sorted(_movable(round_), key=lambda tenant: tenant.order))
    busy = round_.departing | round_.book.started()
    lower = takewhile(lambda tenant: tenant.priority < priority, round_.tenants)
    return [tenant for tenant in lower if tenant.replica not in busy]


def _movable(round_: Round) -> Iterator[Tenant]:
    """All that may ever be asked, by what was seen."""
    for stand in round_.stands.values():
        if stand.model.spec.protect:
            continue
        for copies in stand.copies.values():
            there = [copy for copy in copies if not copy.leaving]
            if len(there) > 1:
                continue  # one takes over from the other: if that one went, nobody would be left
            for copy in there:
                if copy.state.health is not Health.UNKNOWN and copy.replica.id not in stand.adopted:
                    yield _tenant(stand, copy)


def _tenant(stand: Standing, copy: Copy) -> Tenant:
    replica = copy.replica
    return Tenant(
        replica=replica.id,
        model=stand.model.name,
        ordinal=replica.ordinal,
        priority=stand.model.spec.priority,
        serves=serves(copy),
        gpus=sum(len(rank.gpus) for rank in replica.ranks),
        nodes=copy.nodes,
        shards=frozenset(shard_id(replica.id, rank.rank) for rank in replica.ranks),
    )


def _braked(round_: Round) -> bool:
    return any(view.silence is not None and view.silence.brake for view in round_.survey.nodes.values())
