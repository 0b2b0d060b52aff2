"""What is known of an engine on a node, and what that says of a command line: all flags known, some not, or nobody can tell
yet. The plan and ``engine-check`` read the same verdict.
"""

from collections.abc import Sequence

from llmgw.core.enginecheck.compare import must_know, nearest, plain, unknown_flags, words_after
from llmgw.model.facts import EngineFact, Facts
from llmgw.model.launch import ENGINE, HelpSpec, LaunchSpec
from llmgw.model.struct import Struct, replace

UNTIL_INSTALLED = "unknown until installed"
UNTIL_READ = "unknown until its help is read"
NO_HELP = "nobody can ask it for its flags"
MAX_NAMED = 5


class Unknown(Struct):
    """A flag that the engine does not know, and the nearest that it does (may be empty)."""

    flag: str
    near: str


class Verdict(Struct):
    """``untold`` says why nobody can tell; empty: ``unknown`` is all that is wrong with the flags. ``elsewhere`` is where the
    program lies whose help it is, when the command line names another place."""

    engine: str
    node: str
    unknown: tuple[Unknown, ...] = ()
    untold: str = ""
    elsewhere: str = ""


def engine_on(facts: Facts | None, *, digest: str | None, path: str | None) -> EngineFact | None:
    """What is known of the engine that a launch would use there."""
    for engine in facts.engines if facts is not None else ():
        if digest is not None and engine.digest == digest:
            return engine
        if digest is None and path is not None and not engine.digest and engine.path == path:
            return engine
    return None


def judge(
    spec: HelpSpec | None, launches: Sequence[LaunchSpec], *, engine: EngineFact | None, name: str, node: str
) -> Verdict:
    """Of the engine processes of ``launches``, which all use ``engine``; ``name`` is what people call it."""
    if spec is None:
        return Verdict(engine=name, node=node, untold=NO_HELP)
    if engine is None:
        by_path = any(launch.engine is None for launch in launches)
        return Verdict(engine=name, node=node, untold=UNTIL_READ if by_path else UNTIL_INSTALLED)
    if engine.flags is None:
        problem = engine.flags_problem
        return Verdict(engine=name, node=node, untold=f"unknown: {problem}" if problem else UNTIL_READ)
    known = frozenset(engine.flags)
    found = {
        flag: Unknown(flag=flag, near=nearest(flag, known))
        for launch in launches
        for flag in unknown_flags(spec, _words(spec, launch), known)
    }
    return Verdict(engine=name, node=node, unknown=tuple(found.values()), elsewhere=engine.program)


def expecting(spec: HelpSpec | None, launch: LaunchSpec) -> LaunchSpec:
    """The order with the flags that its engine must know, for the agent to look at just before it starts: when the plan was made
    the engine may not have been installed."""
    if spec is None or launch.engine is None:
        return launch
    flags = must_know(spec, _words(spec, launch))
    return replace(launch, expect=replace(launch.expect, flags=flags))


def told(verdict: Verdict) -> str:
    """Why nothing may be started by such a command line; empty: nothing stands against it."""
    on = f"{verdict.engine} on {verdict.node}"
    if verdict.elsewhere:
        return f"{on} is not where it would be started, but at {verdict.elsewhere}: write engine.path: {verdict.elsewhere}"
    if not verdict.unknown:
        return ""
    named = ", ".join(_named(each) for each in verdict.unknown[:MAX_NAMED])
    more = len(verdict.unknown) - MAX_NAMED
    return f"{on} does not know {named}" + (f" and {more} more" if more > 0 else "")


def _named(unknown: Unknown) -> str:
    return f"{unknown.flag} (nearest: {unknown.near})" if unknown.near else unknown.flag


def _words(spec: HelpSpec, launch: LaunchSpec) -> tuple[str, ...]:
    """Behind the engine's command. A rank that only joins others runs another program, whose flags nobody has asked for."""
    engine = next(process for process in launch.processes if process.name == ENGINE)
    words = words_after(spec, engine.argv)
    return tuple(plain(word) for word in words or ())
