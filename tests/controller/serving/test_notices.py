"""Notices: what is told, once, to whom; and that servers which fail, hang or refuse hold nothing up."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from llmgw.clock import FakeClock
from llmgw.controller.serving.access import lookup
from llmgw.controller.serving.configuration import CommitStatus, Notices, Post
from llmgw.controller.serving.forges import CommitState, request, shortened
from llmgw.controller.serving.metrics import Counts
from llmgw.controller.serving.notices import STATE_FILE, Sender, Teller, slack_text, telling
from llmgw.controller.serving.posting import QUEUED, TRIES, _seconds
from llmgw.controller.serving.snapshot import CommitRefused, HeadMoved, PassBegan, PassEnded, Snapshots
from llmgw.controller.serving.troubles import Telling, Told, Trouble, lasting, of_alert, of_pass
from llmgw.model.alerts import Severity
from llmgw.model.ids import Commit
from llmgw.model.manifest import Duration, Secret
from llmgw.model.problems import InvalidError, StalledError
from llmgw.model.struct import replace
from llmgw.redaction import Redactor
from tests.controller.serving.hearers import DEADLINE, HANGS, Heard, Hearer, hearer
from tests.controller.serving.surroundings import COMMIT, NOW, STATUS, last_pass, snapshot

TOKEN = "t0ken-c4n4ry-of-the-forge"
ALERT = STATUS.alerts[0]
CALM = replace(STATUS, alerts=())


class Quick(Random):
    """Pauses of no length: what is tried again is tried at once."""

    def uniform(self, a: float, b: float) -> float:
        return -b if a == 0 else a


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE * 2):
            await test()

    asyncio.run(bounded())


def sender(folder: Path, environ: Mapping[str, str], **changes: Any) -> Sender:
    redactor = Redactor()
    fields: dict[str, Any] = {
        "snapshots": Snapshots(snapshot(status=CALM)),
        "lookup": lookup(environ, redactor.learn),
        "clock": FakeClock(NOW),
        "rng": Quick(),
        "counted": Counts().notice,
        "redact": redactor,
        "repository": "ann/fleet",
        "state": folder,
    }
    return Sender(**{**fields, **changes})


def status_at(hears: Hearer, provider: Any = "github", **changes: Any) -> Notices:
    fields: dict[str, Any] = {
        "provider": provider,
        "token": Secret(from_env="FORGE"),
        "api": hears.url,
        "target_url": "https://llmgw.example/status",
    }
    return Notices(commit_status=CommitStatus(**{**fields, **changes}))


@asynccontextmanager
async def at_work(
    folder: Path, hears: Hearer, notices: Notices, *, last_words: float = DEADLINE, **changes: Any
) -> AsyncIterator[tuple[Teller, Sender]]:
    made = sender(folder, {"FORGE": TOKEN, "CHAT": f"{hears.url}/c4n4ry-services"}, **changes)
    async with telling(notices, made, last_words=last_words) as teller:
        yield teller, made


def ended(**changes: Any) -> PassEnded:
    settled = changes.pop("settled", True)
    return PassEnded(last=last_pass(**changes), settled=settled)


FAILED = {
    "ended": "failed",
    "code": 1,
    "errors": (f"start chat: https://ann:pw@hub/x refused {TOKEN}", "and more"),
}


# ---- statuses of commits -----------------------------------------------------------------------------


def test_a_commit_is_shown_from_seen_to_served(tmp_path: Path) -> None:
    async def test() -> None:
        async with hearer() as hears, at_work(tmp_path, hears, status_at(hears)) as (teller, _):
            for event, state, text in (
                (HeadMoved(old=None, new=COMMIT), "pending", "Seen; a pass follows"),
                (PassBegan(commit=COMMIT, trigger="webhook", sentence="Start chat"), "pending", "Start chat"),
                (ended(settled=False), "pending", "Started chat-1f0c9a2b-0.1"),
                (ended(), "success", "Started chat-1f0c9a2b-0.1"),
            ):
                before = len(hears.heard)
                teller.told(event)
                heard = (await hears.until(lambda all_, n=before: len(all_) > n))[-1]  # type: ignore[misc]
                assert heard.path == f"/repos/ann/fleet/statuses/{COMMIT}"
                assert heard.headers["authorization"] == f"Bearer {TOKEN}"
                assert heard.body == {
                    "state": state,
                    "description": text,
                    "context": "llmgw/lab-0a1b2c3d",
                    "target_url": "https://llmgw.example/status",
                }
            teller.told(ended(sentence="Nothing was to be done"))
            teller.told(ended(ended="held", code=4))
            teller.told(ended(**FAILED))
            failed = (await hears.until(lambda all_: len(all_) > 4))[4]
            assert failed.body["state"] == "failure", (
                "success was not told twice, and waiting for others is no end"
            )
            assert failed.body["description"] == "start chat: https://***@hub/x refused ***"

    run(test)


def test_a_commit_that_can_not_be_applied_is_shown_as_such(tmp_path: Path) -> None:
    async def test() -> None:
        async with hearer() as hears, at_work(tmp_path, hears, status_at(hears, "forgejo")) as (teller, _):
            problem = "manifests/a.yaml:3:5: unknown field: " + "x" * 300
            teller.told(CommitRefused(commit=COMMIT, problems=(problem, "another")))
            heard = (await hears.until(lambda all_: len(all_) > 0))[0]
            assert heard.body["state"] == "failure"
            assert heard.body["description"].startswith("manifests/a.yaml:3:5: unknown field: xxx")
            assert len(heard.body["description"]) == 140
            assert heard.headers["authorization"] == f"token {TOKEN}"

    run(test)


def test_a_pass_that_no_commit_could_have_is_shown_as_an_error_and_no_failure(tmp_path: Path) -> None:
    async def test() -> None:
        async with hearer() as hears, at_work(tmp_path, hears, status_at(hears)) as (teller, _):
            told = ("pushing the record: this controller may not write llmgw/state",)
            teller.told(ended(ended="error", code=1, errors=told))
            heard = (await hears.until(lambda all_: len(all_) > 0))[0]
            assert (heard.body["state"], heard.body["description"]) == ("error", told[0])

    run(test)


def test_each_forge_gets_its_own_form() -> None:
    told = CommitState(commit=COMMIT, state="failure", description="two\nlines " + "x" * 200)
    for forge in ("gitea", "forgejo"):
        made = request(
            forge,
            told,
            api="https://git.example/api/v1/",
            repository="ann/fleet",
            context="llmgw/lab",
            token="t",
        )
        assert made.url == f"https://git.example/api/v1/repos/ann/fleet/statuses/{COMMIT}"
        assert made.body == {
            "state": "failure",
            "context": "llmgw/lab",
            "description": shortened(told.description),
        }
    lab = request(
        "gitlab",
        told,
        api="https://gitlab.com/api/v4",
        repository="group/sub/fleet",
        context="llmgw/lab",
        token="t",
    )
    assert lab.url == f"https://gitlab.com/api/v4/projects/group%2Fsub%2Ffleet/statuses/{COMMIT}"
    assert lab.headers == {"PRIVATE-TOKEN": "t"}
    assert (lab.body["state"], lab.body["name"]) == ("failed", "llmgw/lab")
    running = request(
        "gitlab", replace(told, state="pending"), api="x", repository="a/b", context="c", token="t"
    )
    assert running.body["state"] == "running"
    error = request("gitlab", replace(told, state="error"), api="x", repository="a/b", context="c", token="t")
    assert error.body["state"] == "failed", "GitLab has no other word"
    assert "PRIVATE-TOKEN" not in repr(lab), "the token shows in no traceback"
    assert len(shortened("ä" * 500)) == 140
    assert shortened("a\n  b") == "a b"


def test_a_commit_that_a_newer_one_overtook_is_shown_as_such_and_no_trouble(tmp_path: Path) -> None:
    async def test() -> None:
        newer = Commit("b" * 40)
        async with hearer() as hears, at_work(tmp_path, hears, status_at(hears)) as (teller, _):
            teller.told(HeadMoved(old=None, new=COMMIT))
            await hears.until(lambda all_: len(all_) == 1)
            teller.told(HeadMoved(old=COMMIT, new=newer))
            await hears.until(lambda all_: len(all_) == 3)
            teller.told(ended(ended="superseded", code=5))
            teller.told(ended(ended="interrupted", code=5))
            teller.told(ended(commit=newer))
            heard = await hears.until(lambda all_: len(all_) == 4)
        assert [(it.path[-4:], it.body["state"]) for it in heard] == [
            (COMMIT[-4:], "pending"),
            (COMMIT[-4:], "error"),
            ("bbbb", "pending"),
            ("bbbb", "success"),
        ]

    run(test)
    assert of_pass(last_pass(ended="superseded", code=5)) is None
    assert of_pass(last_pass(ended="interrupted", code=5)) is None


def test_while_a_commit_is_refused_the_one_that_is_kept_up_stays_as_it_was_shown(tmp_path: Path) -> None:
    async def test() -> None:
        wrong = Commit("b" * 40)
        async with hearer() as hears, at_work(tmp_path, hears, status_at(hears)) as (teller, _):
            teller.told(ended())
            teller.told(HeadMoved(old=COMMIT, new=wrong))
            await hears.until(lambda all_: len(all_) == 2)
            teller.told(CommitRefused(commit=wrong, problems=("a.yaml:1:1: no",)))
            teller.told(PassBegan(commit=COMMIT, trigger="watch", sentence="Start chat"))
            teller.told(ended(ended="invalid", code=1, errors=("a.yaml:1:1: no",)))
            await hears.until(lambda all_: len(all_) == 3)
            teller.told(ended(commit=wrong, ended="error", code=1))
            teller.told(ended(commit=wrong, sentence="Its signer is known now"))
            heard = await hears.until(lambda all_: len(all_) > 3 and all_[-1].body["state"] == "success")
        assert {it.body["state"] for it in heard if it.path.endswith(COMMIT)} == {"success"}
        assert heard[-1].body["description"] == "Its signer is known now"

    run(test)


def test_gitlab_is_not_told_a_state_twice_it_refuses_that(tmp_path: Path) -> None:
    async def test() -> None:
        async with hearer() as hears, at_work(tmp_path, hears, status_at(hears, "gitlab")) as (teller, _):
            teller.told(HeadMoved(old=None, new=COMMIT))
            await hears.until(lambda all_: len(all_) == 1)
            teller.told(PassBegan(commit=COMMIT, trigger="watch", sentence="Start chat"))
            teller.told(ended(settled=False))
            teller.told(ended())
            heard = await hears.until(lambda all_: len(all_) == 2)
            assert [it.body["state"] for it in heard] == ["running", "success"]

    run(test)


def test_what_is_not_configured_enough_is_told_when_it_begins(tmp_path: Path) -> None:
    async def test() -> None:
        status = CommitStatus(provider="gitea", token=Secret(from_env="FORGE"))
        with pytest.raises(InvalidError) as caught:
            async with telling(Notices(commit_status=status), sender(tmp_path, {}, repository="")):
                pass
        assert [str(it) for it in caught.value.problems] == [
            "notices.commitStatus lacks api, and nothing else says it: write `api:`",
            "notices.commitStatus lacks repository, and nothing else says it: write `repository:`",
        ]
        missing = Notices(webhooks=(Post(name="chat", url=Secret(from_file="/nowhere/at/all")),))
        with pytest.raises(StalledError, match="/nowhere/at/all"):
            async with telling(missing, sender(tmp_path, {})):
                pass
        no_address = Notices(webhooks=(Post(name="chat", url=Secret(from_env="CHAT")),))
        with pytest.raises(StalledError, match="fromEnv: CHAT holds is no address") as refused:
            async with telling(no_address, sender(tmp_path, {"CHAT": "c4n4ry-not-an-address"})):
                pass
        assert "c4n4ry" not in str(refused.value)

    run(test)


# ---- troubles ----------------------------------------------------------------------------------------


CHAT = Post(name="chat", url=Secret(from_env="CHAT"))


def test_a_trouble_is_told_when_it_comes_and_when_it_goes(tmp_path: Path) -> None:
    async def test() -> None:
        post = replace(CHAT, token=Secret(from_env="FORGE"))
        async with hearer() as hears, at_work(tmp_path, hears, Notices(webhooks=(post,))) as (teller, made):
            teller.told(ended())
            made.snapshots.change(status=STATUS)
            for _ in range(3):
                teller.told(ended())
            teller.told(ended(**FAILED))
            made.snapshots.change(status=CALM)
            teller.told(ended())
            heard = await hears.until(lambda all_: len(all_) == 4)
        assert [(it.body["event"], it.body["id"]) for it in heard] == [
            ("raised", "agent-lost/node/gpu02"),
            ("raised", "pass-failed"),
            ("cleared", "agent-lost/node/gpu02"),
            ("cleared", "pass-failed"),
        ]
        first = heard[0].body
        assert first["formatVersion"] == 1
        assert (first["severity"], first["node"], first["address"]) == ("critical", "gpu02", "node/gpu02")
        assert first["fleet"] == {"name": "lab-0a1b2c3d", "id": STATUS.fleet}
        assert heard[1].body["text"] == "start chat: https://***@hub/x refused ***\nand more"
        assert heard[0].headers["authorization"] == f"Bearer {TOKEN}"

    run(test)


def test_what_lasts_is_told_again_after_its_time_and_never_sooner() -> None:
    told = Told(severity=Severity.WARNING, every=timedelta(hours=4))
    trouble = of_alert(ALERT)

    def events(hours: float, *there: Trouble) -> list[str]:
        return [it.event for it in told.news(there, NOW + timedelta(hours=hours))]

    assert events(0, trouble) == ["raised"]
    assert events(1, replace(trouble, text="other words")) == []
    assert events(3.99, trouble) == []
    assert events(4, trouble) == ["again"]
    assert events(5, trouble) == []
    assert events(6) == ["cleared"]
    assert events(6) == []
    assert events(7, replace(trouble, severity=Severity.INFO)) == [], "less severe than it wants to know"
    assert events(8, replace(trouble, severity=Severity.WARNING)) == ["raised"]


def test_a_refused_commit_is_told_instead_of_the_pass_that_could_not_use_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with hearer() as hears, at_work(tmp_path, hears, Notices(webhooks=(CHAT,))) as (teller, _):
            teller.told(CommitRefused(commit=COMMIT, problems=("a.yaml:1:1: no",)))
            teller.told(ended(ended="invalid", code=1))
            teller.told(ended(ended="invalid", code=1))
            teller.told(HeadMoved(old=COMMIT, new=Commit("b" * 40)))
            teller.told(ended(commit=Commit("b" * 40)))
            heard = await hears.until(lambda all_: len(all_) == 2)
        assert [(it.body["event"], it.body["kind"]) for it in heard] == [
            ("raised", "commit-refused"),
            ("cleared", "commit-refused"),
        ]
        assert "a.yaml:1:1: no" in heard[0].body["text"]

    run(test)


def test_passes_that_could_do_their_work_are_no_trouble() -> None:
    assert of_pass(last_pass()) is None
    assert of_pass(last_pass(ended="held", code=4)) is None
    blocked = of_pass(last_pass(code=6, errors=tuple(f"model/m{number} is blocked" for number in range(9))))
    assert blocked is not None
    assert (blocked.id, blocked.severity) == ("pass-blocked", Severity.WARNING)
    assert blocked.text.endswith("and 4 more")
    assert lasting((ALERT,), None, None) == (of_alert(ALERT),)


def test_a_restart_tells_nothing_twice_and_forgets_no_end(tmp_path: Path) -> None:
    async def test() -> None:
        notices = Notices(webhooks=(CHAT,))
        async with hearer() as hears:
            loud = Snapshots(snapshot())
            async with at_work(tmp_path, hears, notices, snapshots=loud) as (teller, _):
                teller.told(ended())
                await hears.until(lambda all_: len(all_) == 1)
            async with at_work(tmp_path, hears, notices, snapshots=loud) as (teller, made):
                teller.told(ended())
                made.snapshots.change(status=CALM)
                teller.told(ended())
                heard = await hears.until(lambda all_: len(all_) == 2)
            assert [it.body["event"] for it in heard] == ["raised", "cleared"]
            assert (tmp_path / STATE_FILE).stat().st_mode & 0o777 == 0o600
            (tmp_path / STATE_FILE).write_text('{"told": {"chat": 3}}')
            async with at_work(tmp_path, hears, notices, snapshots=Snapshots(snapshot())) as (teller, _):
                teller.told(ended())
                await hears.until(lambda all_: len(all_) == 3)

    run(test)


def test_a_chat_gets_one_text_in_which_nothing_is_a_link_or_a_call(tmp_path: Path) -> None:
    async def test() -> None:
        post = replace(CHAT, format="slack", token=Secret(from_env="FORGE"), every=Duration(60))
        async with hearer() as hears, at_work(tmp_path, hears, Notices(webhooks=(post,))) as (teller, made):
            nasty = replace(ALERT, text="<!channel> @here <https://evil|x> & more")
            made.snapshots.change(status=replace(STATUS, alerts=(nasty,)))
            teller.told(ended())
            heard = (await hears.until(lambda all_: len(all_) == 1))[0]
        assert list(heard.body) == ["text"]
        assert heard.body["text"] == (
            "lab-0a1b2c3d · critical: node/gpu02: &lt;!channel&gt; @\u2060here &lt;https://evil|x&gt; &amp; more"
        )
        assert heard.headers["authorization"] == f"Bearer {TOKEN}"

    run(test)
    told = Telling(event="raised", trouble=replace(of_alert(ALERT), text="y" * 10_000, do="z"), at=NOW)
    assert len(slack_text("lab", told)) < 3100


# ---- servers that fail -------------------------------------------------------------------------------


async def _one(
    tmp_path: Path, counts: Counts, answers: list[int], expected: int, extra: str = "", **changes: Any
) -> list[Heard]:
    async with (
        hearer(answers, extra) as hears,
        at_work(tmp_path, hears, Notices(webhooks=(CHAT,)), counted=counts.notice, **changes) as (
            teller,
            made,
        ),
    ):
        made.snapshots.change(status=STATUS)
        teller.told(ended())
        heard = await hears.until(lambda all_: len(all_) >= expected)
        await asyncio.gather(*(box.drained(DEADLINE) for box in teller.boxes))
        return heard


@pytest.mark.parametrize(
    ("answers", "tries", "outcome"),
    [
        ([500, 502, 200], 3, "sent"),
        ([429, 200], 2, "sent"),
        ([401], 1, "failed"),
        ([403], 1, "failed"),
        ([404], 1, "failed"),
        ([302], 1, "failed"),
        ([503], TRIES, "failed"),
    ],
)
def test_what_may_pass_is_tried_again_and_what_may_not_is_not(
    answers: list[int], tries: int, outcome: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        counts = Counts()
        heard = await _one(tmp_path, counts, answers, tries)
        assert len(heard) == tries
        assert counts.notices == {("chat", outcome): 1}

    with caplog.at_level(logging.DEBUG, "llmgw"):
        run(test)
    told = [it.getMessage() for it in caplog.records if it.name.startswith("llmgw")]
    assert ("was not sent" in "\n".join(told)) == (outcome == "failed")
    assert "c4n4ry" not in "\n".join(told), "the address is a secret"


def test_a_server_says_itself_when_to_come_again(tmp_path: Path) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await _one(tmp_path, Counts(), [429, 200], 2, extra="Retry-After: 1\r\n")
        assert loop.time() - began >= 1, "it asked for a second"

    run(test)


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        ("7", 7),
        ("9" * 30, 300),
        ("", 0),
        ("soon", 0),
        ("-3", 0),
        ("Mon, 04 May 2026 12:00:20 GMT", 20),
        ("Mon, 04 May 1926 12:00:20 GMT", 0),
    ],
)
def test_how_long_it_asks_for_is_believed_within_reason(asked: str, granted: float) -> None:
    assert _seconds(asked, NOW) == granted


def test_nobody_there_and_nobody_who_answers_hold_nothing_up(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            hearer([HANGS]) as hangs,
            at_work(tmp_path, hangs, Notices(webhooks=(CHAT,)), last_words=0.1) as (teller, made),
        ):
            for number in range(QUEUED * 3):
                made.snapshots.change(status=STATUS if number % 2 else CALM)
                teller.told(ended())  # returns at once, or this test never ends
            await hangs.until(lambda all_: len(all_) == 1)
            assert len(teller.boxes[0]._letters) <= QUEUED
        gone = {"FORGE": TOKEN, "CHAT": "http://127.0.0.1:1/nobody-is-there"}
        counts = Counts()
        made = sender(tmp_path, gone, counted=counts.notice)
        async with telling(Notices(webhooks=(replace(CHAT, name="other"),)), made) as teller:
            made.snapshots.change(status=STATUS)
            teller.told(ended())
            await teller.boxes[0].drained(DEADLINE)
        assert counts.notices == {("other", "failed"): 1}

    run(test)


def test_a_secret_that_vanishes_meanwhile_costs_one_notice_and_no_more(tmp_path: Path) -> None:
    async def test() -> None:
        counts = Counts()
        file = tmp_path / "url"
        async with hearer() as hears:
            file.write_text(f"{hears.url}/first")
            post = replace(CHAT, url=Secret(from_file=str(file)))
            async with at_work(tmp_path, hears, Notices(webhooks=(post,)), counted=counts.notice) as (
                teller,
                made,
            ):
                file.unlink()
                made.snapshots.change(status=STATUS)
                teller.told(ended())
                await teller.boxes[0].drained(DEADLINE)
                assert counts.notices == {("chat", "failed"): 1}
                file.write_text(f"{hears.url}/second")
                made.snapshots.change(status=CALM)
                teller.told(ended())
                heard = await hears.until(lambda all_: len(all_) == 1)
                assert heard[0].path == "/second", "read when it is used"

    run(test)
