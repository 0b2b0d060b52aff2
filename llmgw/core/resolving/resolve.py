"""Manifests to Desired: references followed, defaults settled, every model with the digest of what decides how its
shards run. What one document can't say alone is checked here; all problems at once, each with its line."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llmgw.core.adapter import EngineAdapter
from llmgw.core.resolving import engines, nodes, plainsecrets
from llmgw.core.resolving import fleet as fleets
from llmgw.model import ids
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.manifest import (
    ADAPTER_RANK,
    FleetSpec,
    Manifest,
    Manifests,
    ModelSpec,
    NodeSpec,
    ProfileSpec,
    Value,
)
from llmgw.model.problems import InvalidError, Problem, Where
from llmgw.model.struct import Struct, default_of, fields, replace
from llmgw.wire.codec import to_json

RENAMED_FROM = "llmgw/renamed-from"
_ANNOTATIONS = (RENAMED_FROM,)
_NO_FLEET = "default"  # the fleet's name where no Fleet is written


def resolve(manifests: Manifests, *, key_id: str, adapters: Mapping[str, EngineAdapter]) -> Desired:
    """Raises InvalidError with everything that is wrong."""
    problems = [*_annotations(manifests), *engines.problems(manifests, adapters), *_profiles(manifests)]
    desired_nodes = nodes.resolve(manifests, problems, renamed=renames(manifests.nodes, problems))
    warnings = [*plainsecrets.warnings(manifests)]
    desired_models = _models(
        manifests, key_id=key_id, adapters=adapters, problems=problems, warnings=warnings
    )
    problems.extend(_names_clash(manifests))
    problems.extend(fleets.problems(manifests.fleet))
    problems.extend(_engines_own_variables(manifests.nodes, desired_models.values(), adapters))
    if problems:
        raise InvalidError(tuple(sorted(set(problems), key=_order)))
    fleet = manifests.fleet
    return Desired(
        commit=ids.Commit(manifests.commit) if manifests.commit else None,
        fleet_name=fleet.metadata.name if fleet else _NO_FLEET,
        fleet=fleet.spec if fleet and isinstance(fleet.spec, FleetSpec) else FleetSpec(),
        nodes=desired_nodes,
        models=desired_models,
        warnings=tuple(sorted(set(warnings), key=_order)),
        suspended_at=fleet.at("spec.suspend") if fleet else None,
    )


def _order(problem: Problem) -> tuple[Where, str]:
    return problem.where or Where(file=""), problem.what


# ---- models and profiles -----------------------------------------------------------------------------


def _models(
    manifests: Manifests,
    *,
    key_id: str,
    adapters: Mapping[str, EngineAdapter],
    problems: list[Problem],
    warnings: list[Problem],
) -> dict[str, DesiredModel]:
    profiles = {profile.metadata.name: profile for profile in manifests.profiles}
    stated = {name: stated_fields(profile.spec) for name, profile in profiles.items()}
    renamed = renames(manifests.models, problems)
    places = _Places(manifests)
    desired: dict[str, DesiredModel] = {}
    for manifest in manifests.models:
        spec = manifest.spec
        assert isinstance(spec, ModelSpec)
        problems.extend(places.check(manifest, spec))
        problems.extend(_control_characters(manifest, spec.args, spec.env))
        problems.extend(_rename_keeps_name(manifest, spec, renamed))
        profile = profiles.get(spec.profile)
        if profile is None or not isinstance(profile.spec, ProfileSpec):
            problems.append(_unknown(manifest, "spec.profile", spec.profile, profiles, "Profile"))
            continue
        adapter = adapters.get(profile.spec.engine.name)
        ranks = adapter.lora_ranks if adapter is not None else ()
        model = _model(manifest, spec, profile.spec, stated[spec.profile], key_id, renamed, ranks)
        desired[model.name] = model
        if adapter is not None:
            problems.extend(_placed(problem, manifest, profile) for problem in adapter.validate(model))
            warnings.extend(_placed(problem, manifest, profile) for problem in adapter.warnings(model))
    return desired


def _engines_own_variables(
    node_manifests: Iterable[Manifest], models: Iterable[DesiredModel], adapters: Mapping[str, EngineAdapter]
) -> Iterator[Problem]:
    """Of a node's env, those that no profile may set for an engine that may run there: they would reach it all the same."""
    every = tuple(models)
    for manifest in node_manifests:
        spec = manifest.spec
        if not isinstance(spec, NodeSpec) or not spec.env:
            continue
        there = {model.profile_name: model for model in every if model.spec.placement.pool == spec.pool}
        for model in there.values():
            profile = replace(model.profile, env=spec.env)
            asked = replace(model, profile=profile, spec=replace(model.spec, env={}))
            adapter = adapters.get(profile.engine.name)
            for problem in adapter.validate(asked) if adapter is not None else ():
                if problem.what.startswith("spec.env"):
                    yield replace(problem, where=manifest.at(problem.what.partition(":")[0]))


