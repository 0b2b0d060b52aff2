"""The answer to "why is it there?": the line of Git that asks for it, who wrote it, how it came to where it is, and what became
of it. Values and their text; who looks for them is the controller."""

from collections.abc import Iterable, Iterator

from llmgw.model.struct import Struct

SUBJECT_SHOWN = 100


class Asked(Struct):
    """Who asks for something: a document of a commit, and the newest commit that changed it or the profile it runs by."""

    where: str  # file:line:column, as it stands in ``at_commit``
    at_commit: str
    commit: str = ""  # that changed it last; empty: nobody can tell
    line: str = ""  # where, when it was the profile: file:line
    author: str = ""
    at: str = ""
    subject: str = ""


class Did(Struct):
    """One pass, or one thing that happened by itself, that touched it."""

    serial: str
    at: str
    what: str
    actor: str = ""
    trigger: str = ""
    commit: str = ""
    signer: str = ""
    outcome: str = ""


class Why(Struct):
    """Of one replica, model or node. ``asked`` is what it runs by, ``now`` what Git asks for at the commit applied last, where that
    is not the same."""

    name: str
    what: str  # "replica 0 of model chat, serving on gpu01"
    asked: Asked | None = None
    now: Asked | None = None
    placed: tuple[str, ...] = ()  # why there, and why not elsewhere
    serial: int = 0  # of the pass that started it
    attempts: int = 0  # failures in a row of the start that is under way
    ended: tuple[str, ...] = ()  # how it ended last, and what it wrote last
    notes: tuple[str, ...] = ()
    history: tuple[Did, ...] = ()  # newest first


class Answer(Struct):
    """``process`` is the one that was asked for, where it was one."""

    process: str = ""
    why: tuple[Why, ...] = ()


def why_text(answer: Answer) -> str:
    blocks = ["\n".join(_lines(one)) for one in answer.why]
    if answer.process:
        blocks.insert(0, answer.process)
    return "\n\n".join(blocks) + "\n"


def _lines(why: Why) -> Iterator[str]:
    yield f"{why.name}: {why.what}"
    if why.asked is not None:
        yield from _asked("asked for", why.asked)
    if why.now is not None:
        yield from _asked("by now", why.now)
    if why.serial:
        yield f"  started    by serial {why.serial}{_by(why.serial, why.history)}"
    yield from _listed("placed", why.placed)
    if why.attempts:
        yield f"  attempts   {why.attempts} in a row failed"
    yield from _listed("ended", why.ended)
    yield from _listed("note", why.notes)
    for label, did in zip(_labels("history"), why.history, strict=False):
        outcome = f" [{did.outcome}]" if did.outcome else ""
        yield f"  {label:<10} {did.serial:>4}  {did.at}  {did.what}{outcome}"


def _asked(label: str, asked: Asked) -> Iterator[str]:
    yield f"  {label:<10} {asked.where} of commit {asked.at_commit[:10]}"
    if asked.commit:
        place = f" ({asked.line})" if asked.line else ""
        yield f"             last changed{place} by commit {asked.commit[:10]} of {asked.author}, {asked.at}:"
        yield f"             {asked.subject[:SUBJECT_SHOWN]}"


def _by(serial: int, history: Iterable[Did]) -> str:
    for did in history:
        if did.serial == str(serial) and did.actor:
            signer = f", signed by {did.signer}" if did.signer else ""
            return f" of {did.actor} ({did.trigger}), commit {did.commit[:10]}{signer}"
    return ""


def _listed(label: str, lines: Iterable[str]) -> Iterator[str]:
    for name, line in zip(_labels(label), lines, strict=False):
        yield f"  {name:<10} {line}"


def _labels(label: str) -> Iterator[str]:
    yield label
    while True:
        yield ""
