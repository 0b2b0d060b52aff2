"""What engines say of their flags, as far as this agent has asked: of those at a path, and of those that were installed before
anybody asked. Read once, in the background and one at a time, and again only when the program is another file.
"""

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from llmgw.agent.jobs.helptext import Asker, filled_in
from llmgw.agent.jobs.programs import find_program
from llmgw.agent.seams import Disk, Rules
from llmgw.model.facts import EngineFact, Facts
from llmgw.model.launch import HelpSpec
from llmgw.model.problems import AgentError, StalledError
from llmgw.model.struct import Struct, replace
from llmgw.wire import codec
from llmgw.wire.messages import POLICY, Helped, HelpParams

FOLDER = "help"
KEPT = 64
"""Programs that are remembered: more than anybody puts on one node."""
TRY_AGAIN = 60.0
"""Seconds until a program that told no flags is asked again: it may have been slow because the machine was busy."""
GPUS_AGE = 3600.0
LOG = logging.getLogger("llmgw.agent")


class GpuFacts(Protocol):
    """Whether the node has GPUs decides which of several builds is asked."""

    async def facts(self, *, max_age: float) -> Facts: ...


class _Known(Struct):
    """``stamp`` says which ``file`` it was that was asked: bytes and when it changed."""

    file: str
    stamp: tuple[int, int]
    engine: EngineFact


class _Question(Struct):
    """``engine`` is what is known before the answer; ``path`` stands for ``${engine}``."""

    key: str
    path: str
    spec: HelpSpec
    argv: tuple[str, ...]
    engine: EngineFact


