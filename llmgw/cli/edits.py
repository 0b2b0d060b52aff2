"""Commands whose answer is a commit: ``scale``, ``drain``, ``uncordon``, ``cordon``, ``set``, ``pin``.

Each changes fields of manifests in the work tree, commits just that with the user's own git, pushes it and shows the plan.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from llmgw.cli import output
from llmgw.cli.environment import environment
from llmgw.cli.main import Asked, fleet_options
from llmgw.cli.numbers import Whole
from llmgw.cli.output import FORMAT_VERSION
from llmgw.cli.plan import show_plan
from llmgw.cli.session import fleet_of, run
from llmgw.cli.written import Written, written
from llmgw.controller.opening import Opened
from llmgw.controller.weights.revisions import pinned
from llmgw.manifests import schema, yamltext
from llmgw.manifests.edit import UNSET, Target, edited
from llmgw.manifests.settingtext import Place, assignment, meanings, named, place_of
from llmgw.model.manifest import Manifests, ModelSpec
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct

Command = Callable[..., Any]
MOST_SUBJECT: Final = 72
"""Signs of a commit's subject that are shown everywhere."""


class Change(Struct):
    """One field and the values that it may get: the first that the schema takes."""

    place: Place
    values: tuple[Any, ...]


class Edit(Struct):
    """``what`` is the commit's subject."""

    what: str
    changes: tuple[Change, ...]


Chosen = Callable[[Manifests], Edit]


def _edit_options(command: Command) -> Command:
    for option in (
        click.option("--message", "-m", metavar="TEXT", help="The commit's message. [default: what is done]"),
        click.option("--no-push", is_flag=True, help="Keep the commit here."),
        click.option("--json", "json_wanted", is_flag=True, help="Print the commit as JSON; no plan."),
        fleet_options,
    ):
        command = option(command)
    return command


@click.command(short_help="Set a model's replicas, by a commit.")
@click.argument("model")
@click.argument("replicas", type=Whole(0, example=3))
@_edit_options
@click.pass_obj
def scale(asked: Asked, /, *, model: str, replicas: int, **options: Any) -> int:
    """Set how many replicas MODEL has: an edit of its manifest, committed, pushed and planned.

    \b
    llmgw scale chat 3
    llmgw scale chat 3 --no-push -m "More room for Monday"
    """  # noqa: D301 - click wants the character itself
    name = model.removeprefix("models/").removeprefix("model/")
    what = f"Scale {name} to {replicas} replica{'s' * (replicas != 1)}"
    return _run(
        asked,
        lambda known: Edit(what=what, changes=(_set(known, "Model", name, "spec.replicas", replicas),)),
        **options,
    )


def _node_command(
    name: str, help_text: str, what: str, long: str, *changes: tuple[str, bool]
) -> click.Command:
    def command(asked: Asked, /, *, node: str, **options: Any) -> int:
        short = node.removeprefix("nodes/").removeprefix("node/")

        def chosen(known: Manifests) -> Edit:
            manifest = named("Node", short, known)
            wanted = [
                (path, value) for path, value in changes if value or path in manifest.marks
            ]  # what is not written is not so already
            return Edit(
                what=f"{what} {short}",
                changes=tuple(_set(known, "Node", short, path, value) for path, value in wanted),
            )

        return _run(asked, chosen, **options)

    command.__doc__ = f"{long}\n\n\b\nllmgw {name} gpu03\nllmgw {name} gpu03 -m 'its fan is loud'\n"
    decorated = click.pass_obj(command)
    return click.command(name, short_help=help_text)(click.argument("node")(_edit_options(decorated)))


