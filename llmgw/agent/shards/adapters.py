"""The LoRA adapters of one shard: brought to what its order says by the engine's own API, one at a time, and asked for again
after each start of the engine. Whatever becomes of one, the engine serves on: what fails is told and tried again."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from llmgw.agent.shards import checks, reports
from llmgw.agent.shards.readiness import wrong_with
from llmgw.agent.shards.surroundings import Surroundings
from llmgw.model.launch import (
    LATE_PATTERN,
    HttpProbe,
    LaunchSpec,
    LoraAdapter,
    LoraCalls,
    LoraListing,
    LoraOrder,
)
from llmgw.model.problems import LlmgwError
from llmgw.model.report import JobState, LoraReport, LoraState, ShardState
from llmgw.model.struct import Struct, replace
from llmgw.wire.codec import CodecError

log = logging.getLogger(__name__)

LOOK_EVERY = 60.0
"""Seconds between looks at what an engine lists once all is as it should be."""
FETCH_EVERY = 2.0
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""Seconds before what failed is tried again; doubled each time."""
FIRST_WITHIN = 30.0
"""Seconds that a shard's first ready waits for its adapters, so that a rollout does not go by without them."""


class _Entry(Struct):
    """An adapter that an engine lists; without a name or a path where it tells none."""

    name: str | None
    path: str | None