def _model(
    manifest: Manifest,
    spec: ModelSpec,
    profile: ProfileSpec,
    stated_profile: Any,
    key_id: str,
    renamed: Mapping[str, str],
    lora_ranks: tuple[int, ...],
) -> DesiredModel:
    name = manifest.metadata.name
    served = spec.served_name or name
    digest, *higher = spec_digests(
        spec, stated_profile, served_name=served, key_id=key_id, lora_ranks=lora_ranks
    )
    return DesiredModel(
        name=name,
        labels=manifest.metadata.labels,
        spec=spec,
        profile_name=spec.profile,
        profile=profile,
        served_name=served,
        spec_digest=digest,
        where=manifest.where,
        renamed_from=renamed.get(name),
        also_runs_as=tuple(higher),
    )


_NOT_HOW_IT_RUNS = frozenset(
    {"profile", "served_name", "aliases", "replicas", "placement", "priority", "rollout", "protect"}
)
"""Fields of a model that say how often, where and under which other names it runs, not how a shard does. The profile
is digested by what it says, not by its name; the served name after its default."""


def spec_digests(
    spec: ModelSpec, stated_profile: Any, *, served_name: str, key_id: str, lora_ranks: tuple[int, ...]
) -> tuple[ids.Digest, ...]:
    """The first names everything that decides how a shard of the model runs. A field at its default counts as absent, so that
    a newer llmgw with one field more restarts nothing. Of secrets only the reference is digested.

    LoRA adapters that the engine loads while it runs only count by the highest rank, one of ``lora_ranks``, that it is started
    for; the further ones name the same, started for higher ranks."""

    def named(model: Mapping[str, Any], **more: int) -> ids.Digest:
        return ids.digest(
            {"model": model, "profile": stated_profile, "servedName": served_name, "keyId": key_id, **more}
        )

    if not spec.max_loaded_adapters or not lora_ranks:
        return (named(stated_fields(spec, leave_out=_NOT_HOW_IT_RUNS)),)
    model = stated_fields(spec, leave_out=_NOT_HOW_IT_RUNS | {"adapters"})
    least = max((adapter.rank for adapter in spec.adapters), default=ADAPTER_RANK)
    enough = [rank for rank in lora_ranks if rank >= least] or [lora_ranks[-1]]
    return tuple(named(model, loraRank=rank) for rank in enough)


