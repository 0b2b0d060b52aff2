"""Ray as the way in which the ranks of one replica meet: the head beside the leader, and the join, which is all that
the other ranks run. Each replica has a Ray of its own.

- Its ports are the replica's own. Workers' ports come from the kernel (``--min-worker-port 0``), because Ray's own range
  for them, 10002 to 19999, holds most nodes' ports for engines.
- Only who knows the replica's key may use it: without that, whoever reaches a port can run code.
- ``--block`` keeps ``ray start`` there as the parent of its daemons, so that its end is theirs. ``ray stop`` would end every
  Ray of the machine.
- Its files lie in the shard's home, reached by a short link: a socket's path may have 107 bytes, and Ray adds 62.

Read in and tried with Ray 2.60.0; see docs/engines.md.
"""

from collections.abc import Mapping

from llmgw.core.adapter import Placed
from llmgw.engines.environment import escape
from llmgw.engines.shard import host_port
from llmgw.model import ids
from llmgw.model.launch import WaitFor
from llmgw.model.record import RankPlacement

SIDECAR = "ray"
LEADER_PORTS = 3
"""Of rank 0 beside its HTTP server's: the head's own, that of Ray's client, and that of its agent of the node, for which
the other ranks have their only port."""

_LINKED = """\
ln -sfT "$HOME" "$0" || exit 1
setsid "$@" &
trap "kill -TERM $!" TERM
wait $!; code=$?
while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
rm -f "$0"
exit $code"""
"""Runs Ray with a link to the home that is there as long as Ray is. SIGTERM goes to ``ray start`` alone, which ends its daemons
in their order: told all at once, one waits half a minute for another that is gone already."""


def head_address(placed: Placed) -> tuple[str, int]:
    leader = placed.ranks[0]
    return leader.address, leader.ports[1]


def wait_for_head(placed: Placed) -> WaitFor:
    """Ray itself would wait for ever for a head that isn't there."""
    host, port = head_address(placed)
    return WaitFor(host=host, port=port, timeout=placed.model.profile.timeouts.rendezvous)


def head(placed: Placed, ray: str) -> tuple[str, ...]:
    """The command of the leader's sidecar. ``ray`` is the program's path."""
    leader = placed.ranks[0]
    return _start(
        placed,
        leader,
        ray,
        "--head",
        f"--port={leader.ports[1]}",
        f"--ray-client-server-port={leader.ports[2]}",
        "--include-dashboard=false",
        "--disable-usage-stats",
    )


def join(placed: Placed, rank: RankPlacement, ray: str) -> tuple[str, ...]:
    """The command of every other rank."""
    return _start(placed, rank, ray, f"--address={host_port(*head_address(placed))}")


def variables() -> Mapping[str, str]:
    """For everything that speaks to this Ray."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "${key}", "RAY_USAGE_STATS_ENABLED": "0"}


def _start(placed: Placed, rank: RankPlacement, ray: str, *words: str) -> tuple[str, ...]:
    link = _link(placed, rank)
    return (
        "/bin/sh",
        "-c",
        escape(_LINKED),
        link,
        ray,
        "start",
        *words,
        f"--node-ip-address={rank.address}",
        f"--num-gpus={len(rank.gpus)}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        f"--dashboard-agent-listen-port={rank.ports[-1]}",
        f"--temp-dir={link}/ray",
        "--block",
    )


def _link(placed: Placed, rank: RankPlacement) -> str:
    """No other shard's, whichever fleet it belongs to."""
    name = ids.digest({"replica": placed.replica, "rank": rank.rank, "at": rank.address, "ports": rank.ports})
    return f"/tmp/llmgw-{name[:12]}"  # noqa: S108 - a link that only its owner can replace, to the owner's own home
