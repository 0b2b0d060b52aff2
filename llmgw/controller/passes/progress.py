"""What a person may watch while a pass runs and while an apply waits: told as it happens, decided elsewhere."""

from typing import Protocol

from llmgw.model.plan import Plan, Step, StepResult
from llmgw.wire.messages import WatchEvent


class Progress(Protocol):
    """Called from the event loop; must return at once and never raise."""

    def planned(self, plan: Plan) -> None:
        """A pass is about to carry this out."""
        ...

    def step(self, step: Step, result: StepResult | None) -> None:
        """None: it has begun."""
        ...

    def seen(self, node: str, event: WatchEvent) -> None:
        """An agent told of a shard or a job."""
        ...

    def said(self, text: str) -> None:
        """Something about the pass itself, in one line."""
        ...


class Silent:
    """For those whom nobody watches."""

    def planned(self, plan: Plan) -> None:
        pass

    def step(self, step: Step, result: StepResult | None) -> None:
        pass

    def seen(self, node: str, event: WatchEvent) -> None:
        pass

    def said(self, text: str) -> None:
        pass
