"""What an agent is told, from its node's manifest, and whether a running one may stay: the same for every way to a node."""

from collections.abc import Mapping

from llmgw import __version__
from llmgw.controller.secrets import resolve
from llmgw.model.desired import DesiredNode
from llmgw.model.ids import FleetId
from llmgw.model.problems import StalledError
from llmgw.wire import codec
from llmgw.wire.setup import AgentSettings


def agent_settings(
    node: DesiredNode, fleet: str, environ: Mapping[str, str], *, engine_user: str | None
) -> AgentSettings:
    """Secrets that the node's ``env`` points to are looked up in ``environ``; StalledError names one that is nowhere."""
    spec = node.spec
    return AgentSettings(
        node=node.name,
        fleet=FleetId(fleet),
        ports=spec.ports,
        reserve=spec.reserve,
        pretends=node.pretended is not None,
        python=spec.python,
        engine_user=engine_user,
        weights=spec.dirs.weights,
        engines=spec.dirs.engines,
        env={name: str(resolve(value, environ)) for name, value in spec.env.items()},
    )


def pretended_bytes(node: DesiredNode) -> bytes:
    """The file of what the node pretends to be; empty when it is what it is."""
    return codec.dumps_readable(node.pretended) if node.pretended is not None else b""


def may_stay(*, version: str, same_settings: bool, node: str, downgrade: bool = False) -> bool:
    """Whether a running agent will do, by its version and settings. Raises StalledError rather than letting an older one
    take the place of a newer one by the way; ``downgrade`` is a person's word that it should."""
    if version_key(version) > version_key(__version__) and not downgrade:
        if same_settings:
            return True
        raise StalledError(
            f"node {node}: its settings have changed, and its agent is of version {version}, newer than this llmgw"
            f" {__version__}: upgrade llmgw here; agents are never downgraded by the way"
        )
    return version == __version__ and same_settings


def version_key(text: str) -> tuple[int, ...]:
    """Good enough for our own version numbers: ``0.10.2`` is newer than ``0.9``."""
    return tuple(int(part) for part in text.partition("+")[0].split(".") if part.isdigit())
