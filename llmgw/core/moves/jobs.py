"""Failed jobs that nobody wants any more are forgotten by their nodes. Who orders a job, and when it is tried again, stands
in core/moves/steps."""

from collections.abc import Iterator

from llmgw.core.adapter import NodeContext
from llmgw.core.moves.commands import COMMAND_WITHIN
from llmgw.core.moves.round import Round
from llmgw.core.seen.survey import NodeView
from llmgw.model.desired import DesiredModel
from llmgw.model.ids import Digest, JobId
from llmgw.model.plan import Step, StepKind
from llmgw.model.problems import Where
from llmgw.model.record import ReplicaSpec
from llmgw.model.report import JobReport, JobState


def drop_unwanted(round_: Round) -> None:
    """Along with the next commands, never for themselves alone. Wanted is what any model of Git, any replica and any spec that
    a model may go back to stands on, on whichever node: a replica may come here."""
    for view in round_.survey.nodes.values():
        if failed := _failed(view):
            wanted = frozenset(_wanted(round_, view))
            for job in failed:
                if job.job not in wanted:
                    round_.book.add(_cancel(view.name, job))


def _failed(view: NodeView) -> list[JobReport]:
    if not view.known or view.desired is None or view.report is None:
        return []
    return [job for job in view.report.jobs if job.state == JobState.FAILED.value]


def _cancel(node: str, job: JobReport) -> Step:
    return Step(
        id=f"cancel {job.job} on {node}",
        kind=StepKind.CANCEL,
        node=node,
        job=job.job,
        reason=f"it has failed, and nobody wants {job.description} any more",
        timeout=COMMAND_WITHIN,
    )


def _wanted(round_: Round, view: NodeView) -> Iterator[JobId]:
    assert view.desired is not None
    context = NodeContext(name=view.name, spec=view.desired.spec, facts=view.facts)
    pip = round_.book.pip
    for model in _models(round_):
        adapter = round_.adapters.get(model.profile.engine.name)
        if adapter is None:
            continue
        specs = (
            adapter.install(model, context, pip),
            adapter.fetch(model, pip),
            *adapter.lora_fetches(model, pip),
        )
        yield from (spec.job for spec in specs if spec is not None)


def _models(round_: Round) -> Iterator[DesiredModel]:
    yield from round_.desired.models.values()
    for replica in round_.record.holding:
        yield recorded_model(replica.model, replica.spec)
    for known in round_.record.models.values():
        if known.last_good_spec is not None:
            yield recorded_model(known.name, known.last_good_spec)


def recorded_model(name: str, spec: ReplicaSpec) -> DesiredModel:
    """What adapters look at; a spec of the record stands on no line of a manifest."""
    return DesiredModel(
        name=name,
        labels={},
        spec=spec.model,
        profile_name=spec.profile_name,
        profile=spec.profile,
        served_name=spec.served_name,
        spec_digest=Digest(""),
        where=Where(file=""),
    )
