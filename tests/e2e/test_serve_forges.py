"""`llmgw serve` follows a repository behind ssh with a deploy key, and hears of pushes from every forge by its own webhook."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controller.serving.deliveries import PROVIDERS, push
from tests.e2e.githosts import SshHost, ssh_host
from tests.e2e.serving import WITHIN, hooks, serving
from tests.stories.stage import Stage, model, node, stage_in, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as ready:
        yield ready


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SshHost]:
    with ssh_host(tmp_path) as up:
        yield up


def test_over_ssh_each_forges_webhook_leads_to_a_pass_and_without_any_the_next_look_does(
    stage: Stage, host: SshHost
) -> None:
    pushed = host.repositories.push
    pushed({"manifests/node.yaml": node(stage), "manifests/chat.yaml": model()}, "Serve chat")
    with serving(stage, hooks(*PROVIDERS), host.settings()) as it:
        until(lambda: it.replicas("chat") == 1, "chat to be served", within=WITHIN)
        for name in PROVIDERS:
            commit = pushed({"manifests/notes.yaml": f"# told by {name}\n"}, f"Told by {name}")
            assert it.last_pass()[0] != commit, "it looked though nobody told it"
            assert it.hook(name, push(name, secret=b"somebody else's secret")) == 401
            assert it.hook(name, push(name, delivery=f"of-{name}")) == 202
            it.has_passed(commit, "webhook")
    with serving(stage, hooks(*PROVIDERS), host.settings(), poll="1s") as it:
        pushed({"manifests/chat.yaml": model(replicas=2)}, "One more")
        until(lambda: it.replicas("chat") == 2, "both to be served", within=WITHIN)
