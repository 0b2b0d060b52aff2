"""A plan in the words of the command line."""

from llmgw.cli import output
from llmgw.core.show import render
from llmgw.model.desired import Desired
from llmgw.model.ids import digest
from llmgw.model.plan import Plan
from llmgw.wire.codec import to_json


def plan_text(plan: Plan, *, show_commands: bool = False) -> str:
    return render.plan_text(plan, show_commands=show_commands, paint=output.paint)


def nothing_asked(desired: Desired) -> str:
    """A note for a commit without any node and model: mostly one whose manifests lie elsewhere. Else nothing."""
    if desired.nodes or desired.models:
        return ""
    asked = f"commit {desired.commit[:10]}" if desired.commit is not None else "the work tree"
    return (
        f"Note: {asked} has no manifest of a node or a model where they are looked for. Manifests elsewhere are named by "
        "--path; `llmgw init DIR` writes a first set"
    )


def plan_key(plan: Plan) -> str:
    """The same for two plans that do the same for the same reasons, whenever they were made."""
    return digest(to_json((plan.changes, plan.steps)))
