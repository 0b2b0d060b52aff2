"""What every value is made of: frozen, named by keyword, compared by content, camelCase where it is written.

A class lists its fields, and that is all:

    class Port(Struct):
        number: int
        name: str = "http"

    replace(Port(number=80), number=8080)

msgspec makes the classes, and reads and writes them in C (docs/adr/0016-values-are-structs.md). A dataclass stays right
for what changes in place, and where one field must never be printed.
"""

from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

import msgspec
from msgspec import NODEFAULT, field
from msgspec.structs import FieldInfo

if TYPE_CHECKING:
    from dataclasses import replace  # a type checker knows of it which fields a value has

    from typing_extensions import dataclass_transform
else:
    from msgspec.structs import replace

__all__ = ["Struct", "Time", "default_of", "field", "fields", "replace"]

Time: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
"""A moment, written as ISO 8601. One without a zone is refused where it is read."""

_WRITTEN = {"gpu_class": "class", "from_port": "from", "to_port": "to"}
"""Fields whose written name is a Python keyword or says more inside with another word."""


def _written(name: str) -> str:
    """``max_model_len`` -> ``maxModelLen``."""
    head, *tail = name.split("_")
    return _WRITTEN.get(name) or head + "".join(part.capitalize() for part in tail)


class _Kind(msgspec.StructMeta):
    """Gives each class what all have in common; ``class Port(Struct, kw_only=False)`` differs in one thing."""

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], **options: Any) -> "_Kind":
        common: dict[str, Any] = {"frozen": True, "kw_only": True, "rename": _written}
        return super().__new__(mcs, name, bases, body, **(common | options))


if TYPE_CHECKING:

    @dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
    class _Checked(msgspec.StructMeta): ...

    class Struct(metaclass=_Checked):
        """As a type checker sees it: msgspec's own class says that values may change and go by position."""

        __struct_fields__: ClassVar[tuple[str, ...]]
        __struct_encode_fields__: ClassVar[tuple[str, ...]]

else:

    class Struct(msgspec.Struct, metaclass=_Kind):
        """A value: see above."""


@cache
def fields(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    """Name, written name, type and default of each, in order."""
    return msgspec.structs.fields(kind)  # type: ignore[arg-type] # it is one, whatever a type checker is told above


def default_of(one: FieldInfo) -> Any:
    """What a field is where nothing is said; NODEFAULT where something must be."""
    return one.default if one.default_factory is NODEFAULT else one.default_factory()
