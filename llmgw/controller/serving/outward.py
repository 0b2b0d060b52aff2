"""All of ``serve`` that faces outwards, put together from the settings: what is answered over HTTP, and who is told."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random

from llmgw.clock import Clock
from llmgw.controller.serving.access import lookup
from llmgw.controller.serving.configuration import repository_of
from llmgw.controller.serving.hints import Hints
from llmgw.controller.serving.http import Surroundings, http_server
from llmgw.controller.serving.listening import is_local
from llmgw.controller.serving.metrics import Counts
from llmgw.controller.serving.notices import Sender, telling
from llmgw.controller.serving.snapshot import Observer, Snapshots
from llmgw.controller.serving.webhooks import Watched
from llmgw.controller.settings import Settings
from llmgw.redaction import Redactor

LOG = logging.getLogger("llmgw.serve.http")
MISSED = 3
"""Passes that nobody hinted at which may fail or be late before it does not count as ready."""
LEAST = timedelta(minutes=5)


@asynccontextmanager
async def outward(
    settings: Settings,
    *,
    snapshots: Snapshots,
    hints: Hints,
    clock: Clock,
    environ: Mapping[str, str],
    redactor: Redactor,
    rng: Random,
) -> AsyncIterator[tuple[Observer, ...]]:
    """Answers and tells until left; the observers are the loop's. InvalidError or StalledError when something that is set can't
    be used."""
    counts = Counts()
    secret = lookup(environ, redactor.learn)
    repository = repository_of(settings.repo)
    async with AsyncExitStack() as stack:
        teller = await stack.enter_async_context(
            telling(
                settings.serving.notices,
                Sender(
                    snapshots=snapshots,
                    lookup=secret,
                    clock=clock,
                    rng=rng,
                    counted=counts.notice,
                    redact=redactor,
                    repository=repository,
                    state=settings.state_dir,
                ),
            )
        )
        if settings.listen is not None:
            own_ref = settings.state_ref if settings.state_repo.address == settings.repo.address else ""
            around = Surroundings(
                serving=settings.serving,
                snapshots=snapshots,
                hints=hints,
                watched=Watched(branch=settings.branch or "", state_ref=own_ref, repository=repository),
                lookup=secret,
                clock=clock,
                lately=max(MISSED * timedelta(seconds=settings.resync_interval), LEAST),
                home=Path(environ.get("HOME") or "/"),
                counts=counts,
                redact=redactor,
            )
            where = await stack.enter_async_context(http_server(around, settings.listen))
            _say(where, settings)
        yield (teller,)


def _say(where: str, settings: Settings) -> None:
    LOG.info("answering at %s", where)
    if (
        settings.listen is not None
        and not is_local(settings.listen)
        and settings.serving.access_token is None
    ):
        LOG.warning("anybody who reaches %s may read the fleet's status: set accessToken", where)
