"""A fleet as ``serve`` knows it, without a loop: what HTTP and notices are tested against."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from llmgw.clock import Clock, FakeClock
from llmgw.controller.serving.access import lookup
from llmgw.controller.serving.configuration import Serving, Webhook
from llmgw.controller.serving.hints import Hints
from llmgw.controller.serving.http import Surroundings
from llmgw.controller.serving.metrics import Counts
from llmgw.controller.serving.snapshot import Applied, LastPass, Snapshot, Snapshots, Totals
from llmgw.controller.serving.webhooks import Watched
from llmgw.core.show.status import JobRow, ModelRow, NodeRow, RankRow, ReplicaRow, Status
from llmgw.model.alerts import Alert, AlertKind, Severity, alert_id
from llmgw.model.ids import Commit, ReplicaId
from llmgw.model.manifest import Secret
from llmgw.model.record import Endpoint
from llmgw.redaction import Redactor

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=timezone.utc)
COMMIT = Commit("4a3f9c2e" * 5)
TOKEN = "an-access-token-of-some-length"
SECRETS = {"HOOK": "It's a Secret to Everybody", "TOKEN": TOKEN}

STATUS = Status(
    fleet="fleet-0011223344556677",
    serial=12,
    commit=COMMIT,
    outcome="done",
    models=(
        ModelRow(name="chat", served_name="chat", wanted=2, ready=1, placed=2),
        ModelRow(name="embed", served_name="embed", wanted=1, ready=0, held="its engine ended"),
    ),
    replicas=(
        ReplicaRow(
            model="chat",
            replica="chat-1f0c9a2b-0.1",
            ordinal=0,
            phase="serving",
            state="ready",
            reason="",
            nodes=("gpu01",),
        ),
        ReplicaRow(
            model="chat",
            replica="chat-1f0c9a2b-1.1",
            ordinal=1,
            phase="starting",
            state="loading",
            reason="",
            nodes=("gpu01", "gpu02"),
            ranks=(
                RankRow(rank=0, node="gpu01", state="loading"),
                RankRow(rank=1, node="gpu02", state="from-the-future"),
            ),
            last_error="fetching https://ann:hunter22@hub.example/x failed",
        ),
    ),
    nodes=(
        NodeRow(name="gpu01", reach="ok", gpus=8, gpus_free=3),
        NodeRow(name="gpu02", reach="unreachable", gpus=8, gpus_free=8),
    ),
    jobs=(JobRow(node="gpu01", job="j1", kind="fetch", description="weights", state="running"),),
    alerts=(
        Alert(
            id=alert_id(AlertKind.AGENT_LOST, "node/gpu02"),
            kind=AlertKind.AGENT_LOST,
            severity=Severity.CRITICAL,
            address="node/gpu02",
            text="gpu02 does not answer",
            node="gpu02",
        ),
    ),
)

ENDPOINTS = (
    Endpoint(
        model="chat",
        served_name="chat",
        aliases=(),
        replica=ReplicaId("chat-1f0c9a2b-0.1"),
        address="10.0.0.11",
        port=18000,
        key_id="0a1b2c3d",
        state="ready",
    ),
)


def last_pass(**changes: Any) -> LastPass:
    fields: dict[str, Any] = {
        "number": 3,
        "trigger": "webhook",
        "why": "webhook forge",
        "begun": NOW - timedelta(minutes=1),
        "seconds": 0.4,
        "ended": "done",
        "code": 0,
        "commit": COMMIT,
        "serial": 12,
        "sentence": "Started chat-1f0c9a2b-0.1",
    }
    return LastPass(**{**fields, **changes})


def snapshot(**changes: Any) -> Snapshot:
    totals = Totals().plus(
        trigger="webhook", ended="done", seconds=0.4, steps={("start", "done"): 2, ("fetch", "failed"): 1}
    )
    fields: dict[str, Any] = {
        "started": NOW - timedelta(hours=3),
        "version": "0.1.0",
        "fleet": "lab-0a1b2c3d",
        "holder": "ann@ops",
        "ref": "main",
        "head": COMMIT,
        "applied": Applied(commit=COMMIT, serial=12, at=NOW - timedelta(minutes=1)),
        "totals": totals.plus(trigger="watch", ended="nothing", seconds=200, steps={}),
        "last_pass": last_pass(),
        "last_good": NOW - timedelta(minutes=1),
        "status": STATUS,
        "looked": NOW,
        "endpoints": ENDPOINTS,
        "changes": 1,
        "blocked": 2,
        "drift": 3,
    }
    return Snapshot(**{**fields, **changes})


def webhook(provider: Any = "github", **changes: Any) -> Webhook:
    return Webhook(
        **{"name": "forge", "provider": provider, "secrets": (Secret(from_env="HOOK"),), **changes}
    )


def surroundings(
    *,
    serving: Serving | None = None,
    known: Snapshot | None = None,
    environ: Mapping[str, str] = SECRETS,
    home: Path = Path("/"),
    learn: Callable[[str], object] | None = None,
    clock: Clock | None = None,
) -> Surroundings:
    redactor = Redactor()
    return Surroundings(
        serving=serving or Serving(webhooks=(webhook(),)),
        snapshots=Snapshots(known or snapshot()),
        hints=Hints(),
        watched=Watched(branch="main", state_ref="llmgw/state", repository="ann/fleet"),
        lookup=lookup({"HOME": str(home), **environ}, learn or redactor.learn),
        clock=clock or FakeClock(NOW),
        lately=timedelta(minutes=15),
        home=home,
        counts=Counts(),
        redact=redactor,
    )
