"""What faces outwards, put together from settings as people write them."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import httpx
import pytest

from llmgw.clock import FakeClock
from llmgw.controller.serving.hints import Hints
from llmgw.controller.serving.outward import outward
from llmgw.controller.serving.snapshot import Observer, PassEnded, Snapshots
from llmgw.controller.settings import Settings, load_settings
from llmgw.model.problems import InvalidError, StalledError
from llmgw.redaction import Redactor
from tests.controller.serving.deliveries import push
from tests.controller.serving.surroundings import NOW, SECRETS, last_pass, snapshot

DOCS = Path(__file__).parents[3] / "docs" / "unattended.md"
HOOK = "webhooks: [{name: forge, provider: github, secrets: [{fromEnv: HOOK}]}]\n"


def settings(folder: Path, text: str, **flags: str | None) -> Settings:
    """The controller's own, beside the repository and not in it."""
    fleet, own = folder / "fleet", folder / "llmgw.yaml"
    (fleet / ".git").mkdir(parents=True, exist_ok=True)
    own.write_text(text)
    given = {"listen": "127.0.0.1:0", "stateDir": str(folder), **flags}
    return load_settings(flags=given, environ={"HOME": str(folder)}, cwd=fleet, config=str(own))


@asynccontextmanager
async def facing(
    made: Settings, hints: Hints | None = None, environ: Mapping[str, str] = SECRETS
) -> AsyncIterator[tuple[Observer, ...]]:
    async with outward(
        made,
        snapshots=Snapshots(snapshot(ref="")),  # so far no branch is known: any may be it
        hints=hints or Hints(),
        clock=FakeClock(NOW),
        environ=environ,
        redactor=Redactor(),
        rng=Random(1),
    ) as observers:
        yield observers


def where(log: pytest.LogCaptureFixture) -> str:
    found = re.search(r"answering at (\S+)", log.text)
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("repo", "state", "ref", "status"),
    [
        ("https://git.example.org/ann/fleet.git", None, "refs/heads/main", 202),
        ("https://git.example.org/ann/fleet.git", None, "refs/heads/llmgw/state", 200),
        ("https://git.example.org/ben/other.git", None, "refs/heads/main", 200),
        ("/srv/fleet.git", "/srv/record.git", "refs/heads/llmgw/state", 202),
        ("/srv/fleet.git", None, "refs/heads/llmgw/state", 200),
    ],
)
def test_a_webhook_is_about_the_repository_of_the_settings_and_not_about_its_record(
    repo: str, state: str | None, ref: str, status: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        hints, sent = Hints(), push("github", ref=ref)
        async with facing(settings(tmp_path, HOOK, repo=repo, stateRepo=state), hints):
            async with httpx.AsyncClient(trust_env=False, verify=False) as client:
                answer = await client.post(
                    f"{where(caplog)}/hook/forge", content=sent.body, headers=dict(sent.headers)
                )
            assert answer.status_code == status
            assert (hints.take().text == "webhook forge") == (status == 202)

    with caplog.at_level(logging.INFO):
        asyncio.run(test())


def test_it_warns_where_others_could_read_without_a_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def listen(at: str | None, text: str = "") -> str:
        caplog.clear()
        async with facing(settings(tmp_path, text, listen=at)):
            return "\n".join(it.getMessage() for it in caplog.records if it.levelno >= logging.WARNING)

    assert asyncio.run(listen("127.0.0.1:0")) == ""
    assert asyncio.run(listen("none")) == ""
    assert "set accessToken" in asyncio.run(listen("0.0.0.0:0"))
    assert asyncio.run(listen("0.0.0.0:0", "accessToken: {fromEnv: TOKEN}\n")) == ""


def test_what_can_not_be_used_ends_it_at_once(tmp_path: Path) -> None:
    async def face(text: str) -> None:
        async with facing(settings(tmp_path, text), environ={}):
            pass

    with pytest.raises(StalledError, match="fromEnv: HOOK"):
        asyncio.run(face(HOOK))
    with pytest.raises(InvalidError, match="lacks repository"):
        asyncio.run(face("notices: {commitStatus: {provider: github, token: {fromEnv: X}}}\n"))


def test_without_any_setting_there_is_nobody_to_tell(tmp_path: Path) -> None:
    async def test() -> None:
        async with facing(settings(tmp_path, "")) as observers:
            for observer in observers:
                observer.told(PassEnded(last=last_pass(), settled=True))

    asyncio.run(test())


def test_the_settings_in_unattended_md_are_settings(tmp_path: Path) -> None:
    page = DOCS.read_text(encoding="utf-8")
    blocks = [
        block
        for title in ("Webhooks", "Notices")
        for block in re.findall(
            r"```yaml\n# llmgw.yaml\n(.*?)```",
            page.partition(f"\n## {title}\n")[2].partition("\n## ")[0],
            re.DOTALL,
        )
    ]
    assert len(blocks) == 2
    found = [settings(tmp_path, block).serving for block in blocks]
    assert found[0].webhooks[0].name == "forge"
    assert [post.name for post in found[1].notices.webhooks] == ["chat", "pager"]
