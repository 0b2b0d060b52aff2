"""A pretended fleet that carries plans out: a tiny pure interpreter of steps onto reports and record.

It knows nothing of planning. Agents are obedient and instant unless a test says otherwise.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from llmgw.core.adapter import EngineAdapter
from llmgw.core.planner import PlanOptions, plan
from llmgw.core.record import recording
from llmgw.model.desired import Desired
from llmgw.model.facts import EngineFact, WeightsFact
from llmgw.model.launch import LoraAdapter
from llmgw.model.plan import AWAITS, Plan, Step, StepKind, StepOutcome, StepResult
from llmgw.model.record import Record
from llmgw.model.report import Exit, LoraReport, Observed, Reach
from llmgw.model.struct import replace
from tests.core.builders import ADAPTERS, KEY, NOW, NodeState, a_pass, empty_record, observed, shard_report

OPTIONS = PlanOptions(key_id=KEY, agent_version="0.1.0")
READY_STEPS = ("pending", "loading", "ready")


@dataclass
class Fleet:
    """``fails`` says of a shard whether it never gets ready; ``check`` is called after every single step."""

    desired: Desired
    nodes: dict[str, NodeState]
    record: Record = field(default_factory=empty_record)
    now: datetime = NOW
    fails: Callable[[Step], bool] = lambda _: False
    refuses: Callable[[Step], bool] = lambda _: False
    check: Callable[["Fleet"], None] = lambda _: None
    adapters: Mapping[str, EngineAdapter] = field(default_factory=lambda: ADAPTERS)

    def observe(self) -> Observed:
        for node in self.nodes.values():
            node.now = self.now + node.ahead
        return observed(*self.nodes.values())

    def plan(self, options: PlanOptions = OPTIONS) -> Plan:
        return plan(self.desired, self.record, self.observe(), self.adapters, now=self.now, options=options)

    def one_pass(self, options: PlanOptions = OPTIONS) -> Plan:
        """Plan, intent, commands, outcome; then the fleet moves on by itself a little."""
        made = self.plan(options)
        seen = self.observe()
        if made.commands:
            intent = recording.begin(
                self.record, self.desired, made, seen, pass_record=a_pass(self.record.serial + 1, self.now)
            )
            self.record = intent
            results = self.execute(made)
            self.record = recording.end(intent, made, results, seen, now=self.now)
        else:
            self.record = recording.observe(
                self.record, seen, self.now, grace=self.desired.fleet.unreachable.grace
            )
        self.check(self)
        return made

    def settle(self, options: PlanOptions = OPTIONS, limit: int = 60) -> Plan:
        """Passes until nothing is to be done and nothing on its way."""
        for _ in range(limit):
            made = self.one_pass(options)
            if not made.commands and not made.waiting:
                return made
            self.advance()
        raise AssertionError(f"not settled after {limit} passes: {made.waiting} {made.changes}")

    def execute(self, made: Plan) -> dict[str, StepResult]:
        results: dict[str, StepResult] = {}
        for step in made.steps:
            before = [results[name].outcome for name in step.after]
            if step.kind in AWAITS or StepOutcome.DEFERRED in before:
                results[step.id] = StepResult(outcome=StepOutcome.DEFERRED)
            elif set(before) - {StepOutcome.DONE}:
                results[step.id] = StepResult(outcome=StepOutcome.SKIPPED)
            elif self.refuses(step):
                results[step.id] = StepResult(outcome=StepOutcome.FAILED, error="refused by the test")
            else:
                self.carry_out(step)
                results[step.id] = StepResult(outcome=StepOutcome.DONE)
            self.check(self)
        return results

    def carry_out(self, step: Step) -> None:
        if step.node is None:
            return
        node = self.nodes[step.node]
        assert node.reach is not Reach.UNREACHABLE, f"{step.id} is sent to a node that can't be reached"
        self._prepare(node, step)
        self._command(node, step)

    def _prepare(self, node: NodeState, step: Step) -> None:
        """The agent itself, and its jobs."""
        match step.kind:
            case StepKind.BOOTSTRAP:
                node.reach = Reach.OK
                node.agent = "0.1.0"
                node.says = ""
            case StepKind.INSTALL if step.install is not None:
                spec = step.install
                engine = EngineFact(name=spec.engine, version=spec.version, digest=spec.digest, path="/e")
                node.facts = replace(node.facts, engines=(*node.facts.engines, engine))
            case StepKind.FETCH if step.fetch is not None:
                weights = WeightsFact(digest=step.fetch.digest, path="/w", size=1)
                node.facts = replace(node.facts, weights=(*node.facts.weights, weights))
            case StepKind.CANCEL:
                node.jobs.pop(step.job or "", None)
            case _:
                pass

    def _command(self, node: NodeState, step: Step) -> None:
        match step.kind:
            case StepKind.START if step.launch is not None:
                state = "doomed" if self.fails(step) else "pending"
                lora = step.launch.lora.adapters if step.launch.lora is not None else ()
                node.shards[step.launch.shard] = replace(
                    shard_report(step.launch, state, since=self.now), adapters=told_of(lora)
                )
            case StepKind.ADAPTERS if step.adapters is not None and step.shard in node.shards:
                shard = node.shards[step.shard or ""]
                node.shards[step.shard or ""] = replace(shard, adapters=told_of(step.adapters))
            case StepKind.DRAIN:
                self._set(step, "draining")
            case StepKind.STOP if step.shard in node.shards:
                self._set(step, "stopping")
            case StepKind.FORGET:
                node.shards.pop(step.shard or "", None)
            case _:
                pass

    def _set(self, step: Step, state: str) -> None:
        node = self.nodes[step.node or ""]
        shard = node.shards[step.shard or ""]
        if shard.state != "stopped":  # told once more, it stays as it is
            node.shards[shard.shard] = replace(shard, state=state, since=self.now)

    def advance(self) -> None:
        """Every agent gets one state further."""
        self.now += timedelta(seconds=10)
        onward = {
            "pending": "loading",
            "loading": "ready",
            "draining": "stopping",
            "stopping": "stopped",
            "doomed": "failed",
        }
        for node in self.nodes.values():
            for key, shard in node.shards.items():
                state = onward.get(shard.state, shard.state)
                loaded = tuple(replace(it, state="routable") for it in shard.adapters)
                lora = loaded if shard.state == "ready" else shard.adapters
                node.shards[key] = replace(shard, state=state, since=self.now, adapters=lora)
                if state == "failed" and shard.state == "doomed":
                    node.shards[key] = replace(
                        node.shards[key],
                        reason="gave up",
                        last_error="engine exited by itself with code 1: bad flag",
                        started=self.now,
                        attempts=6,
                        last_exit=Exit(at=self.now, code=1, last_lines=("loading", "ValueError: bad flag")),
                    )

    def ready(self, model: str) -> int:
        return sum(
            1
            for node in self.nodes.values()
            for shard in node.shards.values()
            if shard.model == model and shard.state == "ready" and shard.rank == 0
        )


def told_of(adapters: Iterable[LoraAdapter]) -> tuple[LoraReport, ...]:
    return tuple(
        LoraReport(name=it.name, digest=it.digest, rank=it.rank, state="waiting", send=it.send)
        for it in adapters
    )


def fleet(wanted: Desired, nodes: Iterable[NodeState]) -> Fleet:
    return Fleet(desired=wanted, nodes={node.name: node for node in nodes})
