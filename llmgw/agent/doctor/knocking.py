"""Knocks at a port of another node, as somebody without a key would: whether it can be reached, and what it answers. Only GET
requests, so that nothing is set off."""

import asyncio
import contextlib

from llmgw.agent.shards.probes import HttpProber
from llmgw.model.launch import HttpProbe
from llmgw.model.problems import AgentError
from llmgw.wire.messages import INVALID_PARAMS, Knocked, KnockParams

CONNECT_WITHIN = 3.0
ANSWER_WITHIN = 5.0
MAX_PATHS = 64
OPEN = "open"
REFUSED = "refused"


async def knock(params: KnockParams) -> Knocked:
    """Raises AgentError for what is no port or too much to ask."""
    if not 0 < params.port < 65536 or len(params.paths) > MAX_PATHS or not all(map(_plain, params.paths)):
        raise AgentError(
            f"knocking at {params.host[:100]}:{params.port}: no port, or more than {MAX_PATHS} paths, or one that is none",
            code=INVALID_PARAMS,
        )
    port = await _port(params.host, params.port)
    if port != OPEN:
        return Knocked(port=port)
    prober = HttpProber()
    statuses = {}
    for path in params.paths:  # one after the other: an engine at work must not feel it
        answer = await prober.ask(
            params.host, params.port, HttpProbe(path=path), key=None, timeout=ANSWER_WITHIN
        )
        statuses[path] = answer.status
    return Knocked(port=port, statuses=statuses)


def _plain(path: str) -> bool:
    return (
        path.startswith("/") and path.isascii() and path.isprintable() and " " not in path and len(path) < 200
    )


async def _port(host: str, port: int) -> str:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_WITHIN)
    except ConnectionRefusedError:
        return REFUSED
    except asyncio.TimeoutError:
        return f"no answer within {CONNECT_WITHIN:g} s"
    except OSError as wrong:
        return wrong.strerror or str(wrong)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return OPEN
