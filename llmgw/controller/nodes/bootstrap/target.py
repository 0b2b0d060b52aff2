"""What a bundle is made for: a machine's architecture, C library and Python, and the wheels that run there. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from llmgw.controller.nodes.bootstrap.machine import Inside

if TYPE_CHECKING:
    from packaging.tags import Tag

OLDEST_GLIBC: Final = 5
"""The minor version that manylinux begins with: no wheel asks for an older one."""
LEGACY: Final = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
USUAL_MUSL: Final = "1.2"
"""Taken where a musl does not tell its version: all distributions have had it since 2021."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """``libc`` is ``glibc`` or ``musl``. Without slots, for the computed tags to be kept."""

    arch: str
    libc: str
    libc_version: tuple[int, int]
    python: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.arch}-{self.libc}{'.'.join(map(str, self.libc_version))}-py{self.python[0]}{self.python[1]}"

    @cached_property
    def platforms(self) -> tuple[str, ...]:
        """Platform tags, best first."""
        return tuple(self._platforms())

    @cached_property
    def tags(self) -> "frozenset[Tag]":
        from packaging.tags import compatible_tags, cpython_tags  # noqa: PLC0415 - most commands bootstrap nothing, and packaging takes its time

        return frozenset(
            (
                *cpython_tags(self.python, platforms=self.platforms),
                *compatible_tags(self.python, platforms=self.platforms),
            )
        )

    def environment(self) -> dict[str, str]:
        """What requirements' markers are asked about."""
        version = f"{self.python[0]}.{self.python[1]}"
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{version}.0",
            "os_name": "posix",
            "platform_machine": self.arch,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{version}.0",
            "python_version": version,
            "sys_platform": "linux",
            "extra": "",
        }

    def runs(self, wheel_name: str) -> bool:
        """Whether a wheel of that file name runs there."""
        from packaging.utils import parse_wheel_filename  # noqa: PLC0415 - same

        return not self.tags.isdisjoint(parse_wheel_filename(wheel_name)[3])

    def _platforms(self) -> Iterator[str]:
        major, minor = self.libc_version
        if self.libc == "musl":
            for older in range(minor, -1, -1):
                yield f"musllinux_{major}_{older}_{self.arch}"
        else:
            for older in range(minor, OLDEST_GLIBC - 1, -1):
                yield f"manylinux_{major}_{older}_{self.arch}"
                if older in LEGACY:
                    yield f"{LEGACY[older]}_{self.arch}"
        yield f"linux_{self.arch}"


def target_of(inside: Inside) -> Target:
    """Of a machine that has been looked at. The Python's own word on its architecture counts: 32-bit ones run on 64-bit
    kernels."""
    name, _, version = inside.libc.partition("-")
    parts = [part for part in inside.python.soabi.split("-") if part]
    arch = parts[2] if len(parts) > 2 else inside.arch
    return Target(
        arch=arch,
        libc="musl" if name == "musl" else "glibc",
        libc_version=_two(version or (USUAL_MUSL if name == "musl" else f"2.{OLDEST_GLIBC}")),
        python=(inside.python.version[0], inside.python.version[1]),
    )


def _two(version: str) -> tuple[int, int]:
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (2, OLDEST_GLIBC)
