"""A plan as Markdown, for a comment on a pull request. Reads the same plan as the text and decides nothing.

What stands in manifests was written by whoever opened the request: it is shown as code, whatever it holds, so that it makes no
markup, calls nobody and commands nothing. The whole stays below what forges take.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from llmgw.core.show.render import LEGEND, plan_text, summary
from llmgw.model.plan import Action, Change, Plan
from llmgw.model.problems import Problem

MARKER = "<!-- llmgw plan -->"
"""The first line: by it the comment of before is found again."""
LARGEST = 60_000
"""Characters of the whole. GitHub takes 65,536, GitLab and Gitea more."""
ROWS = 60
ROW_TEXT = 240
"""Characters of a cell; all of it stands in the details."""
PROBLEMS = 100
_TICKS = re.compile(r"`+")


def plan_markdown(plan: Plan, *, show_commands: bool = False) -> str:
    """At most LARGEST characters, ended by a line break."""
    ordered = sorted(plan.changes, key=lambda change: change.action is not Action.BLOCKED)
    lines = [MARKER, f"### llmgw plan{_of(plan)}", "", _plain(summary(plan)), ""]
    if plan.basis.offline:
        lines += ["Made from the record alone: no node was asked.", ""]
    lines += _table(ordered)
    lines += _warnings(plan)
    return _with_details("\n".join(lines), "Details", plan_text(plan, show_commands=show_commands))


def problems_markdown(problems: Sequence[Problem]) -> str:
    """For a commit whose manifests are wrong."""
    told = [str(problem) for problem in problems]
    count = f"{len(told)} problem{'s' * (len(told) != 1)}"
    head = f"{MARKER}\n### llmgw plan\n\nNo plan: the manifests have {count}.\n"
    shown = "\n".join(told[:PROBLEMS])
    more = f"\nand {len(told) - PROBLEMS} more" if len(told) > PROBLEMS else ""
    return _with_details(head, "Problems", shown + more, opened=True)


def _of(plan: Plan) -> str:
    return f" for {plan.basis.commit[:10]}" if plan.basis.commit is not None else ""


def _table(changes: Sequence[Change]) -> list[str]:
    if not changes:
        return []
    lines = ["| | what | why |", "|---|---|---|"]
    lines += [_row(change) for change in changes[:ROWS]]
    if len(changes) > ROWS:
        lines.append(f"| | and {len(changes) - ROWS} more | |")
    return [*lines, ""]


def _row(change: Change) -> str:
    why = change.reason.partition("\n")[0]
    outage = f"; outage: {change.outage}" if change.outage else ""
    return f"| {LEGEND[change.action]} | {_code(change.address)} | {_code(why + outage)} |"


def _warnings(plan: Plan) -> Iterable[str]:
    if not plan.warnings:
        return []
    told = [f"{note.where}: {note.text}" if note.where else note.text for note in plan.warnings]
    lines = [f"- {_code(text)}" for text in told[:ROWS]]
    more = [f"- and {len(told) - ROWS} more"] if len(told) > ROWS else []
    return ["**Warnings**", "", *lines, *more, ""]


# ---- untrusted text ----------------------------------------------------------------------------------


def _code(text: str) -> str:
    """A code span in a cell, in which nothing is markup. Signs that would end the cell or the span stand as their likes."""
    line = _visible(" ".join(text.split())).replace("|", "¦").replace("`", "ˋ")
    short = line if len(line) <= ROW_TEXT else f"{line[:ROW_TEXT]}…"
    return f"`{short}`" if short else ""


def _block(text: str) -> str:
    """A code block. Each line is moved in by a space: GitLab looks for commands at the beginning of lines, and does not know
    fences of more than three signs."""
    fence = _ticks(text, least=3)
    moved = "\n".join(f" {line}" for line in text.splitlines())
    return f"{fence}text\n{moved}\n{fence}"


def _ticks(text: str, *, least: int) -> str:
    """More than the text has in a row."""
    longest = max((len(found[0]) for found in _TICKS.finditer(text)), default=0)
    return "`" * max(least, longest + 1)


def _visible(text: str) -> str:
    """Signs that show nothing, or turn the direction of what follows, as what they are."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        sign if sign == "\n" or unicodedata.category(sign)[0] != "C" else f"\\u{ord(sign):04x}"
        for sign in text
    )


def _plain(text: str) -> str:
    """A sentence of our own that holds numbers and a commit."""
    return text.replace("<", "&lt;")


def _with_details(head: str, title: str, text: str, *, opened: bool = False) -> str:
    """Folded, and cut at a line where it is too long."""
    lines = _visible(text.rstrip("\n")).split("\n")
    shown = "\n".join(lines)
    room = LARGEST - len(head) - 400
    if len(_block(shown)) > room:
        shown = _cut(lines, room)
    state = " open" if opened else ""
    return f"{head}\n<details{state}><summary>{title}</summary>\n\n{_block(shown)}\n\n</details>\n"


def _cut(lines: Sequence[str], room: int) -> str:
    kept: list[str] = []
    ticks = 2 * len(_ticks("\n".join(lines), least=3))
    left = room - ticks - 100
    for line in lines:
        left -= len(line) + 2
        if left < 0:
            break
        kept.append(line)
    return "\n".join((*kept, f"… cut: {len(lines) - len(kept)} more lines; `llmgw plan` shows all"))
