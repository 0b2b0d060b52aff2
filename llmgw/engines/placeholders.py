"""What the words of a custom engine's command may leave open. Some placeholders the plan fills in, the others are late
values that only the node can know; the list is closed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from llmgw.core.adapter import Placed
from llmgw.engines.environment import escape
from llmgw.engines.shard import host_port
from llmgw.model.launch import LATE_VALUES
from llmgw.model.record import RankPlacement

PATTERN = re.compile(r"\$(?:\$|\{([^}]*)\}|)")
PLANNED = ("host", "port", "servedName", "rank", "ranks", "leader", "leader.host", "leader.port", "workers")
KNOWN = (*PLANNED, *LATE_VALUES)
NODES_ONLY = frozenset({"leader", "leader.host", "leader.port", "workers"})
"""Those that mean something only where a replica has several ranks."""


def used(words: Iterable[str]) -> frozenset[str]:
    return frozenset(found[1] for word in words for found in PATTERN.finditer(word) if found[1] is not None)


def wrong(word: str, *, ports: int) -> Iterator[str]:
    """Placeholders that there are none of, and a lone ``$``."""
    known = {*KNOWN, *(f"port.{number}" for number in range(2, ports + 1))}
    for found in PATTERN.finditer(word):
        if found[0] == "$":
            yield "$"
        elif found[1] is not None and found[1] not in known:
            yield found[0]


def values(placed: Placed, rank: RankPlacement) -> Mapping[str, str]:
    """What the plan fills in for one rank."""
    leader = placed.ranks[0]
    meeting = leader.ports[-1]
    known = {
        "host": rank.address,
        "port": str(rank.ports[0]),
        "servedName": placed.model.served_name,
        "rank": str(rank.rank),
        "ranks": str(len(placed.ranks)),
        "leader": host_port(leader.address, meeting),
        "leader.host": leader.address,
        "leader.port": str(meeting),
        "workers": ",".join(host_port(each.address, each.ports[0]) for each in placed.ranks[1:]),
    }
    return known | {f"port.{number}": str(port) for number, port in enumerate(rank.ports, 1) if number > 1}


def fill(word: str, known: Mapping[str, str]) -> str:
    """As a launch spec holds it: late values and ``$$`` stay."""
    return PATTERN.sub(lambda found: escape(known[found[1]]) if found[1] in known else found[0], word)
