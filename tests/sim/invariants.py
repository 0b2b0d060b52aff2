"""What must never happen, looked at after every seam call, every command and every commit of the record.

What is so on the machines counts, not what agents or record say of it. A violation is told once, in words.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from llmgw.agent.fakes import Process
from llmgw.clock import Clock
from llmgw.controller.repo.records import entry_of
from llmgw.controller.secrets import replica_key
from llmgw.model.ids import Commit, ReplicaId, key_id, parse_replica_id, parse_shard_id
from llmgw.model.launch import LaunchSpec
from llmgw.model.plan import Action, Plan
from llmgw.model.record import Outcome, PassRecord, RankPlacement, Record, ReplicaPhase, ReplicaRecord
from llmgw.model.struct import replace
from llmgw.wire import codec
from tests.sim.commits import FleetWish, first_name
from tests.sim.node import key_of

if TYPE_CHECKING:
    from tests.sim.node import SimNode
    from tests.sim.store import Written
    from tests.sim.world import World


LEAVING = (ReplicaPhase.DRAINING, ReplicaPhase.STOPPING)
LOOKING = 30.0
"""Seconds that may lie between a pass's look at the nodes and its intent."""
OWNER = "state/owner.json"
NOTICED = 20.0
"""Seconds until an agent has seen that an engine answers again: two of its questions."""
UNNOTICED = 60.0
"""Seconds in which an agent may call an engine ready that has hung since: several questions, and a look at what it does."""
ENDING = 5.0
"""Seconds in which a pass that is told to end still sends what it is about to."""
GLANCE = 0.2
"""Seconds between looks at who serves; whoever serves for less is missed by nobody."""
WATCHED = 3
"""Passes that may still be at work at the same time."""


@dataclass(slots=True, kw_only=True)
class PassWatch:
    """What one serial's pass may take away: ``seen`` were serving at some moment since it began to look."""

    serial: int
    plan: Plan
    before: Record | None
    record: Record
    commit: Commit
    wish: FleetWish
    at: float  # of the loop's time
    clock: datetime  # what its machine's showed then
    known: set[str]  # what the record knew to serve: what nobody knew of yet is missed by nobody
    seen: dict[str, set[str]]
    taken: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


