"""Classes of GPUs: what people call one, and what it really has. Sticky: a driver that counts some MiB differently after an
upgrade or a reboot must not move a GPU out of the class that profiles ask for, so they are kept on disk."""

import logging
import re
from collections.abc import Mapping

from llmgw.agent.seams import Disk
from llmgw.model.problems import LlmgwError
from llmgw.model.struct import Struct, field
from llmgw.wire import codec

GIB = 1024**3
FOLDER, FILE = "state", "gpu-classes.json"
MAX_KNOWN = 1024
"""MIG instances get new UUIDs whenever they are made: the longest unseen are forgotten."""
LOG = logging.getLogger("llmgw.agent")

_NOISE = re.compile(r"^(nvidia|tesla|geforce|quadro|generation|graphics|\d+gb|hbm\d*e?|sxm\d*|pcie|nvl)$")


def gpu_class(name: str, total: int) -> str:
    """``NVIDIA H100 80GB HBM3`` with 79.6 GiB -> ``h100-80g``: what people call it, and what it really has."""
    words = re.split(r"[^a-z0-9.]+", name.lower())
    kept = [word for word in words if word and not _NOISE.match(word)]
    return f"{'-'.join(kept) or 'gpu'}-{round(total / GIB)}g"


class GpuClass(Struct):
    """``total``: bytes that the GPU had when it was given its class."""

    name: str
    total: int


class StoredClasses(Struct):
    """By UUID, the one seen longest ago first."""

    gpus: Mapping[str, GpuClass] = field(default_factory=dict)


class Classes:
    """Without a ``disk`` they last as long as the agent."""

    def __init__(self, disk: Disk | None = None) -> None:
        self._disk = disk
        self._known: dict[str, GpuClass] = {}
        self._kept: Mapping[str, GpuClass] | None = None  # as they stand on disk; None: not read yet

    def of(self, uuid: str, name: str, total: int) -> str:
        """The class that it was given before, unless its memory has moved by more than 1 GiB."""
        known = self._known.get(uuid)
        if known is None or (abs(known.total - total) > GIB and total):
            known = GpuClass(name=gpu_class(name, total), total=total)
            if not total:
                return known.name  # not told now: nothing to hold on to
        self._known.pop(uuid, None)
        self._known[uuid] = known  # to the end: seen last
        return known.name

    async def load(self) -> None:
        """Once. What can't be read is made anew: the worst is a class that a driver has moved."""
        if self._disk is None or self._kept is not None:
            return
        self._kept = {}
        try:
            data = (await self._disk.read_all(FOLDER)).get(FILE, b"{}")
            self._kept = dict(codec.loads(StoredClasses, data, strict=False).gpus)
        except (LlmgwError, codec.CodecError) as wrong:
            LOG.warning("reading the classes of GPUs: %s: they are made anew", wrong)
        self._known = {**self._kept, **self._known}

    async def keep(self) -> None:
        """Writes them where they have changed. A full disk is no reason to tell no GPUs."""
        if self._disk is None or self._known == self._kept:
            return
        self._known = dict(list(self._known.items())[-MAX_KNOWN:])
        try:
            await self._disk.write(f"{FOLDER}/{FILE}", codec.dumps_readable(StoredClasses(gpus=self._known)))
        except LlmgwError as wrong:
            LOG.warning("keeping the classes of GPUs: %s", wrong)
        else:
            self._kept = dict(self._known)
