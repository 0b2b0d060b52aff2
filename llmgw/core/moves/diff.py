"""Every field in which two values differ, by its dotted path, and whether it forces a replacement.

Both sides are compared as resolved values, after defaults: that a default is written down is no difference.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, get_args

from llmgw.model import units
from llmgw.model.manifest import Adapter, Duration, ModelSpec, NodeSpec, ProfileSpec, Size
from llmgw.model.plan import FieldChange
from llmgw.model.record import ReplicaSpec
from llmgw.model.struct import Struct, fields
from llmgw.wire import codec

IN_PLACE = (
    "spec.aliases",
    "spec.placement",
    "spec.priority",
    "spec.profile",
    "spec.protect",
    "spec.replicas",
    "spec.rollout",
    "spec.servedName",
)
"""What changes without touching a running shard. ``profile`` and ``servedName`` are names here: what they stand for is
compared under ``profile.`` and ``servedName``."""


ADAPTERS = "spec.adapters"
ORDER = f"{ADAPTERS}.(order)"


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Leaves of two JSON values that differ; lists are leaves, None and absent are the same."""
    if isinstance(old, dict) or isinstance(new, dict):
        before, after = old or {}, new or {}
        if isinstance(before, dict) and isinstance(after, dict):
            for key in sorted({*before, *after}):
                yield from differences(before.get(key), after.get(key), f"{path}.{key}" if path else key)
            return
    if old != new:
        yield path, old, new


def spec_changes(old: ReplicaSpec, new: ReplicaSpec, *, replaces: bool) -> tuple[FieldChange, ...]:
    """Field by field from what a replica runs to what Git asks for. ``replaces``: the digests differ."""
    if old == new:
        return ()
    found = list(differences(_readable(old), _readable(new)))
    if any(path.startswith(f"{ADAPTERS}.") and path != ORDER for path, _, _ in found):
        found = [each for each in found if each[0] != ORDER]
    return tuple(
        FieldChange(
            path=path,
            old=text(path, before),
            new=text(path, after),
            forces_replacement=replaces
            and not _in_place(path)
            and not (path.startswith(ADAPTERS) and _loadable(old, new)),
        )
        for path, before, after in found
    )


def _loadable(old: ReplicaSpec, new: ReplicaSpec) -> bool:
    """Whether adapters change only by what can be loaded and unloaded while it runs."""
    most = old.model.max_loaded_adapters
    before, after = (max((each.rank for each in spec.model.adapters), default=0) for spec in (old, new))
    return bool(most) and most == new.model.max_loaded_adapters and after <= before


def change(path: str, old: Any, new: Any) -> FieldChange:
    return FieldChange(path=path, old=text(path, codec.to_json(old)), new=text(path, codec.to_json(new)))


def text(path: str, value: Any) -> str | None:
    """JSON text, and durations and sizes as manifests write them; None when there is nothing."""
    if value is None:
        return None
    if written := _measures().get(path):
        return written(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


_WRITTEN: Mapping[Any, Callable[[Any], str]] = {Duration: units.duration_text, Size: units.size_text}


@cache
def _measures() -> Mapping[str, Callable[[Any], str]]:
    """How each duration and each size is written, by the paths that changes have. No two kinds share one."""
    return {
        path: written
        for kind, root in ((ModelSpec, "spec"), (NodeSpec, "spec"), (ProfileSpec, "profile"))
        for path, written in _below(kind, root)
    }


def _below(kind: Any, path: str) -> Iterator[tuple[str, Callable[[Any], str]]]:
    if kind in _WRITTEN:
        yield path, _WRITTEN[kind]
    elif isinstance(kind, type) and issubclass(kind, Struct):
        for each in fields(kind):
            yield from _below(each.type, f"{path}.{each.encode_name}")
    else:
        for part in get_args(kind):  # of an optional field
            yield from _below(part, path)


def _readable(spec: ReplicaSpec) -> Any:
    """Paths as people know them from manifests: ``spec.args`` is the model's, ``profile.args`` the profile's."""
    return {
        "spec": {**codec.to_json(spec.model), "adapters": _by_name(spec.model.adapters)},
        "profile": codec.to_json(spec.profile),
        "servedName": spec.served_name,
        "keyId": spec.key_id,
    }


def _by_name(adapters: tuple[Adapter, ...]) -> Any:
    """So that one is told alone. Their order is told where nothing else differs: the first of them are loaded."""
    told = {each.name: _without_nothing(codec.to_json(each)) for each in adapters}
    return {**told, "(order)": [each.name for each in adapters]} if adapters else None


def _without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_nothing(part) for key, part in value.items() if part is not None and key != "name"
        }
    return value


def _in_place(path: str) -> bool:
    return any(path == known or path.startswith(f"{known}.") for known in IN_PLACE)
