"""The intent of a plan that leaves something out on purpose: what it does not do must not look applied.

The commit does not count as the one last applied. What a pass without targets finds different in the rest, it finds still.
"""

from collections.abc import Mapping

from llmgw.core.record.naming import renamed
from llmgw.core.record.numbering import remembered
from llmgw.model.addresses import covers
from llmgw.model.desired import Desired
from llmgw.model.plan import Plan, StepKind
from llmgw.model.record import ModelRecord, Record
from llmgw.model.struct import replace


def narrowed(desired: Desired, plan: Plan) -> Desired:
    """What the plan is about: the models and nodes that were named, and those that it has to do with for their sake."""
    starts = {step.model for step in plan.steps if step.kind is StepKind.START}
    nodes = {step.node for step in plan.steps if step.node is not None}
    return replace(
        desired,
        models={
            name: model
            for name, model in desired.models.items()
            if name in starts or any(covers(f"model/{name}", each) for each in plan.targets)
        },
        nodes={
            name: node
            for name, node in desired.nodes.items()
            if name in nodes or f"node/{name}" in plan.targets
        },
    )


def only(intent: Record, before: Record, desired: Desired, plan: Plan) -> Record:
    """``intent`` was made of the narrowed manifests; ``before`` is the record with what was seen."""
    before = renamed(before, narrowed(desired, plan))
    models = {
        name: kept
        for name in sorted({*intent.models, *before.models})
        if (kept := _model(name, intent.models, before.models, plan)) is not None
    }
    gone = (model for name, model in before.models.items() if name not in models)
    return replace(
        intent,
        commit=before.commit,
        keeps_removed=before.keeps_removed,
        partial=desired.commit if plan.targets and desired.commit != before.commit else before.partial,
        models=models,
        numbers=remembered(before.numbers, gone),
    )


def _model(
    name: str, intent: Mapping[str, ModelRecord], before: Mapping[str, ModelRecord], plan: Plan
) -> ModelRecord | None:
    made, known = intent.get(name), before.get(name)
    if not plan.frozen and f"model/{name}" in plan.targets:
        return made
    if made is None:
        return known
    if known is None:  # a new one, of which only some replicas are wanted yet
        return replace(made, replicas=0)
    return replace(
        known, placements=made.placements, held=made.held, attempts=made.attempts, evicted=made.evicted
    )
