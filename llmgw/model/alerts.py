"""Alerts: what is wrong with machines and with what should run on them, as long as it is. Values only.

An alert has an id that stays the same while the thing is the same, however its text changes: who sends notices sends one
when an id comes and one when it goes.
"""

from enum import Enum

from llmgw.model.ids import Commit
from llmgw.model.struct import Struct, Time


class Severity(Enum):
    """How soon somebody must look: critical takes room or service away now, a warning will if nobody looks, info wants
    nothing done yet."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class AlertKind(Enum):
    """What is wrong. The words are stable: metrics, notices and scripts go by them."""

    AGENT_LOST = "agent-lost"  # a node can't be reached, or its agent runs no more
    SETUP_FAILED = "setup-failed"  # no agent could be set up there
    NODE_FOREIGN = "node-foreign"  # the agent that answers is another fleet's, or another node's
    GPUS_MISSING = "gpus-missing"  # fewer than the manifest expects
    GPU_UNHEALTHY = "gpu-unhealthy"  # a reason against using it
    GPU_ECC = "gpu-ecc"  # uncorrectable memory errors
    GPU_XID = "gpu-xid"  # the driver has told of an error
    GPU_STRANGER = "gpu-stranger"  # somebody else holds memory of a GPU that a replica has
    PORT_TAKEN = "port-taken"  # somebody else listens where a replica is to answer
    DISK_LOW = "disk-low"
    CLOCK_SKEW = "clock-skew"
    JOURNAL_GAP = "journal-gap"  # what happened there was dropped before anybody read it
    JOB_FAILED = "job-failed"  # an engine could not be installed, or weights not be fetched
    MODEL_HELD = "model-held"  # a commit's spec failed and is not tried again
    REPLICA_FAILED = "replica-failed"  # given up


class Alert(Struct):
    """``id`` is ``gpu-xid/node/gpu01/GPU-8d3f:79``: kind, address and what tells two of one kind apart there. ``address``
    is what it is about, as in plans: ``node/gpu01``, ``model/chat``, ``model/chat/0``. ``text`` is one sentence for people,
    ``do`` what helps. ``since`` None: nobody has told since when. ``commit``: the one that brought it, where one did."""

    id: str
    kind: AlertKind
    severity: Severity
    address: str
    text: str
    do: str = ""
    node: str | None = None
    since: Time | None = None
    commit: Commit | None = None


def alert_id(kind: AlertKind, address: str, part: str = "") -> str:
    """``part`` tells two of one kind at one address apart: a GPU's UUID, a path, a port, a job."""
    return "/".join(word for word in (kind.value, address, part) if word)
