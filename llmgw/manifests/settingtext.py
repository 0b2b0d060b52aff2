"""What a person writes to set one field: ``model/chat.spec.replicas=3``, taken apart, and what its value may mean."""

import re
from collections.abc import Sequence
from typing import Any, Final

from llmgw.manifests import yamltext
from llmgw.model.manifest import KINDS, Manifest, Manifests
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct

_PLACE: Final = re.compile(
    r"^(?P<kind>[a-z]+)s?(?:/(?P<name>[a-z0-9][a-z0-9.-]*?))?\.(?P<path>(?:spec|metadata)(?:[.\[].*)?)$",
    re.DOTALL,
)
_SHAPE: Final = "write KIND/NAME.spec.FIELD=VALUE, as in model/chat.spec.replicas=3"
_WORDS: Final = {kind.lower(): kind for kind in KINDS}


class Place(Struct):
    """A field of a manifest that exists."""

    manifest: Manifest
    path: str

    @property
    def address(self) -> str:
        kind = self.manifest.kind.lower()
        return kind if kind == "fleet" else f"{kind}/{self.manifest.metadata.name}"


def assignment(text: str) -> tuple[str, str]:
    """The place and the value's text. StalledError when there is no ``=``."""
    place, equals, value = text.partition("=")
    if not equals:
        raise StalledError(f"{text!r:.120} sets nothing: {_SHAPE}")
    return place, value


def place_of(text: str, manifests: Manifests) -> Place:
    """StalledError when nothing of that name is described."""
    found = _PLACE.match(text)
    kind = _WORDS.get(found["kind"].removesuffix("s")) if found else None
    if found is None or kind is None or (found["name"] is None) != (kind == "Fleet"):
        raise StalledError(f"{text!r:.120} names no field: {_SHAPE}, or fleet.spec.suspend=true")
    return Place(manifest=_described(kind, found["name"], manifests), path=found["path"])


def _described(kind: str, name: str | None, manifests: Manifests) -> Manifest:
    if kind == "Fleet":
        if manifests.fleet is None:
            raise StalledError(
                "no file describes the Fleet: write one with `apiVersion`, `kind: Fleet` and `metadata` first"
            )
        return manifests.fleet
    return named(kind, name or "", manifests)


def named(kind: str, name: str, manifests: Manifests) -> Manifest:
    """The manifest of a kind with that name. StalledError names the nearest."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for a slip of the keyboard

    of_kind: Sequence[Manifest] = {
        "Node": manifests.nodes,
        "Profile": manifests.profiles,
        "Model": manifests.models,
    }[kind]
    for manifest in of_kind:
        if manifest.metadata.name == name:
            return manifest
    names = [manifest.metadata.name for manifest in of_kind]
    near = get_close_matches(name, names, n=1)
    there = f"did you mean {near[0]}?" if near else f"there is: {', '.join(names) or 'none'}"
    raise StalledError(f"no {kind.lower()} is called {name}: {there}")


def meanings(text: str) -> tuple[Any, ...]:
    """What a value's text may stand for: what YAML takes it for, and the text itself. Which of them, the schema knows.
    Raises StalledError for what can't stand in a manifest."""
    if any(ord(sign) < 32 or ord(sign) == 127 for sign in text):
        raise StalledError(f"the value {text!r:.80} has control characters in it: write it in one line")
    documents, problems = yamltext.read("the value", f"value: {text}".encode())
    if problems or len(documents) != 1 or list(documents[0].data) != ["value"]:
        return (text,)
    value = documents[0].data["value"]
    return (value,) if value == text else (value, text)
