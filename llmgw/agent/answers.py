"""What commands were answered, by their ids: each is carried out once, and to the end even when the one who asked is gone."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from llmgw.model.problems import AgentError
from llmgw.model.struct import Struct
from llmgw.wire.messages import INVALID_PARAMS, Accepted

REMEMBERED = 1_024
"""Answers kept for controllers that ask again by command id: far more than one pass sends to a node."""


class _Answer(Struct):
    """What a command id was for, and its answer, perhaps still on its way."""

    asked: str
    task: "asyncio.Task[Accepted]"


class Answers:
    """Only what was accepted is kept: a refused command may be sent again when its cause is gone."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Answer] = OrderedDict()

    async def of(
        self, command: str, asked: str, carry_out: Callable[[], Coroutine[Any, Any, Accepted]]
    ) -> Accepted:
        """``asked`` tells one command from another. Raises AgentError when the id was used for another one."""
        known = self._known.get(command)
        if known is None:
            known = _Answer(asked=asked, task=asyncio.ensure_future(carry_out()))
            self._remember(command, known)
        elif known.asked != asked:
            raise AgentError(
                f"command id {command!r:.80} was used for another command: each needs an id of its own",
                code=INVALID_PARAMS,
            )
        return await asyncio.shield(known.task)

    async def close(self) -> None:
        for answer in self._known.values():
            answer.task.cancel()
        await asyncio.gather(*(answer.task for answer in self._known.values()), return_exceptions=True)

    def _remember(self, command: str, answer: _Answer) -> None:
        self._known[command] = answer

        def settle(task: "asyncio.Task[Accepted]") -> None:
            if task.cancelled() or task.exception() is not None:
                self._known.pop(command, None)

        answer.task.add_done_callback(settle)
        while len(self._known) > REMEMBERED:
            oldest = next((name for name, old in self._known.items() if old.task.done()), None)
            if oldest is None:
                break
            del self._known[oldest]
