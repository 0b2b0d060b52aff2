"""How old the facts of a report may be: a few seconds, but none where an engine has just got ready on GPUs."""

import asyncio
from datetime import timedelta

from llmgw.agent.service import FACTS_AGE
from llmgw.model.claims import Claims, GpuClaim
from llmgw.model.facts import Facts
from llmgw.model.report import ShardReport
from llmgw.model.struct import replace
from tests.agent.agents import NOON, Node
from tests.agent.test_service import report, start

ON_GPU = Claims(gpus=(GpuClaim(uuid="GPU-1"),))


class Asked:
    """Remembers how old its facts might have been."""

    def __init__(self) -> None:
        self.ages: list[float] = []

    async def facts(self, *, max_age: float) -> Facts:
        self.ages.append(max_age)
        return Facts()


def age_with(**changed: object) -> float:
    """Of a report while one shard is as told."""
    asked = Asked()

    async def main() -> None:
        node = Node(source=asked)
        service = await node.agent()
        await service.call("start", start())
        [(name, state)] = node.shards.states.items()
        told: ShardReport = replace(state, **changed)  # type: ignore[arg-type] # one or two fields
        node.shards.states[name] = told
        await report(service)

    asyncio.run(main())
    [age] = asked.ages
    return age


def test_an_engine_that_has_just_got_ready_on_gpus_wants_a_look_of_now() -> None:
    assert age_with(claims=ON_GPU, ready_at=NOON) == 0
    assert age_with(claims=ON_GPU, ready_at=NOON - timedelta(seconds=FACTS_AGE)) == FACTS_AGE
    assert age_with(claims=ON_GPU, ready_at=None) == FACTS_AGE
    assert age_with(ready_at=NOON) == FACTS_AGE, "on the CPU nobody waits for a look"
