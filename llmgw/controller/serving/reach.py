"""Connections that outlive a pass: to a node that is out of reach somebody tries again in the background, and passes do not
wait for it."""

from collections.abc import Mapping

from llmgw.controller.nodes.transport import Link, Transport
from llmgw.controller.passes.links import Links, way_of
from llmgw.model.desired import DesiredNode
from llmgw.model.problems import RetryError


class KeptLinks(Links):
    """Whoever keeps the streams says which nodes are out of reach; asked for one of them, passes hear so at once instead of
    waiting for its time to run out, again and again."""

    def __init__(self, transports: Mapping[str, Transport]) -> None:
        super().__init__(transports)
        self._gone: dict[str, tuple[object, str]] = {}

    async def to(self, node: DesiredNode) -> Link:
        way, error = self._gone.get(node.name, (None, ""))
        if error and way == way_of(node):
            raise RetryError(error)
        return await self.again(node)

    async def again(self, node: DesiredNode) -> Link:
        """As :meth:`to`, whatever is known of the node."""
        return await super().to(node)

    def lost(self, node: DesiredNode, error: RetryError) -> None:
        """The node was tried and can't be reached."""
        self._gone[node.name] = (way_of(node), str(error))

    def found(self, node: str) -> bool:
        """The node answers, or nobody looks after it any more. Whether it was out of reach."""
        return self._gone.pop(node, None) is not None
