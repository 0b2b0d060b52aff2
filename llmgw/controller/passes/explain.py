"""From a name, or a process on a node, to the line of Git that asks for it: reads the record, its history, the manifests' commits
and what the agents report. Changes nothing."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from llmgw.controller.opening import Opened
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.observe import observe
from llmgw.controller.passes.prepare import Applied, applied
from llmgw.controller.repo.blame import Wrote, last_change
from llmgw.controller.repo.records import HistoryEntry
from llmgw.controller.source import manifests_of
from llmgw.core.amounts import at, names, plural
from llmgw.core.show.why import Answer, Asked, Did, Why
from llmgw.model.addresses import is_called
from llmgw.model.ids import Commit, ReplicaId, ShardId, parse_replica_id, parse_shard_id
from llmgw.model.manifest import Manifests
from llmgw.model.problems import LlmgwError, StalledError, Where
from llmgw.model.record import ModelRecord, ReplicaRecord
from llmgw.model.report import Observed, ShardReport
from llmgw.model.struct import Struct
from llmgw.wire.messages import Whose, WhoseParams

SEARCHED: Final = 2000
"""Commits of the state branch that are looked through."""
TOLD: Final = 12
"""Of what touched one replica: the newest."""
ASK_TIMEOUT: Final = 20.0
_ON_NODE: Final = re.compile(
    r"^(?P<node>[a-z0-9][a-z0-9.-]*):(?:(?P<pid>\d{1,10})|(?P<gpu>(?:GPU|MIG)-\S{1,80}))$"
)
_SEPARATOR: Final = re.compile(rb"^---(\s|$)")


class Explainer(Struct, kw_only=False):
    """Over one open fleet."""

    opened: Opened
    links: Links

    async def explain(self, name: str) -> Answer:
        """StalledError when nothing is called so."""
        known = await applied(self.opened.fleet)
        self.links.fleet = known.record.fleet if known.stored.record else None
        observed = await observe(
            known.desired.nodes, known.stored.record, self.links, clock=self.opened.fleet.clock
        )
        history = await self.opened.store.history(limit=SEARCHED)
        looking = _Looking(self.opened, known, observed, history)
        if found := _ON_NODE.match(name):
            return await self._on_node(looking, found["node"], found["pid"], found["gpu"])
        return Answer(why=await looking.named(name))

    async def _on_node(self, looking: "_Looking", node: str, pid: str | None, gpu: str | None) -> Answer:
        if node not in looking.known.desired.nodes:
            there = ", ".join(sorted(looking.known.desired.nodes)) or "none"
            raise StalledError(f"no node is called {node}: there is: {there}")
        if pid is None:
            return await looking.on_gpu(node, gpu or "")
        link = await self.links.to(looking.known.desired.nodes[node])
        whose = await link.request("whose", WhoseParams(pid=int(pid)), Whose, timeout=ASK_TIMEOUT)
        process = f"{node}: {whose.process}"
        if whose.shard is None:
            return Answer(process=f"{process} belongs to no replica of this fleet")
        return Answer(
            process=f"{process} belongs to {whose.shard}", why=(await looking.replica_of_shard(whose.shard),)
        )


class _Looking:
    """What was read once, for all that is asked of it."""

    def __init__(
        self, opened: Opened, known: Applied, observed: Observed, history: Sequence[HistoryEntry]
    ) -> None:
        self.known = known
        self._opened = opened
        self._observed = observed
        self._history = history
        self._manifests: dict[Commit, Manifests | None] = {}

    async def named(self, name: str) -> tuple[Why, ...]:
        record = self.known.record
        bare = re.sub(r"^(models?|nodes?)/", "", name)
        if (name.startswith("node") and bare != name) or (
            bare in self.known.desired.nodes and bare not in record.models
        ):
            return (await self._node(bare),)
        if parse_shard_id(ShardId(name)) is not None:
            return (await self.replica_of_shard(ShardId(name)),)
        model, _, ordinal = bare.partition("/")
        chosen = [
            each for each in record.replicas.values() if is_called(name, model=each.model, replica=each.id)
        ]
        if not chosen and model not in record.models and model not in self.known.desired.models:
            models = ", ".join(sorted({*record.models, *self.known.desired.models})) or "none yet"
            raise StalledError(
                f"nothing is called {name}: name a model ({models}), a replica or shard of `llmgw status`, node/NAME, or a process as"
                " NODE:PID"
            )
        if ordinal and not chosen:
            self._refuse_absent(model, ordinal)
        one = chosen and (ordinal or bare in record.replicas)
        about = [] if one else [await self._model(model)]
        return (*about, *[await self._replica(each) for each in chosen])

    def _refuse_absent(self, model: str, ordinal: str) -> None:
        """One that is asked for and has no place yet is explained by its model."""
        desired = self.known.desired.models.get(model)
        wanted = desired.spec.replicas if desired is not None else 0
        if ordinal.isdecimal() and int(ordinal) < wanted:
            return
        there = sorted(each.id for each in self.known.record.replicas.values() if each.model == model)
        raise StalledError(
            f"model {model} has no replica {ordinal}: {plural(wanted, 'replica')} asked for, counted from 0, and placed are "
            f"{names(there) or 'none'}: `llmgw why model/{model}` tells of all of it"
        )

    async def on_gpu(self, node: str, uuid: str) -> Answer:
        seen = self._observed.nodes[node]
        report = seen.report
        if report is None:
            raise StalledError(f"node {node} can't be asked: {seen.error or 'it does not answer'}")
        gpu = next((one for one in report.facts.gpus if one.uuid.startswith(uuid)), None)
        if gpu is None:
            raise StalledError(f"node {node} has no GPU {uuid}: `llmgw node show {node}` lists them")
        shards = [one for one in report.shards if any(claim.uuid == gpu.uuid for claim in one.claims.gpus)]
        strangers = [
            f"pid {one.pid} ({one.command}, user {one.user})" for one in gpu.processes if one.shard is None
        ]
        told = (
            f"{node}: {gpu.uuid} is {'held by ' + names(one.shard for one in shards) if shards else 'free'}"
        )
        if strangers:
            told += f"; not of this fleet: {', '.join(strangers)}"
        return Answer(process=told, why=tuple([await self.replica_of_shard(one.shard) for one in shards]))

    async def replica_of_shard(self, shard: ShardId) -> Why:
        parsed = parse_shard_id(shard)
        replica = parsed[0] if parsed is not None else ReplicaId(shard)
        record = self.known.record
        if replica in record.replicas:
            return await self._replica(record.replicas[replica])
        if replica in record.forgotten:
            kept = record.forgotten[replica]
            note = f"nobody manages it since {at(kept.at)}: {kept.by} forgot it{f': {kept.why}' if kept.why else ''}"
            return await self._replica(kept.replica, note)
        said = next((one for _, one in self._shards() if one.shard == shard), None)
        what = (
            f"a shard that the record does not know ({said.state})"
            if said
            else "nothing that the record knows"
        )
        return Why(name=replica, what=what, history=self._touching({replica}))

    # ---- one of each ---------------------------------------------------------------------------------------

    async def _replica(self, replica: ReplicaRecord, *notes: str) -> Why:
        address = f"model/{replica.model}/{replica.ordinal}"
        where = names(dict.fromkeys(rank.node for rank in replica.ranks))
        reports = [one for _, one in self._shards() if one.replica == replica.id]
        leader = next((one for one in reports if one.rank == 0), None)
        doing = leader.state if leader is not None else replica.phase.value
        asked = await self._asked(replica.origin.commit, replica.spec.profile_name, replica.origin.where)
        now = await self._now(replica)
        same = (
            now is not None
            and (now.commit, now.line) == (asked.commit, asked.line)
            and now.where == asked.where
        )
        return Why(
            name=address,
            what=f"{replica.id}, {doing} on {where}",
            asked=asked,
            now=None if same else now,
            placed=replica.reasons,
            serial=replica.origin.serial,
            attempts=leader.attempts if leader is not None else 0,
            ended=_ended(replica, reports),
            notes=(*notes, *self._notes(replica)),
            history=self._touching({replica.id, address, *_first_address(replica)}),
        )

    async def _now(self, replica: ReplicaRecord) -> Asked | None:
        model = self.known.desired.models.get(replica.model)
        commit = self.known.record.commit
        if model is None or commit is None:
            return None
        return await self._asked(commit, model.profile_name, model.where)

    def _notes(self, replica: ReplicaRecord) -> Iterable[str]:
        if replica.replaced_by:
            yield f"a new copy was asked for by {replica.replaced_by}, though nothing had changed"
        if replica.model not in self.known.desired.models:
            yield f"Git does not ask for {replica.model} any more"
        model = self.known.record.models.get(replica.model)
        if model is not None:
            yield from _model_notes(model)

    async def _model(self, name: str) -> Why:
        model = self.known.desired.models.get(name)
        recorded = self.known.record.models.get(name)
        commit = self.known.desired.commit
        asked = None
        if model is not None and commit is not None:
            asked = await self._asked(commit, model.profile_name, model.where)
        wanted = f"{model.spec.replicas} asked for" if model is not None else "not in Git any more"
        placed = sum(each.model == name for each in self.known.record.replicas.values())
        return Why(
            name=f"model/{name}",
            what=f"{wanted}, {placed} placed",
            asked=asked,
            notes=tuple(_model_notes(recorded)) if recorded is not None else (),
            history=self._touching({f"model/{name}"}),
        )

    async def _node(self, name: str) -> Why:
        node = self.known.desired.nodes.get(name)
        if node is None:
            there = ", ".join(sorted(self.known.desired.nodes)) or "none"
            raise StalledError(f"no node is called {name}: there is: {there}")
        commit = self.known.desired.commit
        asked = await self._asked(commit, "", node.where) if commit is not None else None
        seen = self._observed.nodes.get(name)
        held = [
            each.id for each in self.known.record.holding if any(rank.node == name for rank in each.ranks)
        ]
        what = f"at {node.address}" + (f", {seen.error}" if seen is not None and seen.error else "")
        return Why(
            name=f"node/{name}",
            what=what,
            asked=asked,
            notes=(f"holds {names(held)}",) if held else ("holds nothing of this fleet",),
            history=self._touching({f"node/{name}", f" {name}:"}),
        )

    # ---- Git -----------------------------------------------------------------------------------------------

    async def _asked(self, commit: Commit, profile: str, where: Where) -> Asked:
        """Of the document at ``where`` and the profile beside it the newest change."""
        found = await self._last_change(commit, where)
        place = ""
        by = await self._profile(commit, profile) if profile else None
        if by is not None:
            other = await self._last_change(commit, by)
            if other is not None and (found is None or other.at > found.at):
                found, place = other, f"{by.file}:{other.line}"
        if found is None:
            return Asked(where=str(where), at_commit=commit)
        return Asked(
            where=str(where),
            at_commit=commit,
            commit=found.commit,
            line=place or f"{where.file}:{found.line}",
            author=found.author,
            at=at(found.at),
            subject=found.subject,
        )

    async def _profile(self, commit: Commit, name: str) -> Where | None:
        manifests = await self._read(commit)
        listed = manifests.profiles if manifests is not None else ()
        return next((one.where for one in listed if one.metadata.name == name), None)

    async def _read(self, commit: Commit) -> Manifests | None:
        if commit not in self._manifests:
            try:
                self._manifests[commit] = await manifests_of(self._opened.mirror, commit)
            except LlmgwError:  # its history was rewritten and nobody kept it
                self._manifests[commit] = None
        return self._manifests[commit]

    async def _last_change(self, commit: Commit, where: Where) -> Wrote | None:
        try:
            files = await self._opened.mirror.files(commit, {"": where.file})
        except LlmgwError:
            return None
        end = _end(files.get("", b""), where.line or 1)
        return await last_change(self._opened.mirror.objects, commit, where, end)

    # ---- the record's history ------------------------------------------------------------------------------

    def _touching(self, words: set[str]) -> tuple[Did, ...]:
        found: list[Did] = []
        for entry in self._history:
            if any(_mentions(entry, word) for word in words):
                found.append(_did(entry, words))
            if len(found) == TOLD:
                break
        return tuple(found)

    def _shards(self) -> Iterable[tuple[str, ShardReport]]:
        for node in self._observed.nodes.values():
            for shard in node.report.shards if node.report is not None else ():
                yield node.node, shard


def _first_address(replica: ReplicaRecord) -> Iterable[str]:
    """What a replica of a model that was renamed was called before."""
    parsed = parse_replica_id(replica.id)
    return () if parsed is None else (f"model/{parsed.prefix}/{replica.ordinal}",)


def _end(data: bytes, start: int) -> int:
    """The last line of the document that begins before or at ``start``."""
    lines = data.splitlines()
    for number, line in enumerate(lines[start:], start + 1):
        if _SEPARATOR.match(line):
            return number - 1
    return max(len(lines), start)


def _model_notes(model: ModelRecord) -> Iterable[str]:
    if model.held is not None:
        author = f" of {model.held.author}" if model.held.author else ""
        yield f"held since {at(model.held.at)}: commit {model.held.commit[:10]}{author} failed: {model.held.reason}"
    for ordinal, tried in sorted(model.attempts.items()):
        yield f"replica {ordinal} failed {plural(tried.count, 'time')} in a row: {tried.error}"
    for ordinal, gone in sorted(model.evicted.items()):
        yield f"replica {ordinal} made room for {gone.made_room_for} (serial {gone.serial}, commit {gone.commit[:10]})"


def _ended(replica: ReplicaRecord, reports: Sequence[ShardReport]) -> tuple[str, ...]:
    last = next((one.last_exit for one in reports if one.last_exit is not None), replica.last_exit)
    error = next((one.last_error for one in reports if one.last_error), "")
    if last is None:
        return (error,) if error else ()
    how = last.detail or (f"signal {last.signal}" if last.signal is not None else f"code {last.code}")
    wrote = last.traceback.splitlines() or list(last.last_lines)
    return (f"{at(last.at)}: {how}", *([error] if error else []), *(f"| {line}" for line in wrote[-20:]))


def _mentions(entry: HistoryEntry, word: str) -> bool:
    return re.search(rf"{re.escape(word)}(?![\w.])", f"{entry.subject}\n{entry.body}") is not None


def _did(entry: HistoryEntry, words: set[str]) -> Did:
    """Of a commit's message the line that is about it, where one is."""
    trailers = {name.removeprefix("Llmgw-"): value for name, value in entry.trailers}
    lines = [
        line
        for line in entry.body.splitlines()
        if any(re.search(rf"{re.escape(word)}(?![\w.])", line) for word in words)
    ]
    return Did(
        serial=trailers.get("Serial", ""),
        at=entry.at,
        what=(lines[0] if lines else entry.subject).removeprefix("- "),
        actor=trailers.get("Actor", ""),
        trigger=trailers.get("Trigger", ""),
        commit=trailers.get("Manifests", ""),
        signer=trailers.get("Signer", ""),
        outcome=trailers.get("Outcome", ""),
    )
