"""LoRA adapters of a replica that runs: loaded and unloaded in place, told how far they are, and why where neither can be."""

from collections.abc import Iterator

from llmgw.core.amounts import names
from llmgw.core.moves.copies import Copy
from llmgw.core.moves.round import Round
from llmgw.core.moves.standing import Standing
from llmgw.core.seen.survey import SeenShard
from llmgw.model.desired import DesiredModel
from llmgw.model.launch import LoraAdapter, LoraOrder
from llmgw.model.manifest import Local, ModelSpec
from llmgw.model.plan import Action, Change, Notice
from llmgw.model.record import ReplicaSpec
from llmgw.model.report import LoraState

NAMED = 3
"""Adapters that a step names; more are counted."""
ON_THE_WAY = frozenset({LoraState.WAITING.value, LoraState.LOADING.value, LoraState.LOADED.value})


def settle_adapters(round_: Round, stand: Standing, copy: Copy) -> bool:
    """Gives a copy that is what it should be the adapters that Git asks for; whether anything is to be done or told of it.
    The list is compared with what its agents hold, so that a command that was lost is sent again."""
    goal = stand.goal or stand.model
    order = round_.adapters[goal.profile.engine.name].lora(goal)
    if order is None or copy.replica.id in stand.adopted:
        return False
    steps = _changes(round_, stand, copy, order) if order.calls is not None else ()
    return bool(steps) | _tell(round_, stand, copy)


def _changes(round_: Round, stand: Standing, copy: Copy, order: LoraOrder) -> tuple[str, ...]:
    goal = stand.goal or stand.model
    round_.book.bring_adapters(goal, copy.nodes)
    steps, told = [], ""
    for seen in copy.state.shards:
        if what := _difference(seen, order.adapters):
            told = told or what
            steps.append(
                round_.book.change_adapters(copy.replica, seen.report.rank, order.adapters, what=what)
            )
    if steps:
        round_.told.changes.append(
            Change(
                address=copy.address,
                action=Action.UPDATE,
                keyword="adapters",
                reason=f"{told} while it serves: nothing restarts",
                model=stand.model.name,
                ordinal=copy.replica.ordinal,
                replica=copy.replica.id,
                where=stand.model.where,
            )
        )
    return tuple(steps)


def _difference(seen: SeenShard, wanted: tuple[LoraAdapter, ...]) -> str:
    """In words; empty: it holds just those."""
    has = {each.name: (each.digest, each.rank) for each in seen.report.adapters}
    asked = {each.name: (each.digest, each.rank) for each in wanted}
    new = [name for name in asked if name not in has]
    other = [name for name in asked if name in has and has[name] != asked[name]]
    gone = [name for name in has if name not in asked]
    if len(new) + len(other) + len(gone) > NAMED:
        return f"change {len(new) + len(other) + len(gone)} adapters"
    words = [f"load adapter {name}" for name in new]
    words += [f"load adapter {name} anew" for name in other]
    words += [f"unload adapter {name}" for name in gone]
    return ", ".join(words)


def _tell(round_: Round, stand: Standing, copy: Copy) -> bool:
    """What is not there yet, and what its engine did not take. Whatever becomes of them, the replica serves."""
    leader = copy.state.leader
    reports = leader.adapters if leader is not None else ()
    for each in reports:
        if each.state in ON_THE_WAY:
            why = f": {each.reason}" if each.reason else ""
            round_.told.waiting.append(f"{copy.address}: adapter {each.name} is {each.state}{why}")
    failed = [each for each in reports if each.state == LoraState.FAILED.value]
    if failed:
        told = "; ".join(f"{each.name}: {each.reason}" for each in failed)
        round_.told.changes.append(
            Change(
                address=copy.address,
                action=Action.BLOCKED,
                keyword="adapter-failed",
                reason=f"{copy.replica.id} serves without {names(each.name for each in failed)}: {told}; its agent tries again",
                model=stand.model.name,
                ordinal=copy.replica.ordinal,
                replica=copy.replica.id,
                where=stand.model.where,
            )
        )
    return bool(failed)


def paths_apart(round_: Round) -> Iterator[Notice]:
    """Of replicas over several nodes that this plan starts: their engines tell all ranks the path on the leader's node, and what
    is fetched lies below each node's own directory."""
    started = round_.book.started()
    for change in round_.told.changes:
        model = round_.desired.models.get(change.model or "")
        if model is None or change.placement is None or change.replica not in started:
            continue
        order = round_.adapters[model.profile.engine.name].lora(model)
        fetched = [each.name for each in order.adapters if each.path is None] if order is not None else []
        nodes = dict.fromkeys(rank.node for rank in change.placement.ranks)
        places = {name: _weights_directory(round_, name) for name in nodes}
        if fetched and len(set(places.values())) > 1:
            told = names(f"{place} on {node}" for node, place in places.items())
            text = f"{change.replica}: adapters are fetched to {told}, and all ranks look where the leader has them"
            yield Notice(text=f"{text}: write the same dirs.weights for its nodes", where=model.where)


def _weights_directory(round_: Round, node: str) -> str:
    view = round_.survey.nodes[node]
    if view.desired is None:
        return ""
    spec = view.desired.spec
    work = spec.dirs.work if spec.transport == "ssh" else (spec.local or Local()).work_dir
    return spec.dirs.weights or f"{work}/weights"


def why_replaced(old: ReplicaSpec, goal: DesiredModel, ranks: tuple[int, ...]) -> str:
    """Why a change of adapters needs another engine process; empty where none is asked for. ``ranks``: see
    ``EngineAdapter.lora_ranks``."""
    had, asked = old.model, goal.spec
    engine = goal.profile.engine.name
    if (had.adapters, had.max_loaded_adapters) == (asked.adapters, asked.max_loaded_adapters):
        return ""
    most, before = asked.max_loaded_adapters, had.max_loaded_adapters
    highest, started_for = (_highest(spec) for spec in (asked, had))
    reasons = (
        (old.profile.engine.name != engine, ""),
        (not ranks, f"{engine} loads adapters only when it starts"),
        (not had.adapters and not before, f"{engine} runs with LoRA off"),
        (not before, "without maxLoadedAdapters it has the adapters that it was started with"),
        (not most, "without maxLoadedAdapters adapters are loaded when it starts"),
        (most != before, "places for adapters are set aside when it starts"),
        (highest > started_for, f"rank {highest} is above what it was started for"),
    )
    return next((why for holds, why in reasons if holds), "")


def _highest(spec: ModelSpec) -> int:
    return max((adapter.rank for adapter in spec.adapters), default=0)