drain = _node_command(
    "drain",
    "Move what runs on a node elsewhere, by a commit.",
    "Drain node",
    "Ask for NODE to be emptied: `drain: true` in its manifest, committed, pushed and planned. Replicas move elsewhere where they"
    " fit; `llmgw node show` says when nothing is left.",
    ("spec.drain", True),
)
cordon = _node_command(
    "cordon",
    "Keep new replicas away from a node, by a commit.",
    "Cordon node",
    "Keep new replicas away from NODE: `cordon: true` in its manifest, committed, pushed and planned. What runs there stays.",
    ("spec.cordon", True),
)
uncordon = _node_command(
    "uncordon",
    "Use a node again that was drained or cordoned, by a commit.",
    "Use node",
    "Let replicas be placed on NODE again: `drain` and `cordon` become false in its manifest, committed, pushed and planned.",
    ("spec.drain", False),
    ("spec.cordon", False),
)


@click.command("set", short_help="Set fields of manifests, by a commit.")
@click.argument("settings", nargs=-1, metavar="ADDRESS.FIELD=VALUE...")
@click.option("--unset", multiple=True, metavar="ADDRESS.FIELD", help="Take a field away. Repeatable.")
@_edit_options
@click.pass_obj
def set_(asked: Asked, /, *, settings: tuple[str, ...], unset: tuple[str, ...], **options: Any) -> int:
    """Set fields of manifests to values: an edit, committed, pushed and planned. Everything else in the files stays as it is.

    ADDRESS is fleet, node/NAME, profile/NAME or model/NAME. A VALUE is read as YAML, or as text where the field holds text.
    Items of lists are named by index or by their name: spec.adapters[sql].rank.

    \b
    llmgw set model/chat.spec.priority=10
    llmgw set profile/small.spec.engine.version=0.34.0 profile/small.spec.maxModelLen=16384
    llmgw set 'model/chat.spec.placement.labels={rack: a1}' --unset model/chat.spec.aliases
    """  # noqa: D301 - click wants the character itself
    if not settings and not unset:
        raise click.UsageError("nothing to set: give ADDRESS.FIELD=VALUE or --unset ADDRESS.FIELD")

    def chosen(known: Manifests) -> Edit:
        changes = [
            Change(place=place_of(place, known), values=meanings(value))
            for place, value in map(assignment, settings)
        ]
        changes += [Change(place=place_of(place, known), values=(UNSET,)) for place in unset]
        said = "; ".join(_in_words(change) for change in changes)
        return Edit(what=said if len(said) <= MOST_SUBJECT else _shortly(changes), changes=tuple(changes))

    return _run(asked, chosen, **options)


@click.command(short_help="Write the exact revision of a model's weights into its manifest, by a commit.")
@click.argument("model")
@click.argument("revision", default="")
@_edit_options
@click.pass_obj
def pin(asked: Asked, /, *, model: str, revision: str, **options: Any) -> int:
    """Ask the hub which commit REVISION of MODEL's repository is now (a branch, a tag, a short commit; default: the revision
    that stands there) and write all 40 digits of it: an edit of its manifest, committed, pushed and planned.

    \b
    llmgw pin llama-70b
    llmgw pin llama-70b main      # the newest there is
    """  # noqa: D301 - click wants the character itself
    name = model.removeprefix("models/").removeprefix("model/")

    async def asked_hub(opened: Opened, known: Manifests) -> Edit:
        spec = named("Model", name, known).spec
        assert isinstance(spec, ModelSpec)
        found = await pinned(
            spec.source, revision, name=name, environment=environment(), learn=opened.fleet.learn
        )
        return Edit(
            what=f"Pin {name} to {found[:10]}",
            changes=(_set(known, "Model", name, "spec.source.revision", found),),
        )

    return run(_edit(asked, asked_hub, **options))


def _set(known: Manifests, kind: str, name: str, path: str, value: Any) -> Change:
    return Change(place=Place(manifest=named(kind, name, known), path=path), values=(value,))


def _in_words(change: Change) -> str:
    if change.values == (UNSET,):
        return f"Unset {change.place.address} {change.place.path}"
    value = change.values[-1]
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"Set {change.place.address} {change.place.path} to {shown}"


