"""The agent protocol: JSON-RPC 2.0, one object a line, over a byte stream that somebody else has secured.

Version ``major.minor``: another major is refused by ``hello``; a minor only adds. Requests with unknown fields are
refused, answers tolerate them. Every mutating request carries a command id and a fence and is idempotent: the
same command id gets the same answer. ``meta`` is reserved (trace context).

======== ======================= =====================  =========================================================
method   params                  result                 what it does
======== ======================= =====================  =========================================================
hello    HelloParams             HelloResult            first on every connection
report   ReportParams            Report                 everything, and the journal after a number
watch    WatchParams             stream of WatchEvent   states and journal as they happen
start    StartParams             Accepted               a standing order; a repeat while it lives returns its state
drain    DrainParams             Accepted               publish as draining, wait for 0 in flight
stop     StopParams              Accepted               of an unknown shard: done
forget   ForgetParams            Accepted               drop a terminal shard's order and logs
logs     LogsParams              stream of LogLine      last n lines, then followed if asked
install  InstallParams           Accepted               a job; done already: says so
fetch    FetchParams             Accepted               a job; done already: says so
cancel   CancelParams            Accepted               a job
key      KeyParams               Accepted               replaces the secrets of a shard, for its next start
adapters AdaptersParams          Accepted               the LoRA adapters of a shard, now and after each start
manual   ManualParams            Accepted               break glass: a person on the node stops, starts or drains
doctor   DoctorParams            Checkup                every check of the node, with what to do
knock    KnockParams             Knocked                whether a port of another node answers, and without a key
inspect  InspectParams           Inspected              what lies at the places of weights, by their headers alone
help     HelpParams              Helped                 which flags an engine's program knows, by its own help
token    TokenParams             Tokened                has a ready shard compute one token, and says on what
storage  StorageParams           StorageResult          engines, weights, tools and half-made ones, with sizes
collect  CollectParams           Accepted               removes those of them that nothing on the node refers to
======== ======================= =====================  =========================================================

A stream's items are notifications ``item`` with the request's id, closed by the request's result ``{}``.
"""

from collections.abc import Mapping
from typing import Any, Literal

from llmgw.model.facts import EngineFact
from llmgw.model.ids import Fence, FleetId, JobId, ShardId
from llmgw.model.launch import FetchSpec, HelpSpec, InstallSpec, LaunchSpec, LoraAdapter
from llmgw.model.report import ComputesOn, JobReport, JournalEntry, ShardReport, Stored
from llmgw.model.struct import Struct, Time, field
from llmgw.model.weights import Inspection

PROTOCOL = "1.0"
MAX_LINE = 4 * 1024 * 1024
"""Bytes of one message. A report of 16 shards with their last exits is about 100 kB."""
NO_JOURNAL = 2**53
"""As ReportParams.journal_after: the entries are not wanted. No journal counts so far."""

METHODS = (
    "hello",
    "report",
    "watch",
    "start",
    "drain",
    "stop",
    "forget",
    "logs",
    "install",
    "fetch",
    "cancel",
    "key",
    "adapters",
    "manual",
    "doctor",
    "knock",
    "inspect",
    "help",
    "token",
    "storage",
    "collect",
    "whose",
)

# JSON-RPC's own codes, then ours. ``data.after`` (seconds) says when a retry makes sense; none: it does not.
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
FENCED = 1001  # a newer controller has commanded; data.fence tells which
WRONG_FLEET = 1002
VERSION = 1003
MISMATCH = 1004  # what the plan expected is not so; plan anew
CONFLICT = 1005  # the claim is held, the shard is in a state where this makes no sense
NOT_FOUND = 1006
BUSY = 1007
NO_SPACE = 1008  # the disk refused; nothing was started
POLICY = 1009  # the machine's own policy forbids it


def compatible(protocol: str, other: str) -> bool:
    return protocol.partition(".")[0] == other.partition(".")[0]


class Command(Struct):
    """Beside every mutating request."""

    id: str
    fence: Fence


class HelloParams(Struct):
    protocol: str
    tool_version: str
    fleet: FleetId | None = None
    meta: Mapping[str, str] = field(default_factory=dict)


class HelloResult(Struct):
    protocol: str
    agent_version: str
    node: str
    boot_id: str
    fleet: FleetId | None = None
    fence: Fence | None = None
    methods: tuple[str, ...] = METHODS


class ReportParams(Struct):
    journal_after: int = 0
    meta: Mapping[str, str] = field(default_factory=dict)


class WatchParams(Struct):
    meta: Mapping[str, str] = field(default_factory=dict)


class WatchEvent(Struct):
    """One thing that changed. The first of a stream is empty: what happened before it stands in a report that is asked for now.
    ``resync`` ends a stream whose reader was too slow: ask for a report."""

    shard: ShardReport | None = None
    job: JobReport | None = None
    entry: JournalEntry | None = None
    resync: bool = False


