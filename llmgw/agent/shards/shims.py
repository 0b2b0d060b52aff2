"""A shim as the agent starts it: Python first, which takes longest, and its order when that may be carried out. Knows
nothing of what an order says."""

import asyncio
import marshal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import llmgw
from llmgw.agent.children import end_session
from llmgw.agent.shards.belongings import SHIM_MARK
from llmgw.model.problems import StalledError

SHIM = Path(llmgw.__file__).parent / "runtime" / "shim.py"
LOADER = "import sys;sys.path.append(sys.argv[1].rpartition('/')[0]);from shim import main;main()"
"""Python keeps what it compiles of a module, and not of a program that is run by path."""
ANSWER_WITHIN = 60.0
"""Seconds for a shim to execute its engine: Python's start and two small writes, on a disk that is busy."""
STARTED = "ok"
MAX_ANSWER = 64 * 1024
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Shim:
    """Started by ``begin``; then ``order`` or ``dismiss``, once. Until its order is whole it does nothing, and when its agent
    dies before that it ends by itself."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def begin(cls, python: str, mark: str) -> "Shim":
        """``mark`` says in its environment whose it is. Raises StalledError."""
        try:
            process = await asyncio.create_subprocess_exec(
                python,
                "-I",
                "-S",
                "-c",
                LOADER,
                str(SHIM),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={SHIM_MARK: mark, "PATH": PATH},
                cwd="/",
                start_new_session=True,
            )
        except OSError as wrong:
            raise StalledError(f"running {python}: {wrong.strerror}") from wrong
        return cls(process)

    async def order(self, order: Mapping[str, Any]) -> str:
        """Empty when the engine is executed, else why not."""
        try:
            out, err = await asyncio.wait_for(
                self._process.communicate(marshal.dumps(dict(order))), ANSWER_WITHIN
            )
        except asyncio.TimeoutError:
            await self.dismiss()
            return f"its shim has not answered within {ANSWER_WITHIN:.0f} s"
        answer = out[:MAX_ANSWER].decode(errors="replace")
        if answer:
            return "" if answer == STARTED else answer
        tail = err[-500:].decode(errors="replace").strip()
        return f"its shim has died: {tail}" if tail else "its shim has died"

    async def dismiss(self) -> None:
        """Without an order nothing of it is left."""
        await end_session(self._process)
