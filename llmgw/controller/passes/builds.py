"""Which controller brings its build of the agent to the nodes, where several of one version but of different files serve a fleet:
without an order among them each would replace the agents of the other for ever.
"""

from typing import Final

from llmgw.model.plan import Plan, StepKind
from llmgw.model.record import Build, Record
from llmgw.model.struct import replace

KEPT: Final = 20
"""Builds that the record remembers; an older one counts as new."""


def leads(record: Record, build: str, instance: str) -> bool:
    """Whether nodes come to ``build``, that of the controller ``instance``: it brought the newest one itself, or the fleet has
    never had this one. Else somebody has replaced it since."""
    brought = record.builds
    return not brought or brought[-1].by == instance or all(one.name != build for one in brought)


def bringing(record: Record, plan: Plan, *, build: str, instance: str, insists: bool) -> Record:
    """The record with what the plan brings. ``insists``: a person asks for it by hand."""
    brings = any(step.kind is StepKind.BOOTSTRAP for step in plan.steps)
    if not build or not brings or not (insists or leads(record, build, instance)):
        return record
    newest = Build(name=build, by=instance)
    if record.builds[-1:] == (newest,):
        return record
    return replace(record, builds=(*record.builds, newest)[-KEPT:])