class StartParams(Struct):
    command: Command
    spec: LaunchSpec
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Values of ``${key}`` (under ``key``) and ``${secret:NAME}``; kept 0600 on the node, never in a report."""
    meta: Mapping[str, str] = field(default_factory=dict)


class DrainParams(Struct):
    command: Command
    shard: ShardId
    timeout: float
    meta: Mapping[str, str] = field(default_factory=dict)


class StopParams(Struct):
    command: Command
    shard: ShardId
    reason: str = ""
    meta: Mapping[str, str] = field(default_factory=dict)


class ForgetParams(Struct):
    command: Command
    shard: ShardId
    meta: Mapping[str, str] = field(default_factory=dict)


class InstallParams(Struct):
    command: Command
    spec: InstallSpec
    meta: Mapping[str, str] = field(default_factory=dict)


class FetchParams(Struct):
    command: Command
    spec: FetchSpec
    secrets: Mapping[str, str] = field(default_factory=dict)
    """The value of ``spec.token``, under ``token``; kept 0600 on the node until the job has ended, never in a report."""
    meta: Mapping[str, str] = field(default_factory=dict)


class CancelParams(Struct):
    command: Command
    job: JobId
    meta: Mapping[str, str] = field(default_factory=dict)


class StorageParams(Struct):
    meta: Mapping[str, str] = field(default_factory=dict)


class StorageResult(Struct):
    stored: tuple[Stored, ...] = ()


class CollectParams(Struct):
    """``names`` of :class:`Stored`. What is not there any more is done, what is held is kept and told in ``detail``."""

    command: Command
    names: tuple[str, ...]
    meta: Mapping[str, str] = field(default_factory=dict)


class KeyParams(Struct):
    command: Command
    shard: ShardId
    secrets: Mapping[str, str]
    meta: Mapping[str, str] = field(default_factory=dict)


class AdaptersParams(Struct):
    """All that it is to have; those it has beside them are unloaded."""

    command: Command
    shard: ShardId
    adapters: tuple[LoraAdapter, ...]
    meta: Mapping[str, str] = field(default_factory=dict)


class ManualParams(Struct):
    """What a person on the node wants of a shard. Without a fence: whoever reaches the agent's socket is root there, or the
    agent's own user. ``timeout`` is the drain's, in seconds."""

    verb: Literal["start", "stop", "drain"]
    shard: ShardId
    by: str
    timeout: float = 120.0
    meta: Mapping[str, str] = field(default_factory=dict)


class InspectParams(Struct):
    """``paths`` of weights on the node, by the digest of their source; an empty one: where the fetched weights of that digest
    lie."""

    paths: Mapping[str, str]
    meta: Mapping[str, str] = field(default_factory=dict)


class Inspected(Struct):
    """What lies there, by digest. Those that did not fit into one answer are left out: ask for them again."""

    inspections: Mapping[str, Inspection] = field(default_factory=dict)


class HelpParams(Struct):
    """Of an engine that is installed under ``digest``, or lies at ``path``. ``devices``: also which devices it sees."""

    name: str
    spec: HelpSpec
    digest: str | None = None
    path: str | None = None
    devices: bool = False
    meta: Mapping[str, str] = field(default_factory=dict)


class Helped(Struct):
    """``engine`` is None while its help is still being read: ask again. ``devices`` are the lines in which it lists them, or
    why it can't."""

    engine: EngineFact | None = None
    devices: tuple[str, ...] = ()


class TokenParams(Struct):
    """Of the rank that serves."""

    shard: ShardId
    meta: Mapping[str, str] = field(default_factory=dict)


class Tokened(Struct):
    """``wrong``: what was wrong with the answer; empty: it computed one. ``took`` in seconds. ``computes_on`` is what its
    processes hold right after it: None where that is not known."""

    wrong: str = ""
    took: float = 0.0
    computes_on: ComputesOn | None = None


class WhoseParams(Struct):
    """Of a process of the node, by its number there."""

    pid: int
    meta: Mapping[str, str] = field(default_factory=dict)


class Whose(Struct):
    """``shard`` is whom the process provably belongs to, however far below its engine; None: to none of this fleet. ``process`` names
    it for people: its name, its user, its state."""

    shard: ShardId | None
    process: str


class DoctorParams(Struct):
    meta: Mapping[str, str] = field(default_factory=dict)


class KnockParams(Struct):
    """``paths`` are asked by GET and without a key, so that nothing can be set off; none: only whether the port answers."""

    host: str
    port: int
    paths: tuple[str, ...] = ()
    meta: Mapping[str, str] = field(default_factory=dict)


class Knocked(Struct):
    """``port``: open, refused (the machine answers, nobody listens), or why there is no answer at all. ``statuses`` are
    HTTP's by path; 0: no answer."""

    port: str
    statuses: Mapping[str, int] = field(default_factory=dict)


class LogsParams(Struct):
    shard: ShardId
    lines: int = 100
    follow: bool = False
    meta: Mapping[str, str] = field(default_factory=dict)


class LogLine(Struct):
    """One line of a shard's output. ``process`` is empty where the shard has only its engine."""

    process: str
    text: str
    at: Time | None = None


class Accepted(Struct):
    """The command is taken (or was, when it is repeated). ``shard`` or ``job`` is its state right now."""

    shard: ShardReport | None = None
    job: JobReport | None = None
    detail: str = ""


class Request(Struct):
    method: str
    id: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    jsonrpc: str = "2.0"


class ErrorBody(Struct):
    code: int
    message: str
    data: Mapping[str, Any] | None = None


class Response(Struct):
    """Result or error. ``result`` of a report may be large; see MAX_LINE."""

    id: int | None = None
    result: Any = None
    error: ErrorBody | None = None
    jsonrpc: str = "2.0"