def _shortly(changes: Sequence[Change]) -> str:
    addresses = sorted({change.place.address for change in changes})
    return f"Set {len(changes)} field{'s' * (len(changes) != 1)} of {', '.join(addresses)}"


def _run(asked: Asked, chosen: Chosen, **options: Any) -> int:
    async def at_once(_: Opened, known: Manifests) -> Edit:
        return chosen(known)

    return run(_edit(asked, at_once, **options))


async def _edit(
    asked: Asked, chosen: Callable[..., Any], *, message: str | None, no_push: bool, json_wanted: bool
) -> int:
    async with fleet_of(asked) as (opened, _):
        here = written(opened)
        edit = await chosen(opened, here.manifests)
        files = {path: data for path, data in _files(here, edit.changes).items() if data != here.files[path]}
        here.checked(dict(files))
        if not files:
            return _nothing_to_do(edit, json_wanted=json_wanted)
        branch = await opened.followed()
        for path in files:
            _check(here, path, branch=branch, doing=edit.what)
        commit = _commit(here, files, message or edit.what)
    if not json_wanted:
        output.say(f"Committed {', '.join(files)} ({commit}): {message or edit.what}.")
    pushed = "" if no_push else here.tree.push(commit)
    if json_wanted:
        document = {
            "formatVersion": FORMAT_VERSION,
            "commit": commit,
            "files": sorted(files),
            "pushedTo": pushed or None,
        }
        output.say(json.dumps(document, ensure_ascii=False))
        return output.DONE
    if pushed:
        output.say(f"Pushed to {pushed}.")
    elif no_push and (hint := here.tree.push_hint()):
        output.say(f"Not pushed. Next: {hint}, then llmgw plan")
        return output.DONE
    return await show_plan(asked)


def _files(here: Written, changes: Sequence[Change]) -> dict[str, bytes]:
    """Each file that is named, as it is to be."""
    files: dict[str, bytes] = {}
    for change in changes:
        manifest = change.place.manifest
        path = manifest.where.file
        if path not in here.files:
            raise StalledError(
                f"changing {change.place.address}: {path} is a symbolic link: edit the file that it points to"
            )
        target = Target(file=path, kind=manifest.kind, name=manifest.metadata.name)
        before = files.get(path, here.files[path])
        tried = [edited(before, target, change.place.path, value) for value in change.values]
        files[path] = min(tried, key=lambda data: len(_problems(path, data)))
    return files


def _problems(path: str, data: bytes) -> list[object]:
    """What the schema says of a file; of two meanings the first with the fewest problems is meant."""
    documents, problems = yamltext.read(path, data)
    return [*problems, *(one for document in documents for one in schema.check(path, document))]


def _check(here: Written, path: str, *, branch: str | None, doing: str) -> None:
    doing = doing[:1].lower() + doing[1:]
    here.tree.check(path, branch=branch, doing=doing)
    if not here.tree.unchanged(path):
        raise StalledError(f"{doing}: {path} has changes that are not committed: commit or undo them first")


def _commit(here: Written, files: dict[str, bytes], message: str) -> str:
    """The commit. When git refuses it the files are as they were."""
    try:
        for path, data in files.items():
            (here.tree.top / path).write_bytes(data)
        return here.tree.commit(*files, message=message, doing=f"committing {', '.join(files)}")
    except (OSError, StalledError) as wrong:
        for path in files:
            (here.tree.top / path).write_bytes(here.files[path])
        if isinstance(wrong, OSError):
            raise StalledError(f"writing {wrong.filename}: {wrong.strerror}") from wrong
        raise


def _nothing_to_do(edit: Edit, *, json_wanted: bool) -> int:
    if json_wanted:
        document: dict[str, Any] = {
            "formatVersion": FORMAT_VERSION,
            "commit": None,
            "files": [],
            "pushedTo": None,
        }
        output.say(json.dumps(document))
    else:
        output.say(f"{edit.what}: it is so already.")
    return output.DONE