class Adapters:
    """``spec`` gives the order as it is now, ``tell`` is called when a report would say something else, ``mask`` takes secrets
    out of what engines answer."""

    def __init__(
        self,
        spec: Callable[[], LaunchSpec],
        around: Surroundings,
        *,
        tell: Callable[[], None],
        mask: Callable[[str], str],
    ) -> None:
        self._spec = spec
        self._around = around
        self._tell = tell
        self._mask = mask
        self._said: dict[str, tuple[LoraAdapter, LoraState, str]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._woken = asyncio.Event()
        self._serves = False

    def reports(self) -> tuple[LoraReport, ...]:
        """In the order in which they are loaded."""
        return tuple(self._report(adapter) for adapter in self._wanted())

    def serving(self, state: ShardState) -> None:
        """What the shard has become. What an engine had loaded is gone with it."""
        serves = state is ShardState.READY
        if not serves and self._serves:
            self._said.clear()
        self._serves = serves
        self._woken.set()

    def changed(self) -> None:
        """The order says something else: it is looked at at once."""
        self._woken.set()

    async def first(self) -> None:
        """Before the shard is ready for the first time; what can't be loaded in time is loaded later."""
        if self._order() is None:
            return
        within = min(FIRST_WITHIN, self._spec().timeouts.startup / 4)
        try:
            await asyncio.wait_for(self._round(), within)
        except asyncio.TimeoutError:
            log.info("shard %s: its adapters take longer than %g s", self._spec().shard, within)

    async def keep(self) -> None:
        """As long as the shard is watched."""
        pause = FIRST_PAUSE
        while True:
            wait = LOOK_EVERY
            self._woken.clear()
            if self._serves and self._order() is not None:
                await self._round()
                states = {self._state(adapter) for adapter in self._wanted()}
                if states <= {LoraState.ROUTABLE}:
                    pause = FIRST_PAUSE
                elif states <= {LoraState.ROUTABLE, LoraState.WAITING}:
                    wait = FETCH_EVERY
                else:
                    wait, pause = pause, min(2 * pause, LONGEST_PAUSE)
            await asyncio.wait({waking := asyncio.ensure_future(self._woken.wait())}, timeout=wait)
            waking.cancel()

    # ---- one round ---------------------------------------------------------------------------------------

    async def _round(self) -> None:
        """Unloads what is too much, loads what is missing, and believes only what the engine lists."""
        async with self._one_at_a_time:
            order = self._order()
            if order is None:
                return
            try:
                await self._bring(order, (await self._around.orders.secrets(self._spec().shard)).get("key"))
            except (LlmgwError, CodecError) as wrong:
                for adapter in order.adapters:
                    self._say(adapter, LoraState.WAITING, str(wrong))
            except Exception:
                # An adapter must never end the watch over an engine that serves.
                log.exception("shard %s: bringing its adapters", self._spec().shard)

    async def _bring(self, order: LoraOrder, key: str | None) -> None:
        listed = await self._listed(order.listing, key)
        if isinstance(listed, str):
            for adapter in order.adapters:
                if self._state(adapter) is not LoraState.ROUTABLE:
                    self._say(adapter, LoraState.WAITING, listed)
            return
        if order.calls is not None and await self._change(order, order.calls, listed, key):
            again = await self._listed(order.listing, key)
            listed = again if not isinstance(again, str) else listed
        for adapter in order.adapters:
            self._judge(order, adapter, listed)

    def _judge(self, order: LoraOrder, adapter: LoraAdapter, listed: tuple[_Entry, ...]) -> None:
        if _find(order.listing, adapter, self._path(adapter), listed) is not None:
            self._say(adapter, LoraState.ROUTABLE, "")
        elif order.calls is None:
            self._say(adapter, LoraState.FAILED, "its engine was started with it and does not list it")
        elif self._state(adapter) in (LoraState.LOADED, LoraState.ROUTABLE):
            self._say(adapter, LoraState.LOADED, f"its engine does not list it in {order.listing.probe.path}")

    async def _change(
        self, order: LoraOrder, calls: LoraCalls, listed: tuple[_Entry, ...], key: str | None
    ) -> bool:
        """Whether anything was loaded or unloaded."""
        changed = False
        wanted = {adapter.name: self._path(adapter) for adapter in order.adapters}
        there: set[str] = set()
        for entry in listed:
            if entry.name is None:
                continue
            path = wanted.get(entry.name)
            if entry.name in wanted and (path is None or entry.path in (None, path)):
                there.add(entry.name)
                continue
            changed = True
            await self._unload(calls, entry, key)
        for adapter in order.adapters:
            if adapter.name not in there and await self._load(order, calls, adapter, key):
                changed = True
        return changed

    async def _load(self, order: LoraOrder, calls: LoraCalls, adapter: LoraAdapter, key: str | None) -> bool:
        path = self._path(adapter)
        if path is None:
            self._say(adapter, *self._absent(adapter))
            return False
        if why := await checks.unusable_adapter(adapter, path, order.form, self._around.node):
            self._say(adapter, LoraState.FAILED, why)
            return False
        self._say(adapter, LoraState.LOADING, "")
        why = await self._ask(calls.load, {"name": adapter.name, "path": path}, calls, key)
        if why is None or (calls.already and calls.already in why):
            self._say(adapter, LoraState.LOADED, "")
            self._note(f"adapter {adapter.name} was loaded from {path}")
            return True
        self._say(adapter, LoraState.FAILED, why)
        return False

    async def _unload(self, calls: LoraCalls, entry: _Entry, key: str | None) -> None:
        why = await self._ask(calls.unload, {"name": entry.name or ""}, calls, key)
        self._note(
            f"adapter {entry.name} was unloaded" if why is None else f"unloading adapter {entry.name}: {why}"
        )

    async def _ask(
        self, call: HttpProbe, values: Mapping[str, str], calls: LoraCalls, key: str | None
    ) -> str | None:
        """Why it was refused, in the engine's words; None: it was not."""
        filled = replace(call, body=_filled(call.body or "", values))
        probes = self._spec().probes
        answer = await self._around.probe.ask(
            probes.host, probes.port or 0, filled, key=key, timeout=calls.timeout
        )
        why = wrong_with(filled, answer)
        return self._mask(why) if why is not None else None

    async def _listed(self, listing: LoraListing, key: str | None) -> tuple[_Entry, ...] | str:
        """What the engine lists, or why that is not known."""
        probes, timeouts = self._spec().probes, self._spec().timeouts
        answer = await self._around.probe.ask(
            probes.host, probes.port or 0, listing.probe, key=key, timeout=timeouts.health_request
        )
        if why := wrong_with(listing.probe, answer):
            return self._mask(why)
        entries = _entries(listing, answer.text)
        return entries if entries is not None else f"{listing.probe.path} answers no list of adapters"

    # ---- what is so --------------------------------------------------------------------------------------

    def _order(self) -> LoraOrder | None:
        """None where there is nothing to ask: of a rank that does not serve its leader's agent asks."""
        spec = self._spec()
        return spec.lora if spec.probes.port is not None else None

    def _wanted(self) -> tuple[LoraAdapter, ...]:
        lora = self._spec().lora
        return lora.adapters if lora is not None else ()

    def _path(self, adapter: LoraAdapter) -> str | None:
        return checks.adapter_path(adapter, self._around.jobs)

    def _absent(self, adapter: LoraAdapter) -> tuple[LoraState, str]:
        """How far the job is that brings it."""
        report = self._around.jobs.state(adapter.job) if adapter.job is not None else None
        if report is None:
            return LoraState.WAITING, "it is not on this node yet"
        if report.state in (JobState.FAILED.value, JobState.CANCELLED.value):
            return LoraState.FAILED, f"{report.job} {report.state}: {report.error or report.description}"
        return LoraState.WAITING, f"waits for {report.job}"

    def _state(self, adapter: LoraAdapter) -> LoraState:
        if self._order() is None:
            return LoraState.HELD
        said = self._said.get(adapter.name)
        return said[1] if said is not None and said[0] == adapter else LoraState.WAITING

    def _report(self, adapter: LoraAdapter) -> LoraReport:
        said = self._said.get(adapter.name)
        return LoraReport(
            name=adapter.name,
            digest=adapter.digest,
            rank=adapter.rank,
            state=self._state(adapter).value,
            reason=said[2] if said is not None and said[0] == adapter else "",
            send=adapter.send,
        )

    def _say(self, adapter: LoraAdapter, state: LoraState, reason: str) -> None:
        before = self._said.get(adapter.name)
        now = (adapter, state, reason)
        if before == now:
            return
        self._said[adapter.name] = now
        if state is LoraState.FAILED:
            self._note(f"adapter {adapter.name}: {reason}")
        self._tell()

    def _note(self, text: str) -> None:
        log.info("shard %s: %s", self._spec().shard, text)
        self._around.events(reports.adapter(self._spec(), text))


def _filled(body: str, values: Mapping[str, str]) -> str:
    """One pass, and each value as JSON text has it."""
    return LATE_PATTERN.sub(
        lambda found: (
            json.dumps(values[found[1]], ensure_ascii=False)[1:-1] if found[1] in values else found[0]
        ),
        body,
    )


def _find(
    listing: LoraListing, adapter: LoraAdapter, path: str | None, listed: tuple[_Entry, ...]
) -> _Entry | None:
    """By name where the engine tells names, else by its path."""
    if listing.name:
        return next((entry for entry in listed if entry.name == adapter.name), None)
    return next((entry for entry in listed if path is not None and entry.path == path), None)


def _entries(listing: LoraListing, text: str) -> tuple[_Entry, ...] | None:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if listing.at:
        found = found.get(listing.at) if isinstance(found, dict) else None
    if not isinstance(found, list):
        return None
    dicts = [entry for entry in found if isinstance(entry, dict)]
    return tuple(
        _Entry(name=_text(entry, listing.name), path=_text(entry, listing.place))
        for entry in dicts
        if not listing.parent or entry.get(listing.parent)
    )


def _text(entry: Mapping[str, Any], field: str) -> str | None:
    value = entry.get(field) if field else None
    return value if isinstance(value, str) else None
