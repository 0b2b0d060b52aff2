"""What is wrong, where, and what to do: problems as data, and errors typed by what happens next."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from llmgw.model.struct import Struct


class Where(Struct, order=True):
    """A place in a file of the fleet. Lines and columns count from 1; 0 means the whole file."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"


class Problem(Struct):
    """One thing that is wrong. Printed as ``file:line:column: what is wrong: what to write instead``."""

    what: str
    instead: str = ""
    where: Where | None = None

    def __str__(self) -> str:
        text = f"{self.what}: {self.instead}" if self.instead else self.what
        return f"{self.where}: {text}" if self.where else text


class LlmgwError(Exception):
    """Base of every error that a person may see. The message says what was being done, to what, why it
    failed and what to try; the cause is chained, never repeated."""


class RetryError(LlmgwError):
    """Trying the same thing again later may work; nothing was lost."""

    def __init__(self, message: str, *, after: timedelta = timedelta(seconds=1)) -> None:
        super().__init__(message)
        self.after = after


class UnknownOutcomeError(RetryError):
    """A command was sent and the answer never came: it may or may not have been carried out. Ask again by
    the same command id."""


class StalledError(LlmgwError):
    """Trying again changes nothing until a person, or something outside, acts."""


class InvalidError(LlmgwError):
    """Input that can't be used. All problems at once, never only the first."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class StaleError(LlmgwError):
    """The plan no longer matches the world it was made for. Exit code 3."""


class HeldError(LlmgwError):
    """Somebody else is applying. Names the holder and until when. Exit code 4."""


class NoAgentError(LlmgwError):
    """The machine answers, but no agent does: it must be bootstrapped first."""


class AgentError(LlmgwError):
    """An agent's refusal. ``code`` is one of wire/messages; ``after`` tells when a retry makes sense, None: never.
    ``data`` holds what else steers the next step, such as the fence that is in force."""

    def __init__(
        self,
        message: str,
        *,
        code: int,
        after: timedelta | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.after = after
        self.data: Mapping[str, Any] = data or {}
