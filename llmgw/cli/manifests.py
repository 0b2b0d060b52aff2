"""Commands about manifests: ``validate``, ``schema``, ``explain``, ``init``. None of them touches a node."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from llmgw.cli import output
from llmgw.cli.environment import environment
from llmgw.cli.main import Asked, Looking, fleet_options
from llmgw.model.manifest import Manifests
from llmgw.model.problems import InvalidError, Problem
from llmgw.model.struct import Struct, replace

DOCUMENTS = ("fleet", "node", "profile", "model", "settings", "plan", "status", "record", "endpoints")


class Place(Struct):
    """Where a fleet's manifests lie on disk. ``folder`` is seen from ``root``; None: the usual one."""

    root: Path
    folder: str | None


@click.command(cls=Looking, short_help="Check the manifests of a work tree.")
@click.argument("folder", metavar="[PATH]", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print problems as JSON, for editors and CI.")
@fleet_options
@click.pass_obj
def validate(asked: Asked | None, folder: Path | None, *, as_json: bool) -> int:
    """Check the manifests in PATH: the files as they are, committed or not.

    Without PATH: those of the fleet around this directory, which is a Git repository or has a manifests folder. Exit
    code 1 when something is wrong; then every problem of every file is told with its line. Warnings are told, too, and
    change no exit code.

    \b
    llmgw validate
    llmgw validate examples/one-box
    """  # noqa: D301 - click wants the character itself
    cwd = Path.cwd()
    place = _named(folder) if folder is not None else _enclosing(asked or Asked(), cwd)
    try:
        manifests, found = check(place)
    except InvalidError as invalid:
        problems = tuple(_seen_from(cwd, place.root, problem) for problem in invalid.problems)
        if as_json:
            output.say(
                json.dumps(
                    {"valid": False, "problems": [_as_json(problem) for problem in problems]}, indent=2
                )
            )
            return output.ERROR
        raise InvalidError(problems) from invalid
    warnings = tuple(_seen_from(cwd, place.root, warning) for warning in found)
    counts = _counts(manifests)
    if as_json:
        told = [_as_json(warning) for warning in warnings]
        output.say(
            json.dumps({"valid": True, "problems": [], "warnings": told, "manifests": counts}, indent=2)
        )
    else:
        output.say(_summary(counts))
        for warning in warnings:
            output.note(f"Warning: {warning}")
        if not any(counts.values()):
            output.note(
                f"There is no manifest in {place.root / (place.folder or '.')}: `llmgw init DIR` writes a first set."
            )
    return output.DONE


def check(place: Place) -> tuple[Manifests, tuple[Problem, ...]]:
    """Everything that is checked before a plan: syntax, schemas, references, what the engines can do. The problems are warnings:
    whatever is worse raises InvalidError."""
    from llmgw.core.resolving.resolve import resolve  # noqa: PLC0415 - `--help` needs none of it
    from llmgw.engines.registry import ADAPTERS  # noqa: PLC0415 - same
    from llmgw.manifests.folder import read_folder  # noqa: PLC0415 - same
    from llmgw.manifests.load import load  # noqa: PLC0415 - same

    files, links = read_folder(place.root, place.folder)
    manifests = load(files, commit=None, links=links, path=place.folder)
    return manifests, resolve(manifests, key_id="", adapters=ADAPTERS).warnings


def _named(path: Path) -> Place:
    """``path`` is a fleet's folder, or one of its files; what it points to may lie anywhere in its repository."""
    from llmgw.controller.settings import enclosing_repository  # noqa: PLC0415 - `--help` needs none of it
    from llmgw.manifests import paths  # noqa: PLC0415 - same

    folder = path.resolve() if path.is_dir() else path.resolve().parent
    root = enclosing_repository(folder) or folder
    usual = paths.fleet_path(f"{entry.name}/" for entry in folder.iterdir() if entry.is_dir())
    return Place(root=root, folder=os.path.normpath((folder / usual).relative_to(root)))


def _enclosing(asked: Asked, cwd: Path) -> Place:
    """The fleet around ``cwd``, as the other commands see it."""
    from llmgw.controller.settings import enclosing_repository, load_settings  # noqa: PLC0415 - as above
    from llmgw.manifests import paths  # noqa: PLC0415 - same

    root = enclosing_repository(cwd)
    if root is None:
        there = (cwd / paths.DEFAULT_FOLDER).is_dir() or (cwd / paths.CONFIGURATION).is_file()
        if asked.path is None and not there:
            raise InvalidError((_no_fleet(cwd),))
        return Place(root=cwd, folder=asked.path)
    config = str(asked.config) if asked.config else None
    flags = {"path": asked.path, "repo": str(root)}
    settings = load_settings(flags=flags, environ=environment(), cwd=cwd, config=config)
    usual = Path(settings.base, paths.DEFAULT_FOLDER)
    chosen = settings.path or (str(usual) if (root / usual).is_dir() else settings.base)
    return Place(root=root, folder=os.path.normpath(chosen))


def _no_fleet(cwd: Path) -> Problem:
    """All below a home directory, say, is no fleet, and long to read."""
    return Problem(
        what=f"{cwd} is in no Git repository and has no manifests folder, and no folder is named",
        instead="run this in the manifests' repository, or name their folder: llmgw validate PATH (here: llmgw validate .)",
    )


def _seen_from(cwd: Path, root: Path, problem: Problem) -> Problem:
    """With a path that editors and terminals can open from here."""
    if problem.where is None or root == cwd:
        return problem
    file = os.path.relpath(root / problem.where.file, cwd)
    return replace(problem, where=replace(problem.where, file=file))


def _as_json(problem: Problem) -> dict[str, Any]:
    where = problem.where
    place = {"file": where.file, "line": where.line, "column": where.column} if where else {}
    return {**place, "what": problem.what, "instead": problem.instead}


def _counts(manifests: Manifests) -> Mapping[str, int]:
    fleet = (manifests.fleet,) if manifests.fleet else ()
    counted = Counter(
        manifest.kind for manifest in (*fleet, *manifests.nodes, *manifests.profiles, *manifests.models)
    )
    return {kind: counted[kind] for kind in ("Fleet", "Node", "Profile", "Model")}


def _summary(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    parts = [f"{count} {kind.lower()}{'s' * (count != 1)}" for kind, count in counts.items() if count]
    return f"{total} manifest{'s' * (total != 1)}: {', '.join(parts) or 'none'}"


@click.command(short_help="Print the JSON Schema of a kind.")
@click.argument("kind", type=click.Choice(DOCUMENTS, case_sensitive=False))
def schema(kind: str) -> None:
    """Print the JSON Schema (2020-12) of a KIND of manifest, of llmgw.yaml (settings), or of the JSON that llmgw writes.

    \b
    llmgw schema model > model.schema.json
    llmgw schema plan
    """  # noqa: D301 - click wants the character itself
    from llmgw.manifests import schema as schemas  # noqa: PLC0415 - `--help` needs none of it

    output.say(schemas.text(kind.lower()))


@click.command(short_help="Say what a field means: its type, default and an example.")
@click.argument("field", metavar="KIND[.PATH]")
def explain(field: str) -> None:
    """Say what a field of a manifest means.

    \b
    llmgw explain Model.spec.rollout.maxSurge
    llmgw explain Profile
    """  # noqa: D301 - click wants the character itself
    from llmgw.manifests import reference  # noqa: PLC0415 - `--help` needs none of it

    try:
        output.say(reference.explanation(field))
    except InvalidError as invalid:
        raise click.UsageError(str(invalid)) from invalid


@click.command(short_help="Start a fleet: a commented set of manifests and its secret.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Write a first fleet into DIR: this machine as its node, one small model, and the fleet's secret.

    Nothing that is there is overwritten. DIR becomes a Git repository unless it lies in one.

    \b
    llmgw init fleet
    """  # noqa: D301 - click wants the character itself
    from llmgw.cli import starter  # noqa: PLC0415 - `--help` needs none of it

    for line in starter.write(folder, environ=environment()):
        output.say(line)
