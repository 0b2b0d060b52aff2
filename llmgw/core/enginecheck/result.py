"""What ``engine-check`` has found of one profile on one node, and how it is worded."""

from collections.abc import Iterator

from llmgw.core.amounts import plural, size, span
from llmgw.core.enginecheck.verdict import NO_HELP, UNTIL_INSTALLED, Unknown
from llmgw.model.ids import ShardId
from llmgw.model.report import ComputesOn
from llmgw.model.struct import Struct


class Need(Struct):
    """A flag that the engine does not know, and what needs it. ``only_with``: what ``model`` would have to ask for; empty: it
    needs it as it is."""

    unknown: Unknown
    model: str
    only_with: str = ""


class Token(Struct):
    """``untold``: why none was asked for. ``on``: None is not known, no GPU is the CPU."""

    shard: ShardId | None = None
    untold: str = ""
    wrong: str = ""
    took: float = 0
    on: ComputesOn | None = None
    claims_gpus: bool = False

    @property
    def bad(self) -> bool:
        return bool(self.wrong) or (self.claims_gpus and self.on is not None and not self.on.gpus)


class Checked(Struct):
    """``failed``: why the engine could not be asked; ``untold``: why its flags are not known. ``known`` counts the flags of its
    help, ``asked`` the command lines that were compared."""

    profile: str
    node: str
    engine: str
    failed: str = ""
    untold: str = ""
    elsewhere: str = ""
    needs: tuple[Need, ...] = ()
    known: int = 0
    asked: int = 0
    devices: tuple[str, ...] = ()
    token: Token | None = None

    @property
    def bad(self) -> bool:
        """Something that is asked for now can't start, or computes nothing as it should."""
        needed = any(not need.only_with for need in self.needs)
        return needed or bool(self.elsewhere) or (self.token is not None and self.token.bad)

    @property
    def unsure(self) -> bool:
        """It should have been possible to tell, and was not."""
        return bool(self.failed) or self.untold not in ("", UNTIL_INSTALLED, NO_HELP)


def lines(checked: Checked) -> Iterator[tuple[str, str]]:
    """(sign, text): ``!`` can't start, ``~`` could not be started in another shape, ``?`` nobody can tell; else empty."""
    about = f"{checked.profile} on {checked.node}: {checked.engine}"
    if checked.failed:
        yield "?", f"{about}: {checked.failed}"
    elif checked.untold:
        yield "?", f"{about}: {checked.untold}"
    elif checked.elsewhere:
        yield (
            "!",
            f"{about} is not where it would be started, but at {checked.elsewhere}: write engine.path: {checked.elsewhere}",
        )
    if not checked.untold and not checked.failed:
        if not checked.needs:
            told = f"{plural(checked.known, 'flag')} in its help, {plural(checked.asked, 'command line')} compared"
            yield "", f"{about} knows every flag ({told})"
        for need in checked.needs:
            yield _need(about, need)
    for line in checked.devices:
        yield "", f"  it sees: {line}"
    if checked.token is not None:
        yield _token(checked.token)


def _need(about: str, need: Need) -> tuple[str, str]:
    near = f" (nearest: {need.unknown.near})" if need.unknown.near else ""
    if need.only_with:
        return "~", f"{about} does not know {need.unknown.flag}{near}: only needed with {need.only_with}"
    return "!", f"{about} does not know {need.unknown.flag}{near}, which model {need.model} needs"


def _token(token: Token) -> tuple[str, str]:
    if token.untold:
        return "?", f"  no token: {token.untold}"
    if token.wrong:
        return "!", f"  no token from {token.shard}: {token.wrong}"
    where = f"  one token from {token.shard} in {span(token.took)}, computed on"
    if token.on is None:
        return "?", f"{where} nobody knows what: its agent can't tell yet"
    if token.on.gpus:
        held = ", ".join(f"{uuid} ({size(held)} held)" for uuid, held in sorted(token.on.gpus.items()))
        return "", f"{where} {held}"
    if token.claims_gpus:
        return "!", f"{where} the CPU, though it has GPUs: its processes hold no memory of any"
    return "", f"{where} the CPU"