def stated_fields(value: Struct, *, leave_out: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The fields of a manifest's value that differ from their defaults, as JSON under their written names."""
    stated: dict[str, Any] = {}
    for field in fields(type(value)):
        part = getattr(value, field.name)
        if field.name in leave_out or part == default_of(field):
            continue
        stated[field.encode_name] = stated_fields(part) if isinstance(part, Struct) else _json(part)
    return stated


def _json(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _json(item) for key, item in value.items()}
    return to_json(value)


_PATH_MODEL = {field.encode_name for field in fields(ModelSpec)}
_PATH_PROFILE = {field.encode_name for field in fields(ProfileSpec)}


def _placed(problem: Problem, model: Manifest, profile: Manifest) -> Problem:
    """An adapter's problem with its place: in the profile's file or in the model's, by the path that it begins with."""
    path = problem.what.partition(":")[0].partition(" ")[0]
    top = path.removeprefix("spec.").partition(".")[0].partition("[")[0]
    if top in _PATH_MODEL and top in _PATH_PROFILE:
        manifest = model if _is_models_own(path, problem.what, model, profile) else profile
    else:
        manifest = profile if top in _PATH_PROFILE else model
    return Problem(what=problem.what, instead=problem.instead, where=manifest.at(path))


def _is_models_own(path: str, what: str, model: Manifest, profile: Manifest) -> bool:
    """Of ``spec.args`` and ``spec.env``, which both have: whether the problem is about the model's."""
    if path not in model.marks or path not in profile.marks or not isinstance(model.spec, ModelSpec):
        return path in model.marks
    _, bracket, index = path.rstrip("]").partition("spec.args[")
    if not bracket or not index.isdigit():
        return True  # of two values of one variable the model's wins
    flag = model.spec.args[int(index)].partition("=")[0]
    return flag in what.split()


def _profiles(manifests: Manifests) -> Iterator[Problem]:
    for manifest in manifests.profiles:
        profile = manifest.spec
        assert isinstance(profile, ProfileSpec)
        yield from _control_characters(manifest, profile.args, profile.env)
        gpus, restart = profile.gpus, profile.restart
        if gpus.per_node == 0:
            given = {"class": gpus.gpu_class, "minMemory": gpus.min_memory, "share": gpus.share}
            for name in (name for name, value in given.items() if value):
                yield Problem(
                    what=f"spec.gpus.{name} asks for a GPU, but spec.gpus.perNode is 0",
                    instead=f"leave {name} out, or write perNode: 1",
                    where=manifest.at(f"spec.gpus.{name}"),
                )
        if profile.fabric != "none" and (alone := _no_network(profile)):
            yield Problem(
                what=f"spec.fabric: {profile.fabric} is about the network between GPUs of several nodes, but {alone}",
                instead="leave it out",
                where=manifest.at("spec.fabric"),
            )
        if restart.backoff > restart.max_backoff:
            yield Problem(
                what=f"spec.restart.backoff ({restart.backoff:g}s) is longer than spec.restart.maxBackoff "
                f"({restart.max_backoff:g}s)",
                instead="write maxBackoff too, at least as long",
                where=manifest.at("spec.restart.backoff"),
            )


def _no_network(profile: ProfileSpec) -> str:
    if profile.nodes == 1:
        return "spec.nodes is 1"
    return "spec.gpus.perNode is 0" if profile.gpus.per_node == 0 else ""


# ---- references and names ----------------------------------------------------------------------------


class _Places:
    """What models may refer to when they say where they run."""

    def __init__(self, manifests: Manifests) -> None:
        self._nodes = {node.metadata.name for node in manifests.nodes}
        self._pools = nodes.pools(manifests)

    def check(self, manifest: Manifest, spec: ModelSpec) -> Iterator[Problem]:
        placement = spec.placement
        if placement.pool not in self._pools and "spec.placement.pool" in manifest.marks:
            yield _unknown(manifest, "spec.placement.pool", placement.pool, self._pools, "pool of nodes")
        for index, name in enumerate(placement.nodes):
            path = f"spec.placement.nodes[{index}]"
            if name not in self._nodes:
                yield _unknown(manifest, path, name, self._nodes, "Node")


def _unknown(manifest: Manifest, path: str, name: str, known: Iterable[str], kind: str) -> Problem:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        instead = f"did you mean {near[0]}?"
    elif names:
        instead = f"there are {', '.join(names[:8])}{' and others' if len(names) > 8 else ''}"
    else:
        instead = f"there is none yet: write a {kind.partition(' ')[0]}"
    return Problem(
        what=f"{path} names {name}, and there is no such {kind}", instead=instead, where=manifest.at(path)
    )


def _names_clash(manifests: Manifests) -> Iterator[Problem]:
    """One name, one model: served names and aliases share the space that requests choose from."""
    taken: dict[str, tuple[str, Where]] = {}
    for manifest in manifests.models:
        spec = manifest.spec
        assert isinstance(spec, ModelSpec)
        name = manifest.metadata.name
        own = [
            (
                spec.served_name or name,
                manifest.at("spec.servedName" if spec.served_name else "metadata.name"),
            )
        ]
        own += [(alias, manifest.at(f"spec.aliases[{index}]")) for index, alias in enumerate(spec.aliases)]
        for served, where in own:
            other = taken.setdefault(served, (name, where))
            if other[1] != where:
                whose = "the same model" if other[0] == name else f"the model {other[0]}"
                yield Problem(
                    what=f'the name "{served}" is taken by {whose} at {other[1]}',
                    instead="give each model names of its own (spec.servedName, spec.aliases)",
                    where=where,
                )


def renames(manifests: Iterable[Manifest], problems: list[Problem]) -> dict[str, str]:
    """New name to old, for one kind."""
    all_of = tuple(manifests)
    names = {manifest.metadata.name for manifest in all_of}
    renamed: dict[str, str] = {}
    for manifest in all_of:
        old = manifest.metadata.annotations.get(RENAMED_FROM)
        if old is None:
            continue
        where = manifest.at(f"metadata.annotations.{RENAMED_FROM}")
        if old in names:
            what = f"{RENAMED_FROM} names {old}, which is still there"
            problems.append(
                Problem(what=what, instead="remove the old document or the annotation", where=where)
            )
        elif old in renamed.values():
            what = f"{RENAMED_FROM} names {old}, and so does another {manifest.kind}"
            problems.append(Problem(what=what, instead="only one can take over", where=where))
        else:
            renamed[manifest.metadata.name] = old
    return renamed


def _rename_keeps_name(manifest: Manifest, spec: ModelSpec, renamed: Mapping[str, str]) -> Iterator[Problem]:
    old = renamed.get(manifest.metadata.name)
    if old is not None and spec.served_name is None:
        yield Problem(
            what=f"renaming {old} to {manifest.metadata.name} would change the name in API requests",
            instead=f"write spec.servedName: {old} to keep it, or drop the annotation {RENAMED_FROM}",
            where=manifest.at(f"metadata.annotations.{RENAMED_FROM}"),
        )


def _annotations(manifests: Manifests) -> Iterator[Problem]:
    fleet = (manifests.fleet,) if manifests.fleet else ()
    for manifest in (*fleet, *manifests.nodes, *manifests.profiles, *manifests.models):
        usable = _ANNOTATIONS if manifest.kind in ("Node", "Model") else ()
        for name in manifest.metadata.annotations:
            if name.startswith("llmgw/") and name not in usable:
                near = f"did you mean {usable[0]}?" if usable else "remove it"
                yield Problem(
                    what=f"the annotation {name} means nothing on a {manifest.kind}",
                    instead=near,
                    where=manifest.at(f"metadata.annotations.{name}"),
                )


def _control_characters(
    manifest: Manifest, args: tuple[str, ...], env: Mapping[str, Value]
) -> Iterator[Problem]:
    given = [(f"spec.args[{index}]", arg) for index, arg in enumerate(args)]
    given += [(f"spec.env.{name}", value) for name, value in env.items() if isinstance(value, str)]
    for path, text in given:
        if found := nodes.CONTROL.search(text):
            yield Problem(
                what=f"{path} holds the control character U+{ord(found[0]):04X}",
                instead="remove it; long text such as a chat template goes into a file on the node",
                where=manifest.at(path),
            )
