"""Shards of this fleet that agents run and no record knows, and what they hold. What was forgotten on purpose is none of
it; neither is what another fleet's agent holds."""

from collections.abc import Iterable, Iterator, Mapping

from llmgw.core.amounts import names, plural, ranges, size
from llmgw.core.seen.survey import SeenShard, Survey
from llmgw.model.claims import Claims
from llmgw.model.record import Record
from llmgw.model.report import ShardState


def strays(record: Record, survey: Survey) -> Mapping[str, tuple[SeenShard, ...]]:
    """Shards that have not stopped on nodes of this fleet and that no record knows, by replica, in order of rank. One whose
    output explains why a model is held is known."""
    given_up = {each.replica for each in record.given_up}
    explain = {model.held.replica for model in record.models.values() if model.held is not None}
    found: dict[str, list[SeenShard]] = {}
    for seen in survey.shards.values():
        replica = seen.report.replica
        if seen.report.state == ShardState.STOPPED.value or record.knows(replica):
            continue
        if replica in given_up or replica in explain:
            continue
        if _is_owned(record, survey, seen.node):
            found.setdefault(replica, []).append(seen)
    return {
        replica: tuple(sorted(shards, key=lambda each: each.report.rank))
        for replica, shards in sorted(found.items())
    }


def _is_owned(record: Record, survey: Survey, node: str) -> bool:
    """An agent that belongs to nobody yet can't hold anything of ours."""
    view = survey.nodes[node]
    return view.known and view.report is not None and view.report.agent.fleet == record.fleet


def holds(shards: Iterable[SeenShard]) -> str:
    """``holds 2 GPUs, 4.0 GiB of memory and port 18000``."""
    every = [each.report.claims for each in shards]
    return f"holds {names(_held(every)) or 'nothing'}"


def _held(claims: Iterable[Claims]) -> Iterator[str]:
    every = list(claims)
    gpus = [gpu for each in every for gpu in each.gpus]
    if whole := [gpu for gpu in gpus if gpu.memory is None]:
        yield plural(len(whole), "GPU")
    if shares := [gpu.memory for gpu in gpus if gpu.memory is not None]:
        yield f"{size(sum(shares))} of {plural(len(shares), 'GPU')}"
    if memory := sum(each.memory for each in every):
        yield f"{size(memory)} of memory"
    if ports := sorted({port for each in every for port in each.ports}):
        yield f"port{'s' * (len(ports) > 1)} {ranges(ports)}"
