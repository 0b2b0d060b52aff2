"""How an apply ended, in words and as JSON."""

from collections.abc import Mapping
from typing import Any

from llmgw.cli import output
from llmgw.cli.output import FORMAT_VERSION
from llmgw.controller.passes.settle import Settled
from llmgw.controller.passes.story import lower, sentence
from llmgw.controller.passes.verdict import Verdict
from llmgw.core.amounts import names
from llmgw.model.plan import StepResult
from llmgw.model.record import Outcome


def summary(settled: Settled, ended: Verdict) -> str:
    """The last words of an apply."""
    last = settled.last
    commit = (last.prepared.desired.commit or "")[:10]
    if not settled.worked:
        if ended.code == output.DONE:
            waits = f"; on its way: {'; '.join(last.plan.waiting)}" if last.plan.waiting else ""
            return f"Nothing to do: the fleet is what {commit} asks for{waits}."
        return "Nothing was done."
    serial = f"serial {last.record.serial}"
    if last.plan.targets and ended.code == output.DONE:
        commit = f"{names(last.plan.targets)} of {commit}"
    if ended.code != output.DONE:
        return f"Applied {commit} in part ({serial}). What is left is above; llmgw status shows the rest."
    if last.outcome is Outcome.ACCEPTED:
        sent = lower(sentence((step for step in last.plan.commands if step.id in last.done), past=True))
        return f"Commands for {commit} are accepted ({serial}): {sent}. See llmgw status for how it goes on."
    serving = [f"  {it.served_name}: {it.url}" for it in last.record.endpoints if it.state == "ready"]
    models = "\n".join(["Serving:", *serving, "Keys: llmgw endpoints"]) if serving else "Nothing is served."
    return f"Applied {commit} ({serial}).\n{models}"


def as_json(settled: Settled, ended: Verdict) -> dict[str, Any]:
    """The last pass, and below ``earlier`` what those before it did."""
    last = settled.last
    return {
        "formatVersion": FORMAT_VERSION,
        "exitCode": ended.code,
        "commit": last.prepared.desired.commit,
        "serial": last.record.serial,
        "outcome": last.outcome.value if last.outcome else None,
        "worked": settled.worked,
        "passes": settled.passes,
        "errors": list(ended.errors),
        "halted": last.halted or None,
        "steps": _steps(last.results),
        "earlier": [
            {"serial": it.serial, "outcome": it.outcome.value, "steps": _steps(it.results)}
            for it in settled.earlier
        ],
        "blocked": [
            {"address": change.address, "keyword": change.keyword, "reason": change.reason}
            for change in last.plan.blocked
        ],
        "waiting": list(last.plan.waiting),
    }


def _steps(results: Mapping[str, StepResult]) -> dict[str, Any]:
    return {
        name: {"outcome": result.outcome.value, "error": result.error or None}
        for name, result in results.items()
    }
