"""How long nodes have been silent, and from when on what runs there is given up and started elsewhere.

- A node falls silent when nothing can be had from its agent. That moment is recorded, and ``grace`` counts from it.
- One that answers again is forgiven as slowly as it was silent: after four silent minutes it takes four minutes, never more than
  one ``grace``. Fallen silent before that, it has so much less left of its grace. So a node that answers at least half of the
  time is never given up, and one that answers for a moment now and then does not start its grace anew.
- While more nodes are silent at once than the brake allows, and at least two, nothing is given up: the fault is more likely
  the controller's. Nodes that are being drained don't count: nobody misses them.

Given up is not stopped: claims stay until the node answers or somebody gives the machine up.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from llmgw.core.amounts import at
from llmgw.core.seen.survey import NodeView, Silence, Survey
from llmgw.model.manifest import Unreachable
from llmgw.model.record import NodeRecord, Record
from llmgw.model.report import Reach
from llmgw.model.struct import replace

LEAST_FOR_BRAKE = 2
"""Silent nodes below which the brake never holds: in a small fleet one node is a large share."""
NOTHING = timedelta(0)


def fell_silent(node: NodeRecord, now: datetime) -> NodeRecord:
    return node if node.unreachable_since is not None else replace(node, unreachable_since=now)


def answered(node: NodeRecord, now: datetime, *, grace: float) -> NodeRecord:
    """``grace`` in seconds: more is never held against it."""
    if node.unreachable_since is None:
        return node
    silent = max(now - node.unreachable_since, NOTHING) + _carried(node)
    forgiven = now + min(silent, timedelta(seconds=grace))
    return replace(node, unreachable_since=None, forgiven_at=forgiven)


def _carried(node: NodeRecord) -> timedelta:
    """What it had not been forgiven when it fell silent."""
    if node.unreachable_since is None or node.forgiven_at is None:
        return NOTHING
    return max(node.forgiven_at - node.unreachable_since, NOTHING)


def is_silent(view: NodeView) -> bool:
    """One that was not asked is not silent, nor is a machine that has yet to get its first agent anybody's loss."""
    return not view.known and view.reach is not Reach.NOT_ASKED


def listened(survey: Survey, record: Record, rules: Unreachable, *, now: datetime) -> Survey:
    """The same, with the silence of every silent node that the record knows."""
    silent = [view.name for view in survey.nodes.values() if view.name in record.nodes and is_silent(view)]
    if not silent or survey.offline:
        return survey
    brake = _brake(survey, silent, rules)
    nodes = dict(survey.nodes)
    for name in silent:
        silence = _silence(record.nodes[name], rules, brake, now)
        view = nodes[name]
        obstacle = view.obstacle or ("its agent has been silent for too long" if silence.given_up else "")
        nodes[name] = replace(view, silence=silence, obstacle=obstacle)
    return replace(survey, nodes=nodes)


def patience(survey: Survey, nodes: Iterable[str]) -> str:
    """What has to happen before something takes the place of what runs there, to be put behind a sentence; empty where it is not
    only a matter of time."""
    views = (survey.nodes.get(name) for name in nodes)
    silences = [view.silence for view in views if view is not None and view.silence is not None]
    for silence in silences:
        if silence.brake:
            return f" as long as the brake holds: {silence.brake}"
    ends = [silence.over for silence in silences]
    if not silences or any(silence.given_up for silence in silences):
        return ""
    known = [over for over in ends if over is not None]
    return f" before {at(min(known))}" if known else " yet"


def _silence(node: NodeRecord, rules: Unreachable, brake: str, now: datetime) -> Silence:
    grace = timedelta(seconds=rules.grace)
    if node.unreachable_since is None:
        owed = max(node.forgiven_at - now, NOTHING) if node.forgiven_at is not None else NOTHING
        return Silence(since=None, over=None, brake=brake, given_up=owed >= grace and not brake)
    over = node.unreachable_since + max(grace - _carried(node), NOTHING)
    return Silence(since=node.unreachable_since, over=over, brake=brake, given_up=now >= over and not brake)


def _brake(survey: Survey, silent: list[str], rules: Unreachable) -> str:
    """Why nothing is given up now; empty: the brake does not hold."""
    counted = [
        name
        for name, view in survey.nodes.items()
        if view.desired is not None and view.named and not view.desired.spec.drain
    ]
    lost = [name for name in silent if name in counted]
    if len(lost) < LEAST_FOR_BRAKE or len(lost) <= rules.brake * len(counted):
        return ""
    return f"{len(lost)} of {len(counted)} nodes are silent at once, more than unreachable.brake {rules.brake:g} allows"
