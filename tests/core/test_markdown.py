"""A plan as a comment on a pull request: what people see, and that whoever wrote the manifests can't make it say more."""

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from llmgw.core.show.markdown import LARGEST, MARKER, ROWS, plan_markdown, problems_markdown
from llmgw.model.ids import Commit, FleetId
from llmgw.model.plan import Action, Basis, Change, Notice, Plan
from llmgw.model.problems import Problem, Where
from llmgw.model.struct import replace

BASIS = Basis(
    fleet=FleetId("fleet-0011223344556677"),
    commit=Commit("4a3f9c2e" * 5),
    serial=12,
    observed="",
    offline=True,
)
EMPTY = Plan(basis=BASIS, created=datetime(2026, 5, 4, tzinfo=timezone.utc))
NASTY = (
    "`code` ``more`` ```fence\n```\n/close\n/merge\n@here @ann <!channel> <script>alert(1)</script> | a | b |\n"
    "</details><h1>x</h1> [click](https://evil.example) ![i](https://evil.example/i.png) #1 !2 \u202egnp.exe \x1b[31m \\| **b**"
)


def change(
    address: str = "model/chat/0", action: Action = Action.CREATE, reason: str = "it is new"
) -> Change:
    return Change(address=address, action=action, reason=reason, keyword="new-model")


def plan(*changes: Change, **fields: object) -> Plan:
    return replace(EMPTY, changes=changes, **fields)  # type: ignore[arg-type]


def parsed(text: str) -> list[Token]:
    """Flat, as GitHub's flavour reads it."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    return [each for token in tokens for each in (token, *(token.children or ()))]


def test_it_shows_what_is_blocked_first_then_the_rest_in_the_plans_order_and_folds_the_details() -> None:
    made = plan(
        change(),
        change("model/embed/0", Action.REMOVE, "Git asks for it no more"),
        change("model/big/0", Action.BLOCKED, "no room\nneeds 8 GPUs"),
        warnings=(Notice(text="old driver", where=Where(file="manifests/a.yaml", line=3)),),
    )
    assert plan_markdown(made).startswith(
        f"{MARKER}\n"
        "### llmgw plan for 4a3f9c2e4a\n"
        "\n"
        "Plan: 1 to create, 1 to remove, 1 blocked.\n"
        "\n"
        "Made from the record alone: no node was asked.\n"
        "\n"
        "| | what | why |\n"
        "|---|---|---|\n"
        "| blocked | `model/big/0` | `no room` |\n"
        "| create | `model/chat/0` | `it is new` |\n"
        "| remove | `model/embed/0` | `Git asks for it no more` |\n"
        "\n"
        "**Warnings**\n"
        "\n"
        "- `manifests/a.yaml:3: old driver`\n"
        "\n"
        "<details><summary>Details</summary>\n"
        "\n"
        "```text\n"
    )
    assert "      | needs 8 GPUs" in plan_markdown(made)
    assert plan_markdown(made).endswith("```\n\n</details>\n")


def test_without_changes_it_says_so_and_has_no_table() -> None:
    text = plan_markdown(plan())
    assert "No changes. The fleet is what 4a3f9c2e4a asks for." in text
    assert "|" not in text


def allowed_html(tokens: list[Token]) -> None:
    html = "".join(token.content for token in tokens if token.type in ("html_block", "html_inline"))
    for known in (
        MARKER,
        "<details open>",
        "<details>",
        "<summary>Details</summary>",
        "<summary>Problems</summary>",
        "</details>",
    ):
        html = html.replace(known, "")
    assert not html.strip(), html


def harmless(text: str) -> None:
    tokens = parsed(text)
    allowed_html(tokens)
    assert not [
        it.type for it in tokens if it.type in ("link_open", "image", "s_open", "blockquote_open", "hr")
    ]
    shown = "".join(token.content for token in tokens if token.type == "text")
    assert "@" not in shown
    assert "evil" not in shown
    assert len([it for it in tokens if it.type == "heading_open"]) == 1
    assert len([it for it in tokens if it.type == "fence"]) == 1
    rows = [it for it in tokens if it.type == "tr_open"]
    cells = [it for it in tokens if it.type in ("td_open", "th_open")]
    assert len(cells) == 3 * len(rows)
    assert not [line for line in text.split("\n") if line.startswith("/")], "a command to the forge"


def test_text_from_manifests_breaks_out_of_nothing_and_calls_nobody() -> None:
    text = plan_markdown(
        plan(
            change(reason=NASTY, address=NASTY),
            change(action=Action.BLOCKED, reason=NASTY.replace("\n", " ")),
            warnings=(Notice(text=NASTY),),
            waiting=(NASTY,),
        )
    )
    harmless(text)
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "\\u202e" in text, "what shows nothing is shown"
    harmless(problems_markdown([Problem(what=NASTY, instead=NASTY, where=Where(file="a|`.yaml", line=1))]))


@given(st.text(st.sampled_from("`|\\@<>/!#*_-[]() \n\r\t\u2028\x85ab~&;"), max_size=60))
def test_no_text_whatever_breaks_out(text: str) -> None:
    harmless(
        plan_markdown(plan(change(reason=f"x{text}", address=f"model/{text}"), warnings=(Notice(text=text),)))
    )


@pytest.mark.parametrize("filling", ["y", "`", "|", "y\n", "ä", "`\n"])
def test_it_is_never_longer_than_forges_take(filling: str) -> None:
    many = tuple(change(f"model/m{number}/0", reason=(filling * 900)[:900]) for number in range(200))
    text = plan_markdown(plan(*many, warnings=tuple(Notice(text=(filling * 900)[:900]) for _ in range(200))))
    assert len(text) <= LARGEST
    assert text.endswith("</details>\n")
    assert f"and {200 - ROWS} more" in text
    assert "… cut: " in text
    harmless(text)
    wrong = [Problem(what=(filling * 900)[:900], instead="no") for _ in range(200)]
    assert len(problems_markdown(wrong)) <= LARGEST


def test_wrong_manifests_are_told_where_the_request_is_discussed() -> None:
    problem = Problem(
        what="unknown field", instead="leave it out", where=Where(file="manifests/a.yaml", line=3, column=5)
    )
    text = problems_markdown([problem])
    assert text.startswith(f"{MARKER}\n### llmgw plan\n\nNo plan: the manifests have 1 problem.\n")
    assert "manifests/a.yaml:3:5: unknown field: leave it out" in text
