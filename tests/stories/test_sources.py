"""Where manifests come from: a host that wants a token, commits that must be signed, and a host that is away."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.githosts import HttpsHost, https_host
from tests.stories.stage import Stage, model, node

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HttpsHost]:
    with https_host(tmp_path) as host:
        yield host


class Team:
    """People who push from their own clones to a host, and a controller that knows it by address only."""

    def __init__(self, stage: Stage, host: HttpsHost) -> None:
        self.stage = stage
        self.host = host
        self.folder = stage.folder / "elsewhere"
        self.folder.mkdir()
        stage.git("remote", "add", "origin", str(host.repositories.path()))
        self.keys = {name: self._key(name) for name in ("ann", "ben")}
        signers = stage.folder / "allowed-signers"
        signers.write_text(f"ann@example.org {self.keys['ann'].with_suffix('.pub').read_text()}")
        settings = [*host.settings().items(), ("LLMGW_BRANCH", "main")]
        self.environment = {**dict(settings), "LLMGW_VERIFY": f"{{mode: head, allowedSigners: {signers}}}"}

    def _key(self, name: str) -> Path:
        path = self.stage.folder / f"{name}-signs"
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
        subprocess.run(words, check=True, capture_output=True)
        return path

    def push(self, message: str, *, by: str | None = None, **files: str | None) -> str:
        self.stage.commit(message, **files)
        if by is not None:
            signing = ("-c", "gpg.format=ssh", "-c", f"user.signingKey={self.keys[by]}")
            self.stage.git(*signing, "commit", "--quiet", "--amend", "--allow-empty", "--no-edit", "-S")
        self.stage.git("push", "--quiet", "--force", "origin", "main")
        return self.stage.git("rev-parse", "HEAD").strip()

    def llmgw(self, *words: str, expect: int = 0, besides: Mapping[str, str] | None = None) -> str:
        ran = self.stage.llmgw(*words, golden=False, **{**self.environment, **(besides or {})})
        assert ran.code == expect, f"llmgw {' '.join(words)} -> {ran.code}\n{ran.out}\n{ran.err}"
        assert self.host.token not in ran.out + ran.err
        return ran.out + ran.err

    def trailers(self) -> dict[str, str]:
        command = [
            "git",
            "--git-dir",
            str(self.host.repositories.path()),
            "log",
            "-1",
            "--format=%(trailers:only,unfold)",
        ]
        said = subprocess.run([*command, "llmgw/state"], check=True, capture_output=True, text=True).stdout
        return dict(line.split(": ", 1) for line in said.splitlines() if line)


@pytest.fixture
def team(stage: Stage, host: HttpsHost) -> Team:
    return Team(stage, host)


def test_only_commits_that_are_signed_by_somebody_let_in_are_used(stage: Stage, team: Team) -> None:
    first = team.push("Serve chat", by="ann", node=node(stage), chat=model())
    assert f"commit {first[:10]}, signed by ann@example.org with SHA256:" in team.llmgw("plan")
    team.llmgw("apply", "--yes")
    assert team.trailers()["Llmgw-Signer"].startswith("ann@example.org with SHA256:")
    assert f"commit {first[:10]} signed by ann@example.org" in team.llmgw("status")
    engines = {it.pid for it in stage.engines()}

    unsigned = team.push("Two of them", chat=model(replicas=2))
    for command in (("plan",), ("apply", "--yes")):
        told = team.llmgw(*command, expect=1)
        assert f"commit {unsigned[:12]} «Two of them» of Ann <ann@example.org>: it is not signed" in told
        assert "verify in LLMGW_VERIFY" in told
    team.push("Two of them", by="ben", chat=model(replicas=2))
    assert "not among the allowed ones" in team.llmgw("apply", "--yes", expect=1)
    assert {it.pid for it in stage.engines()} == engines
    told = team.llmgw("status")
    assert first[:10] in told, "what runs can be looked at whatever was pushed"
    assert "is not applied and can't be" in told


def test_a_force_push_is_followed_and_told_but_not_back_to_an_older_commit(stage: Stage, team: Team) -> None:
    first = team.push("Serve chat", by="ann", node=node(stage), chat=model())
    team.llmgw("apply", "--yes")
    stage.git("update-ref", "-d", "HEAD")
    rewritten = team.push("Two of them", by="ann", chat=model(replicas=2))
    assert f"commit {rewritten[:12]} does not come after {first[:12]}" in team.llmgw("apply", "--yes")
    assert len(stage.engines()) == 2
    assert team.trailers()["Llmgw-Diverged-From"] == first
    assert f"(history diverged from {first[:10]})" in team.llmgw("history")

    team.push("Three of them", by="ann", chat=model(replicas=3))
    team.llmgw("apply", "--yes")
    stage.git("push", "--quiet", "--force", "origin", f"{rewritten}:main")
    assert "--allow-rollback" in team.llmgw("apply", "--yes", expect=1)
    assert len(stage.engines()) == 3, "a host that answers from an older copy does the same"
    assert f"commit {rewritten[:10]}" in team.llmgw("plan", "--allow-rollback")


def test_while_the_host_is_away_a_commit_can_be_planned_and_nothing_is_risked(
    stage: Stage, team: Team
) -> None:
    team.push("Serve chat", by="ann", node=node(stage), chat=model())
    team.llmgw("apply", "--yes")
    second = team.push("Two of them", by="ann", chat=model(replicas=2))
    team.llmgw("plan")
    engines = {it.pid for it in stage.engines()}
    team.host.down()
    told = team.llmgw("plan", "--commit", second)
    assert "model/chat" in told
    assert "the record is that of serial 1, as it was read last" in told
    told = team.llmgw("status")
    assert "Note: the record is that of serial 1, as it was read last" in told
    assert f"Newest commit {second[:10]} of main (Two of them" in told
    told = team.llmgw("apply", "--yes", "--commit", second, expect=1)
    assert "nothing was changed" in told
    assert {it.pid for it in stage.engines()} == engines


def test_with_the_record_elsewhere_a_commit_can_be_applied_while_the_host_is_away(
    stage: Stage, team: Team
) -> None:
    state = stage.folder / "state.git"
    stage.git("init", "--quiet", "--bare", str(state))
    elsewhere = {"LLMGW_STATE_REPO": str(state)}
    old = team.push("Serve chat", by="ann", node=node(stage), chat=model())
    team.push("Two of them", by="ann", chat=model(replicas=2))
    team.llmgw("apply", "--yes", besides=elsewhere)
    assert len(stage.engines()) == 2
    team.host.down()
    team.llmgw("apply", "--yes", "--commit", old, "--allow-rollback", besides=elsewhere)
    assert len(stage.engines()) == 1
