"""What ``plan`` and ``apply`` may be asked for alike: the options, the wish that they make, and what it leaves out."""

from collections.abc import Callable
from typing import Any

import click

from llmgw.cli.addresses import ADDRESS, MODEL_ADDRESS
from llmgw.controller.opening import Opened
from llmgw.controller.passes.prepare import Wish

UNCOMMITTED_SHOWN = 3

Command = Callable[..., Any]


def wish_options(command: Command) -> Command:
    """Options that ``plan`` and ``apply`` have in common."""
    for option in (
        click.option(
            "--commit",
            help="Plan this branch, tag, commit, HEAD (the newest of the branch that is followed), or one behind any of them (main~2). "
            "[default: HEAD] `plan --offline` takes A..B too: what B changes against A, whichever is newer.",
        ),
        click.option("--allow-rollback", is_flag=True, help="Go back behind the commit applied last."),
        click.option(
            "--allow-unknown-size",
            is_flag=True,
            help="Place models whose memory nobody can tell, as if they fitted.",
        ),
        click.option(
            "--allow-prune",
            is_flag=True,
            help="Remove more than spec.prune of the Fleet allows, even everything.",
        ),
        click.option(
            "--prune-unrecorded",
            is_flag=True,
            help="Stop what agents of this fleet run and no record knows, unless Git asks for it.",
        ),
        click.option(
            "--target",
            "targets",
            multiple=True,
            metavar="ADDRESS",
            type=ADDRESS,
            help="Only this model, replica or node, and what it needs: model/chat, model/chat/0, node/gpu01. Repeatable.",
        ),
        click.option(
            "--replace",
            "replaced",
            multiple=True,
            metavar="ADDRESS",
            type=MODEL_ADDRESS,
            help="New copies of this model or replica, though nothing changed; try again what is held. Repeatable.",
        ),
        click.option(
            "--override-freeze",
            "override",
            metavar="REASON",
            default="",
            help="Make changes although the fleet is suspended or outside its sync windows. The record says why.",
        ),
    ):
        command = option(command)
    return command


async def wish_from(
    opened: Opened,
    *,
    commit: str | None,
    offline: bool = False,
    worktree: bool = False,
    targets: tuple[str, ...] = (),
    replaced: tuple[str, ...] = (),
    override: str = "",
    **allowed: Any,
) -> Wish:
    """``allowed``: what the flags of a wish's own names say."""
    if commit is not None and worktree:
        raise click.UsageError("--commit and --worktree name two different things to plan: give one of them")
    since, meant = _ends(commit, offline=offline)
    source = opened.fleet.source
    return Wish(
        commit=await source.commit(meant) if meant else None,
        since=await source.commit(since) if since else None,
        worktree=opened.worktree if worktree else None,
        offline=offline,
        targets=tuple(dict.fromkeys(targets)),
        replaced=tuple(dict.fromkeys(replaced)),
        override=" ".join(override.split()),
        **allowed,
    )


def _ends(commit: str | None, *, offline: bool) -> tuple[str | None, str | None]:
    """What is taken for applied, and what is planned. An end that is left out is HEAD, as with git."""
    before, between, after = (commit or "").partition("..")
    if not between:
        return None, commit or None
    if after.startswith("."):
        raise click.UsageError(f"--commit A...B is no comparison of two commits: write A..B, got {commit}")
    if not offline:
        raise click.UsageError(
            "--commit A..B compares two commits, which needs no node: llmgw plan --offline --commit A..B"
        )
    return before or "HEAD", after or "HEAD"


async def uncommitted(opened: Opened, wish: Wish) -> str:
    """What somebody who has just edited a manifest has to know, or nothing."""
    if wish.worktree is not None or wish.commit is not None:
        return ""
    files = await opened.mirror.uncommitted()
    if not files:
        return ""
    more = f" and {len(files) - UNCOMMITTED_SHOWN} more" if len(files) > UNCOMMITTED_SHOWN else ""
    return (
        f"Note: not committed, so no part of this: {', '.join(files[:UNCOMMITTED_SHOWN])}{more}. Commit it, or see what it "
        "would change with: llmgw plan --worktree"
    )
