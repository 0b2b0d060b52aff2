"""The only place of the command line that reads the environment: what a command needs of it is passed on."""

import os
from collections.abc import Mapping
from types import MappingProxyType


def environment() -> Mapping[str, str]:
    return MappingProxyType(dict(os.environ))  # noqa: TID251 - this is the one place


def debugging() -> bool:
    """Whether a traceback is wanted with an error: ``LLMGW_DEBUG=1``."""
    return environment().get("LLMGW_DEBUG", "") not in ("", "0")