class Invariants:
    """Kept up to date by the world; see World."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._told: set[str] = set()
        self.clocks_differ = False  # of the machines that apply
        self.specs: dict[str, LaunchSpec] = {}  # every start command that came to an agent, by shard
        self.asked: set[str] = set()  # shards whose end somebody has asked for
        self.leaving: set[str] = set()  # shards whose agent has agreed to that
        self.recorded: set[str] = set()  # replicas that ever stood in the record
        self.passes: dict[int, PassWatch] = {}
        self._published: set[str] = set()  # replicas that the record ever knew to serve
        self._served: dict[tuple[str, str], float] = {}  # model and replica -> when it last served
        self._looked = -1.0
        self._since: dict[str, float] = {}  # replica -> since when it has served without a break
        self._silent: dict[str, float] = {}  # node -> when it was last out of its controllers' reach
        self._took_a_server: dict[str, bool] = {}  # command id -> whether its shard served when it came
        self._fences: dict[str, tuple[int, str]] = {}
        self._commanding = 0
        self._ordered: Counter[str] = Counter()  # shard -> start commands that came and were not refused
        self._sent: dict[str, float] = {}  # command id -> when its controller first began to send it
        self._late: set[str] = set()  # commands that were sent when their controller's lease was over
        self._intents: set[int] = set()
        self._alive_at_death: dict[str, dict[str, int]] = {}
        self._ending: set[Process] = set()  # that have been told to end

    def violate(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._world.violate(text)

    # ---- after every seam call -----------------------------------------------------------------------

    def step(self) -> None:
        if self._world.loop.elapsed - self._looked >= GLANCE:
            self._looked = self._world.loop.elapsed
            self._remember_serving()
            self._silent.update(
                {name: self._looked for name, node in self._world.nodes.items() if not node.in_reach()}
            )

    def began(self, node: "SimNode") -> None:
        """A process has begun: only then can a machine become too small."""
        living = node.machine.living()
        ports: dict[int, str] = {}
        gpus: dict[str, list[tuple[str, int | None]]] = defaultdict(list)
        memory = 0
        for process in living:
            shard = process.order.shard
            spec = self.specs.get(shard)
            if spec is None:
                self.violate(f"{node.name}: {shard} runs, and nobody ever asked for it")
                continue
            for port in process.ports:
                if port in ports:
                    self.violate(f"{node.name}: {ports[port]} and {shard} both want port {port}")
                ports[port] = shard
            for claim in spec.claims.gpus:
                gpus[claim.uuid].append((shard, claim.memory))
            memory += spec.claims.memory
        if memory > node.machine.memory:
            self.violate(f"{node.name}: engines that live claim {memory} bytes of {node.machine.memory}")
        totals = {gpu.uuid: gpu.memory_total for gpu in node.machine.gpus}
        for uuid, holders in gpus.items():
            if too_much := over(uuid, holders, totals):
                self.violate(f"{node.name}: engines that live: {too_much}")

    def written(self, node: "SimNode", path: str, data: bytes) -> None:
        """A file was written on a node: its fence only grows."""
        if path != OWNER:
            return
        fence = json.loads(data).get("fence")
        if fence is None:
            return
        now, before = (fence["serial"], fence["intent"]), self._fences.get(node.name)
        if before is not None and (now[0] < before[0] or (now[0] == before[0] and now[1] != before[1])):
            self.violate(f"{node.name}: its fence went from {before} to {now}")
        self._fences[node.name] = now

    # ---- who serves ----------------------------------------------------------------------------------

    def serving(self, *, unnoticed: float = 0.0) -> dict[str, set[str]]:
        """Replicas that answer users, whose agents know it, and that were not told to go; by model. Of a gang the leader
        answers, and only while every rank lives. With those that have hung for at most so many seconds ``unnoticed``."""
        now = self._world.loop.elapsed
        ranks: dict[str, set[int]] = defaultdict(set)
        found: dict[str, set[str]] = defaultdict(set)
        for node in self._world.nodes.values():
            ready = node.ready()
            for process in node.machine.living():
                shard = process.order.shard
                if shard in ready and shard not in self.leaving:
                    spec = self.specs[shard]
                    hangs = now - node.hangs.get(process, -unnoticed) < unnoticed
                    if spec.rank or hangs or node.machine.serves(process):
                        ranks[spec.replica].add(spec.rank)
                    if len(ranks[spec.replica]) == spec.ranks:
                        found[first_name(spec.model)].add(spec.replica)
        return found

    def _remember_serving(self) -> None:
        now = self._world.loop.elapsed
        watches = list(self.passes.values())[-WATCHED:]
        serving = self.serving(unnoticed=UNNOTICED)
        served = {replica for replicas in serving.values() for replica in replicas}
        self._since = {replica: self._since.get(replica, now) for replica in sorted(served)}
        for model, replicas in serving.items():
            for replica in replicas:
                self._served[model, replica] = now
            for watch in watches:
                watch.seen.setdefault(model, set()).update(replicas)

    def _served_lately(self) -> dict[str, set[str]]:
        """What a pass that has just made up its mind may have seen serving."""
        found: dict[str, set[str]] = defaultdict(set)
        for (model, replica), at in self._served.items():
            if self._world.loop.elapsed - at <= LOOKING:
                found[model].add(replica)
        return found

    # ---- commands ------------------------------------------------------------------------------------

    def sending(self, clock: Clock, method: str, params: Any) -> None:
        """A controller begins to send a command: it must hold its lease then, by its own clock. What is under way may come
        late."""
        record, command = self._world.store.record, params.command
        self._sent.setdefault(command.id, self._world.loop.elapsed)
        if record is None or record.last_pass is None:
            return
        taken_over = record.serial != command.fence.serial or record.last_pass.outcome is not None
        if self.clocks_differ and taken_over:
            return  # a lease is only worth what the clocks agree on: what is left is that agents refuse the older fence
        if taken_over or record.last_pass.lease_until <= clock.now():
            self._late.add(command.id)
            self.violate(f"{command.id} is sent by a controller whose lease is over")
        self._sent_in_time(command.id, method, self.passes.get(command.fence.serial))

    def _sent_in_time(self, command: str, method: str, watch: PassWatch | None) -> None:
        """Nothing is begun when the time for changes has ended, though the pass began before."""
        if (
            watch is None
            or method not in ("start", "drain", "stop")
            or self._frozen(watch, watch.plan.created)
        ):
            return
        for late in (0.0, ENDING):
            passed = timedelta(seconds=self._world.loop.elapsed - watch.at - late)
            if not self._frozen(watch, watch.clock + passed):
                return
        self.violate(f"{command} is sent though the time for changes has ended")

    def arrived(self, node: str, method: str, params: Mapping[str, Any]) -> None:
        """A command has come to an agent, which may still refuse it."""
        serial, command = params["command"]["fence"]["serial"], params["command"]["id"]
        plan = self._world.store.plans.get(serial)
        if plan is None:
            self.violate(f"{node} got {command}, and serial {serial} has no intent")
        elif not any(command == f"{serial}-{step.id}" for step in plan.steps):
            self.violate(f"{node} got {command}, and the plan of serial {serial} has no such step")
        if plan is not None and method == "start":
            spec = codec.from_json(LaunchSpec, params["spec"], strict=True)
            if not any(step.launch == spec for step in plan.steps):
                self.violate(
                    f"{node} got a start of {spec.shard} that the plan of serial {serial} does not hold"
                )
            known = self.specs.get(spec.shard)
            if known is not None and _without_name(known) != _without_name(spec):
                self.violate(
                    f"{spec.shard} is started again as something else: a placement number came twice"
                )
            self.specs.setdefault(spec.shard, spec)
            self._ordered[spec.shard] += 1
            self._nothing_new(spec, self.passes.get(serial))
        if method in ("stop", "drain"):
            self.asked.add(params["shard"])
            served = any(_replica_of(params["shard"]) in replicas for replicas in self.serving().values())
            self._took_a_server[command] = served

    def _nothing_new(self, spec: LaunchSpec, watch: PassWatch | None) -> None:
        """While changes are frozen only what had its place before comes back, by the commit that it was stopped for."""
        if watch is None or not self._frozen(watch, watch.plan.created):
            return
        name = parse_replica_id(spec.replica)
        same = watch.before is not None and watch.before.commit == watch.commit
        if name is None or name.n == 1 or not same:
            self.violate(f"{spec.shard} is started by serial {watch.serial}, and changes are frozen")

    def refused(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "start":
            self._ordered[params["spec"]["shard"]] -= 1

    def accepted(self, node: str, method: str, params: Mapping[str, Any]) -> None:
        """An agent has taken a command."""
        fence = params["command"]["fence"]
        serial = fence["serial"]
        if serial < self._commanding and params["command"]["id"] in self._late:
            self.violate(
                f"{node} took {params['command']['id']} after serial {self._commanding} had commanded: two at once"
            )
        self._commanding = max(self._commanding, serial)
        if method == "start":
            self.leaving.discard(params["spec"]["shard"])
            self.asked.discard(params["spec"]["shard"])
        elif method in ("stop", "drain"):
            served = self._took_a_server.get(params["command"]["id"], False)
            sent = self._sent.get(params["command"]["id"], self._world.loop.elapsed)
            self._taken_away(node, method, params["shard"], serial, served=served, sent=sent)

    def _taken_away(
        self, node: str, method: str, shard: str, serial: int, *, served: bool, sent: float
    ) -> None:
        replica = _replica_of(shard)
        if replica not in self.recorded:
            self.violate(f"{node}: {method} of {shard}, which the record never held")
        spec, watch = self.specs.get(shard), self.passes.get(serial)
        was_leaving = shard in self.leaving
        self.leaving.add(shard)
        if spec is None or watch is None:
            return
        model = first_name(spec.model)
        self._served.pop((model, spec.replica), None)
        if was_leaving or not served:
            return
        seen = watch.seen.get(model, set()) & watch.known
        if replica not in seen:
            return  # it did not serve anybody
        if self._frozen(watch, watch.plan.created):
            self.violate(f"{method} of {shard} by serial {serial}, which serves, and changes are frozen")
        self._without_reason(replica, watch)
        if method == "stop":
            # When the pass looked it was not ready yet; otherwise it would have been drained. What is under way for long
            # (a slow line, a machine that slept as it sent) was decided when it was sent.
            if sent - self._since.get(replica, sent) > LOOKING and not self._leader_is_silent(spec, sent):
                self.violate(f"{shard} is stopped by serial {serial} while it serves, and was never drained")
            return
        watch.taken[model].add(replica)
        left = len(seen - watch.taken[model])
        need, why = self._least(model, watch)
        if left < need and not self._makes_room(replica, watch):
            self.violate(
                f"{method} of {shard} by serial {serial} leaves {left} of {model} serving "
                f"({', '.join(sorted(seen - watch.taken[model])) or 'none'}), and {need} must be: {why}"
            )

    @staticmethod
    def _frozen(watch: PassWatch, when: datetime) -> bool:
        last = watch.record.last_pass
        return watch.wish.frozen(when) and not (last is not None and last.override)

    def _without_reason(self, replica: str, watch: PassWatch) -> None:
        """Whoever serves just as Git asks is only let go for a reason: renames are none, nor is what else a commit says."""
        recorded = watch.record.replicas.get(ReplicaId(replica))
        wish = watch.wish.model(recorded.model) if recorded is not None else None
        if recorded is None or wish is None:
            return
        desired = self._world.commits.asked_by(watch.commit, watch.record.key_id)
        asked = desired.models[watch.wish.called(wish.name)].runs_as(recorded.spec_digest)
        known = watch.record.models.get(recorded.model)
        copies = [it for it in watch.record.replicas.values() if _same_place(it, recorded)]
        wanted = recorded.ordinal < wish.replicas and not recorded.replaced_by and len(copies) == 1
        stays = all(self._may_stay(rank.node, watch) for rank in recorded.ranks)
        held = known is not None and known.held is not None
        if asked and wanted and stays and not held and not self._makes_room(replica, watch):
            self.violate(f"{replica} is taken away by serial {watch.serial}, and it serves as Git asks")

    def _may_stay(self, name: str, watch: PassWatch) -> bool:
        """On a node that Git names and does not empty, and that can be asked."""
        node = watch.wish.node(name)
        heard = self._world.loop.elapsed - self._silent.get(first_name(name), -LOOKING) >= LOOKING
        return node is not None and not node.drain and heard

    def _leader_is_silent(self, spec: LaunchSpec, sent: float) -> bool:
        """Only a gang's leader knows of requests: while it is out of reach its other ranks can't be drained."""
        leaders = [
            name
            for name, node in self._world.nodes.items()
            if f"{spec.replica}-r0" in self.engines(node) and spec.rank > 0
        ]
        return any(sent - self._silent.get(name, -LOOKING) < LOOKING for name in leaders)

    def _least(self, model: str, watch: PassWatch) -> tuple[int, str]:
        """How many replicas of a model the pass must leave serving."""
        wish = watch.wish.model(model)
        known = next((it for name, it in watch.record.models.items() if first_name(name) == model), None)
        protect = wish.protect if wish is not None else known is not None and known.protect
        if wish is None:
            return (1, "it is protected") if protect else (0, "it was removed")
        destroys = any(
            first_name(change.model or "") == model and change.action is Action.DESTROY_BEFORE_CREATE
            for change in watch.plan.changes
        )
        allowed = wish.max_unavailable if wish.max_unavailable != "auto" else int(destroys)
        # One that never served and is on its way out leaves nobody with less, and one that makes room is not to serve.
        placed = {
            it.ordinal
            for it in watch.record.replicas.values()
            if first_name(it.model) == model
            and it.ordinal < wish.replicas
            and it.origin.serial != watch.serial
            and (it.phase not in LEAVING or it.id in self._published)
            and not self._makes_room(it.id, watch)
        }
        need = max(len(placed) - allowed, 1 if protect else 0)
        return (
            need,
            f"{wish.replicas} asked for, {len(placed)} have a place, {allowed} may be away, protected: {protect}",
        )

    def _makes_room(self, replica: str, watch: PassWatch) -> bool:
        """Whether it goes for one of higher priority, by what people wrote and not by what the plan says of it."""
        change = next((it for it in watch.plan.changes if it.previous == replica and it.evicted_for), None)
        if change is None or change.model is None:
            return False
        goes, comes = watch.wish.model(change.model), watch.wish.model(change.evicted_for.split("/")[1])
        return goes is not None and comes is not None and goes.priority < comes.priority and not goes.protect

    def signalled(self, node: "SimNode", process: Process, number: int) -> None:
        """An engine that answers is only ended because somebody asked for it, or because it has only just come to itself; one
        that would answer soon, only when its time to start is over. What counts is how it is when its end begins: one that
        gets ready after its SIGTERM is not spared the SIGKILL."""
        shard, now = process.order.shard, self._world.loop.elapsed
        if process in self._ending or shard in self.asked:
            return
        self._ending.add(process)
        back = now - node.thawed.get(process, -NOTICED) < NOTICED
        if node.machine.serves(process) and not back:
            self.violate(f"{node.name}: signal {number} to {shard}, which serves and was not told to go")
        spec, age = self.specs.get(shard), now - process.born
        will = process.script.ready_after is not None and process not in node.thawed
        if spec is not None and will and age < min(spec.timeouts.startup, process.script.ready_after or 0):
            self.violate(
                f"{node.name}: signal {number} to {shard}, which has had {age:.1f} s of {spec.timeouts.startup:.0f} s to start"
            )

    # ---- the record ----------------------------------------------------------------------------------

    def wrote(self, written: "Written") -> None:
        record = written.record
        before = self._world.store.written[-2].record if len(self._world.store.written) > 1 else None
        self.recorded.update(record.replicas)
        self._published.update(_known_to_serve(record))
        self._record_within_the_machines(record)
        self._one_at_a_time(before, record, written)
        self._numbers_only_grow(before, record)
        self._endpoints_are_real(record)
        self._keys_fit(record)
        self._message_tells(before, record, written.message)
        changed = _changed(before, record)
        if codec.loads(Record, codec.dumps(changed), strict=True) != changed:
            self.violate(f"the record of serial {record.serial} does not survive being written and read")
        if written.plan is not None and record.serial not in self.passes:
            self._remember_serving()
            commit = written.plan.basis.commit
            assert commit is not None, "what is carried out is a commit's"
            self.passes[record.serial] = PassWatch(
                serial=record.serial,
                plan=written.plan,
                before=before,
                record=record,
                commit=commit,
                wish=self._world.commits.wish_of(commit),
                at=self._world.loop.elapsed,
                clock=self._clock_of(record.last_pass.holder if record.last_pass is not None else "").now(),
                known=(_known_to_serve(before) | _known_to_serve(record)) - _going(before),
                seen=self._served_lately(),
            )

    def _message_tells(self, before: Record | None, record: Record, message: str) -> None:
        """Who reads ``git log`` alone knows which pass of which commit it was, and how it ended."""
        told, last = dict(entry_of(Commit(""), message).trailers), record.last_pass
        if last is None:
            return
        expected = {"Llmgw-Serial": str(record.serial), "Llmgw-Manifests": last.commit}
        if last.outcome is not None and (before is None or before.last_pass != last):
            expected["Llmgw-Outcome"] = last.outcome.value
        for name, value in expected.items():
            if told.get(name) != value:
                self.violate(
                    f"the message of serial {record.serial} says {name}: {told.get(name)}, not {value}"
                )

    def _record_within_the_machines(self, record: Record) -> None:
        gpus: dict[str, list[tuple[str, int | None]]] = defaultdict(list)
        ports: dict[tuple[str, int], str] = {}
        memory: dict[str, int] = defaultdict(int)
        for replica, rank in self._recorded_ranks(record):
            memory[first_name(rank.node)] += rank.memory
            for claim in rank.gpus:
                gpus[claim.uuid].append((replica.id, claim.memory))
            for port in rank.ports:
                other = ports.setdefault((first_name(rank.node), port), replica.id)
                if other != replica.id:
                    self.violate(f"recorded: {other} and {replica.id} both hold port {port} of {rank.node}")
        totals = {
            gpu.uuid: gpu.memory_total for node in self._world.nodes.values() for gpu in node.machine.gpus
        }
        for uuid, holders in gpus.items():
            if too_much := over(uuid, holders, totals):
                self.violate(f"recorded: {too_much}")
        for name, held in memory.items():
            if held > self._world.nodes[name].machine.memory:
                self.violate(f"recorded: {held} bytes of memory on {name}")

    def _recorded_ranks(self, record: Record) -> Iterator[tuple[ReplicaRecord, RankPlacement]]:
        """Without those of gangs that have ended: a gang stays recorded until all its ranks are heard of, which may be never,
        and what was a rank of it once is never started again."""
        for replica in _held(record):
            for rank in replica.ranks:
                shard = f"{replica.id}-r{rank.rank}"
                machine = self._world.nodes[first_name(rank.node)]
                ends = shard in self.leaving or any(shard == begun for _, begun, _ in machine.machine.starts)
                gone = ends and shard not in self.engines(machine)
                if len(replica.ranks) == 1 or not gone:
                    yield replica, rank

    def _one_at_a_time(self, before: Record | None, record: Record, written: "Written") -> None:
        last, now = before.last_pass if before is not None else None, record.last_pass
        if written.plan is not None and now is not None and now.outcome is None:
            self._intents.add(record.serial)
        if before is not None and record.serial not in (before.serial, before.serial + 1):
            self.violate(f"serial {record.serial} follows {before.serial}")
        if now is not None and now.serial != record.serial:
            self.violate(f"the record of serial {record.serial} tells of a pass of serial {now.serial}")
        if before is None or last is None or now is None:
            return
        if record.serial == before.serial + 1 and last.outcome is None:
            self.violate(f"serial {record.serial} begins, and serial {last.serial} has no outcome")
        over = last.lease_until <= self._clock_of(now.holder).now()
        if last.outcome is None and now.holder != last.holder and not over:
            self.violate(f"{now.holder} writes while {last.holder} holds a lease until {last.lease_until}")
        settled = last.outcome is Outcome.ACCEPTED and now.outcome is Outcome.DONE
        told_before = record.serial == before.serial and last.outcome is not None
        if told_before and last.outcome != now.outcome and not settled:
            self.violate(f"the outcome of serial {record.serial} went from {last.outcome} to {now.outcome}")

    def _clock_of(self, holder: str) -> Clock:
        machine = self._world.controllers.machines.get(holder)
        return machine.clock if machine is not None else self._world.clock

    def _numbers_only_grow(self, before: Record | None, record: Record) -> None:
        for replica in record.replicas.values():
            old = before.replicas.get(replica.id) if before is not None else None
            if old is not None and _placed(old) != _placed(replica):
                self.violate(f"recorded: {replica.id} became another replica under the same name")
            name = parse_replica_id(replica.id)
            if name is None or not replica.spec_digest.startswith(name.digest8):
                self.violate(f"recorded: {replica.id} runs {replica.spec_digest[:8]}")
        earlier = before.models.values() if before is not None else ()
        by_name = {first_name(it.name): it for it in earlier}
        for model in record.models.values():
            known = by_name.get(first_name(model.name))
            if known is not None and known.removed and not model.removed:
                continue  # it comes back: that no number comes twice is seen where starts arrive
            for ordinal, n in known.placements.items() if known is not None else ():
                if model.placements.get(ordinal, 0) < n:
                    self.violate(f"recorded: placements of {model.name}/{ordinal} fell from {n}")

    def _endpoints_are_real(self, record: Record) -> None:
        for endpoint in record.endpoints:
            replica = record.replicas.get(endpoint.replica)
            if replica is None:
                self.violate(f"published: {endpoint.replica}, which the record does not hold")
            elif not _matches(replica, endpoint.address, endpoint.port):
                self.violate(f"published: {endpoint.replica} at {endpoint.address}:{endpoint.port}")
            elif replica.phase not in (ReplicaPhase.SERVING, ReplicaPhase.DRAINING):
                self.violate(f"published: {endpoint.replica}, which is {replica.phase.value}")

    def _keys_fit(self, record: Record) -> None:
        """Whoever makes the key of what is published gets an answer by it, from the secrets that are there."""
        secret = self._world.controllers.secret
        there = {key_id(each): each for each in (secret.make(), *secret.kept().values())}
        for endpoint in record.endpoints:
            leader = f"{endpoint.replica}-r0"
            for node in self._world.nodes.values():
                process = next((it for it in node.machine.living() if it.order.shard == leader), None)
                if process is None:
                    continue
                if endpoint.key_id not in there:
                    self.violate(f"published: {endpoint.replica}, and its secret {endpoint.key_id} is gone")
                elif replica_key(there[endpoint.key_id], endpoint.replica) != key_of(process):
                    self.violate(f"published: {endpoint.replica} with a key that it does not know")

    # ---- agents come and go --------------------------------------------------------------------------

    def engines(self, node: "SimNode") -> dict[str, int]:
        return {process.order.shard: process.pid for process in node.machine.living()}

    def agent_died(self, node: "SimNode") -> None:
        """Called at the moment of its death."""
        self._alive_at_death[node.name] = self.engines(node)

    def ended(self, node: "SimNode", shard: str) -> None:
        """An engine has ended, of itself or by what was sent to it before."""
        self._alive_at_death.get(node.name, {}).pop(shard, None)

    def agent_is_back(self, node: "SimNode") -> None:
        """It answers: what lived when the last one died lives on under the same pid."""
        now = self.engines(node)
        for shard in sorted(now.keys() - node.claimed()):
            self.violate(f"{node.name}: {shard} lives, and the agent that answers does not know it")
        for shard, pid in self._alive_at_death.pop(node.name, {}).items():
            if now.get(shard) != pid:
                self.violate(
                    f"{node.name}: {shard} was pid {pid} when the agent died and is {now.get(shard)}"
                )

    def wiped(self, node: "SimNode") -> None:
        """Its disk is empty: its next agent is the first."""
        self._fences.pop(node.name, None)
        self._alive_at_death.pop(node.name, None)

    # ---- the end -------------------------------------------------------------------------------------

    def at_the_end(self) -> None:
        """When everything has settled."""
        last: dict[int, PassRecord] = {}
        for written in self._world.store.written:
            if written.record.last_pass is not None:
                last[written.record.serial] = written.record.last_pass
        for serial, passed in last.items():
            if passed.outcome is None:
                self.violate(f"serial {serial} has no outcome")
        for serial in set(self._commands()) - self._intents:
            self.violate(f"serial {serial} commanded without an intent")
        record = self._world.store.record
        if record is not None:
            self._what_runs_is_recorded(record)
        self._gangs_were_only_started_when_told()

    def empty(self, names: Iterable[str], when: str) -> None:
        """Nothing of ours but what somebody keeps by hand is left on nodes that were drained or left Git."""
        record = self._world.store.record
        kept = record.forgotten.keys() if record is not None else frozenset()
        for name in names:
            for shard in self.engines(self._world.nodes[name]):
                if _replica_of(shard) not in kept:
                    self.violate(f"{when}: {shard} runs on {name}, which is to be empty")

    def _gangs_were_only_started_when_told(self) -> None:
        for node in self._world.nodes.values():
            begun = Counter(shard for _, shard, _ in node.machine.starts)
            for shard, times in begun.items():
                spec = self.specs.get(shard)
                if spec is not None and spec.ranks > 1 and times > self._ordered[shard]:
                    self.violate(
                        f"{node.name}: {shard} of a gang was started {times} times, told {self._ordered[shard]}"
                    )

    def _commands(self) -> Iterable[int]:
        return self.passes

    def _what_runs_is_recorded(self, record: Record) -> None:
        wanted: dict[str, str] = {}
        for replica in _held(record):
            for rank in replica.ranks:
                wanted[f"{replica.id}-r{rank.rank}"] = rank.node
        for node in self._world.nodes.values():
            for shard in self.engines(node):
                if first_name(wanted.get(shard, "")) != node.name:
                    self.violate(f"settled: {shard} runs on {node.name}, and the record does not know")


def _held(record: Record) -> Iterable[ReplicaRecord]:
    """What is managed, and what somebody took out of management and still runs."""
    return (*record.replicas.values(), *(each.replica for each in record.forgotten.values()))


def _without_name(spec: LaunchSpec) -> LaunchSpec:
    """The same whatever its model is called by now."""
    return replace(spec, model=first_name(spec.model))


def _same_place(one: ReplicaRecord, other: ReplicaRecord) -> bool:
    return (one.model, one.ordinal) == (other.model, other.ordinal)


def _placed(replica: ReplicaRecord) -> tuple[object, ...]:
    """What a replica is, whatever its node and its model are called by now."""
    ranks = tuple(replace(rank, node=first_name(rank.node)) for rank in replica.ranks)
    return first_name(replica.model), replica.ordinal, ranks, replica.spec_digest


def _changed(before: Record | None, record: Record) -> Record:
    """The record without most of what the one before says as well, which was looked at then: records are large."""
    if before is None:
        return record
    return replace(
        record,
        replicas={name: it for name, it in record.replicas.items() if before.replicas.get(name) != it},
        models={name: it for name, it in record.models.items() if before.models.get(name) != it},
        nodes={name: it for name, it in record.nodes.items() if before.nodes.get(name) != it},
    )


def _replica_of(shard: str) -> str:
    parsed = parse_shard_id(shard)
    return parsed[0] if parsed is not None else shard


def _known_to_serve(record: Record | None) -> set[str]:
    phases = (ReplicaPhase.SERVING, ReplicaPhase.DRAINING)
    replicas = record.replicas.values() if record is not None else ()
    return {replica.id for replica in replicas if replica.phase in phases}


def _going(record: Record | None) -> set[str]:
    """What an earlier pass has decided to let go; finishing that takes nothing more away."""
    replicas = record.replicas.values() if record is not None else ()
    return {it.id for it in replicas if it.phase in LEAVING}


def over(uuid: str, holders: list[tuple[str, int | None]], totals: Mapping[str, int]) -> str:
    """Why these are too many for one GPU; empty: they are not. ``None`` claims all of it."""
    who = ", ".join(sorted(name for name, _ in holders))
    if len(holders) > 1 and any(memory is None for _, memory in holders):
        return f"{who} claim {uuid}, one of them as a whole"
    if sum(memory or 0 for _, memory in holders) > totals.get(uuid, 0):
        return f"{who} claim more than {uuid} has"
    return ""


def _matches(replica: ReplicaRecord, address: str, port: int) -> bool:
    leader = replica.ranks[0]
    return leader.address == address and leader.ports[:1] == (port,)
