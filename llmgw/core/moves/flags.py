"""Flags that a node's installed engine does not know: found before anything starts, and not tried."""

from collections.abc import Sequence

from llmgw.core.enginecheck.verdict import Verdict, engine_on, judge, told
from llmgw.core.moves.round import Round
from llmgw.model.desired import DesiredModel
from llmgw.model.ids import ReplicaId
from llmgw.model.record import RankPlacement


def verdicts(
    round_: Round, goal: DesiredModel, replica: ReplicaId, ranks: Sequence[RankPlacement]
) -> tuple[Verdict, ...]:
    """One for each node of a settled place, in order of rank."""
    spec = round_.adapters[goal.profile.engine.name].help(goal)
    if spec is None:
        return ()
    launches = round_.book.launches(goal, replica, tuple(ranks))
    found = []
    for node in dict.fromkeys(rank.node for rank in ranks):
        there = [launches[rank.rank] for rank in ranks if rank.node == node]
        facts = round_.survey.nodes[node].facts
        engine = engine_on(facts, digest=there[0].engine, path=there[0].engine_path)
        found.append(judge(spec, there, engine=engine, name=engine_name(goal), node=node))
    return tuple(found)


def refusal(found: Sequence[Verdict]) -> str:
    """Why the model is not started there; empty: nothing that is known stands against it."""
    return "; ".join(why for verdict in found if (why := told(verdict)))


def untold(found: Sequence[Verdict]) -> tuple[str, ...]:
    """Where nobody can tell, in words, for people."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for verdict in found:
        if verdict.untold:
            reasons.setdefault((verdict.engine, verdict.untold), []).append(verdict.node)
    return tuple(
        f"whether {engine} on {', '.join(nodes)} knows every flag is {why}"
        for (engine, why), nodes in reasons.items()
    )


def engine_name(model: DesiredModel) -> str:
    engine = model.profile.engine
    return f"{engine.name} {engine.version}" if engine.version else engine.name
