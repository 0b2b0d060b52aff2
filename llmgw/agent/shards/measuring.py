"""What an engine said of its memory, found in its output by the patterns that came with its order. Pure, and generic: the agent
knows no engine."""

import re

from llmgw.model.launch import LaunchSpec, Measure
from llmgw.model.weights import Measured

MAX_PATTERN = 500
MAX_LINE = 2_000
"""Characters of a line that a pattern looks at: what engines say of their memory stands at its beginning."""
MAX_FOUND = 64
"""Of one name: ranks of one node that each say it."""
MAX_VALUE = 64


def measured(spec: LaunchSpec, output: str) -> Measured | None:
    """None where nothing is asked for, or nothing of it was said."""
    if spec.measure is None:
        return None
    lines = [line[:MAX_LINE] for line in output.splitlines()]
    values = {
        name: found for name in sorted(spec.measure.patterns) if (found := _found(spec.measure, name, lines))
    }
    if not values:
        return None
    return Measured(
        key=spec.measure.key,
        about=spec.measure.about,
        values=values,
        given=spec.measure.given,
        replica=spec.replica,
    )


def _found(measure: Measure, name: str, lines: list[str]) -> tuple[str, ...]:
    """The newest, in order. A pattern that is none finds nothing: it must not keep an engine from being ready."""
    try:
        pattern = re.compile(measure.patterns[name][:MAX_PATTERN])
    except re.error:
        return ()
    if pattern.groups != 1:
        return ()
    matches = (pattern.search(line) for line in lines)
    found = [match[1][:MAX_VALUE] for match in matches if match is not None and match[1] is not None]
    return tuple(found[-MAX_FOUND:])