class Helps:
    """``installed`` tells the engines that jobs have installed."""

    def __init__(
        self,
        *,
        disk: Disk,
        asker: Asker,
        installed: Callable[[], Iterable[EngineFact]],
        facts: GpuFacts,
        rules: Rules,
    ) -> None:
        self._disk = disk
        self._asker = asker
        self._installed = installed
        self._facts = facts
        self._rules = rules
        self._known: dict[str, _Known] = {}
        self._failed: dict[str, float] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._one = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """What an earlier agent has read. What can't be understood is read again when somebody asks."""
        for name, data in (await self._disk.read_all(FOLDER)).items():
            if (known := _understood(data)) is not None:
                self._known[name.partition(".")[0]] = known

    async def close(self) -> None:
        tasks = [*self._reading.values(), *([self._looking] if self._looking is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def ask(self, params: HelpParams) -> Helped:
        """At once: what is known, or that it is being read now. Only devices are asked for and waited for. Raises AgentError
        where the machine's own people don't let the engine run, StalledError when the question makes no sense."""
        engine = next((one for one in self._installed() if one.digest == params.digest), None)
        if params.digest is not None and engine is None:
            missing = "it is not installed on this node"
            told = EngineFact(name=params.name, version="", digest=params.digest, path="")
            return Helped(engine=replace(told, flags_problem=missing))
        if engine is not None and engine.flags is not None and not params.devices:
            return Helped(engine=engine)
        question = _question(params, engine)
        self._allow(question)
        await self._forget_changed([question.key])
        known = self._known.get(question.key)
        if known is None or self._rested(question.key, known):
            self._read(question)
            return Helped()
        if not (params.devices and question.spec.devices) or known.engine.flags is None:
            return Helped(engine=known.engine)
        words = (known.file, *question.spec.devices)
        return Helped(engine=known.engine, devices=await self._asker.devices(question.spec, words))

    def facts(self, engines: Iterable[EngineFact]) -> tuple[EngineFact, ...]:
        """Those that are installed, with flags where only this agent knows them, and those at paths. Whether their files are
        still the same is looked at meanwhile, for the next time: a dead disk holds up no report."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._forget_changed(list(self._known)))
        known = [self._known[key].engine for key in sorted(self._known)]
        later = {engine.digest: engine for engine in known if engine.digest}
        told = (later.get(engine.digest, engine) if engine.flags is None else engine for engine in engines)
        return (*told, *(engine for engine in known if not engine.digest))

    # ---- inside ----------------------------------------------------------------------------------

    def _allow(self, question: _Question) -> None:
        """By the machine's own rules, as if it were to be started."""
        policy = self._rules.facts()
        if policy is None:
            return
        engine = question.engine
        if engine.digest:
            refusal = policy.obstacle or policy.refuses_engine(engine.name, None)
        else:
            program = os.path.realpath(question.argv[0])
            refusal = (
                policy.obstacle
                or policy.refuses_engine(None, os.path.realpath(question.path))
                or policy.refuses_program(program)
            )
        if refusal:
            raise AgentError(f"asking {engine.name} for its help: {refusal}", code=POLICY)

    async def _forget_changed(self, keys: list[str]) -> None:
        """What was said by files that are others now."""
        asked = {key: self._known[key] for key in keys if key in self._known}
        files = {key: Path(known.file) for key, known in asked.items()}
        stamps = await asyncio.to_thread(lambda: {key: _stamp(file) for key, file in files.items()})
        for key, known in asked.items():
            if stamps[key] != known.stamp and self._known.get(key) is known:
                del self._known[key]

    def _rested(self, key: str, known: _Known) -> bool:
        """Whether one that told no flags may be asked again."""
        since = asyncio.get_running_loop().time() - self._failed.get(key, float("-inf"))
        return known.engine.flags is None and since > TRY_AGAIN

    def _read(self, question: _Question) -> None:
        if question.key not in self._reading:
            self._reading[question.key] = asyncio.ensure_future(self._reads(question))

    async def _reads(self, question: _Question) -> None:
        try:
            async with self._one:
                known = await self._look(question)
            if known.engine.flags is None:
                self._failed[question.key] = asyncio.get_running_loop().time()
            await self._keep(question.key, known)
        except StalledError as wrong:
            LOG.warning("keeping what %s says of its flags: %s", question.engine.name, wrong)
        finally:
            del self._reading[question.key]

    async def _keep(self, key: str, known: _Known) -> None:
        self._known.pop(key, None)
        self._known[key] = known
        await self._disk.write(f"{FOLDER}/{key}.json", codec.dumps(known))
        while len(self._known) > KEPT:
            oldest = next(iter(self._known))
            del self._known[oldest]
            await self._disk.remove(f"{FOLDER}/{oldest}.json")

    async def _look(self, question: _Question) -> _Known:
        started, spec = Path(question.argv[0]), question.spec
        gpus = bool((await self._facts.facts(max_age=GPUS_AGE)).gpus)
        program = await asyncio.to_thread(
            find_program, started, below=Path(question.path), name=spec.finds, gpus=gpus
        )
        if program is None:
            where = f", and there is no {spec.finds} below {question.path}" if spec.finds else ""
            told = replace(question.engine, flags_problem=f"{started} is no program on this node{where}")
            return _Known(file=str(started), stamp=await asyncio.to_thread(_stamp, started), engine=told)
        stamp = await asyncio.to_thread(_stamp, program)
        heard = await self._asker.help(spec, (str(program), *question.argv[1:]))
        told = replace(
            question.engine,
            flags=heard.flags,
            flags_problem=heard.problem,
            program=str(program) if program != started else "",
        )
        return _Known(file=str(program), stamp=stamp, engine=told)


def _question(params: HelpParams, engine: EngineFact | None) -> _Question:
    path = engine.path if engine is not None else params.path or ""
    if not path.startswith("/"):
        raise StalledError(f"asking {params.name} for its help: {path!r:.200} is no whole path on this node")
    asked = json.dumps([params.name, params.digest, path, codec.to_json(params.spec)], sort_keys=True)
    return _Question(
        key=hashlib.sha256(asked.encode()).hexdigest()[:16],
        path=path,
        spec=params.spec,
        argv=filled_in(params.spec.argv, path),
        engine=engine or EngineFact(name=params.name, version="", digest="", path=path),
    )


def _understood(data: bytes) -> _Known | None:
    try:
        return codec.loads(_Known, data, strict=False)
    except codec.CodecError:
        LOG.warning("what an earlier agent kept of an engine's help can't be read: it is asked again")
        return None


def _stamp(file: Path) -> tuple[int, int]:
    """Nothing there is a stamp too."""
    try:
        seen = file.stat()
    except OSError:
        return (0, 0)
    return (seen.st_size, seen.st_mtime_ns)
