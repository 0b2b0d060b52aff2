"""Whose signatures count: as the controller is set up, or as the commit applied last says; never as the examined one says."""

import asyncio
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from llmgw.controller.opening import opened
from llmgw.controller.settings import load_settings
from llmgw.model.ids import Commit, FleetId
from llmgw.model.problems import InvalidError, StalledError
from llmgw.model.record import Record
from llmgw.redaction import Redactor
from tests.e2e.githosts import git

UNSIGNED = "it is not signed"


class Room:
    """A fleet's repository with its llmgw.yaml in it, and two people with keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.top = folder / "fleet"
        self.top.mkdir()
        git("init", "--quiet", "--initial-branch=main", str(self.top))
        self.keys = {name: self._key(name) for name in ("ann", "ben")}

    def _key(self, name: str) -> Path:
        path = self.folder / name
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
        subprocess.run(words, check=True, capture_output=True)
        return path

    def allows(self, name: str) -> str:
        return f"{name}@example.org {' '.join(self.keys[name].with_suffix('.pub').read_text().split()[:2])}"

    def commit(self, files: Mapping[str, str], *, by: str | None = None) -> Commit:
        for name, text in files.items():
            (self.top / name).parent.mkdir(parents=True, exist_ok=True)
            (self.top / name).write_text(text)
        git("add", "--all", at=self.top)
        signing = ("-c", "gpg.format=ssh", "-c", f"user.signingKey={self.keys[by]}") if by else ()
        git(
            *signing,
            "commit",
            "--quiet",
            "--allow-empty",
            "-m",
            "Change",
            *(("-S",) if by else ()),
            at=self.top,
        )
        return Commit(git("rev-parse", "HEAD", at=self.top))

    def use(
        self, commit: Commit, *, applied: Commit | None = None, config: str | None = None, **variables: str
    ) -> str:
        """Who signed it, as everything that reads its manifests is told first."""
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.folder), **variables}
        settings = load_settings(flags={}, environ=environ, cwd=self.top, config=config)

        async def main() -> str:
            async with opened(settings, environ, redactor=Redactor()) as found:
                stored = await found.store.read()
                if applied is not None and (stored.record is None or stored.record.commit != applied):
                    record = Record(fleet=FleetId("f1"), key_id="0123abcd", serial=1, commit=applied)
                    await found.store.write(record, after=stored.version, message="A pass\n")
                await found.mirror.newest()
                return (await found.fleet.source.desired(commit, key_id="")).signer

        return asyncio.run(main())


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def verify(*signers: str, mode: str = "head") -> str:
    lines = "".join(f"    {line}\n" for line in signers)
    return f"verify:\n  mode: {mode}\n  allowedSigners: |\n{lines}"


def test_nobody_has_to_sign_where_nothing_says_so(room: Room) -> None:
    assert room.use(room.commit({})) == ""


def test_a_commit_can_not_let_itself_in(room: Room) -> None:
    first = room.commit({"llmgw.yaml": verify(room.allows("ann"))}, by="ann")
    for attack in (verify(room.allows("ben")), "verify: {mode: none}\n", "# nothing\n"):
        bad = room.commit({"llmgw.yaml": attack}, by="ben")
        with pytest.raises(
            StalledError, match=rf"verify in llmgw.yaml of {first[:12]}, the commit applied last"
        ):
            room.use(bad, applied=first)
        git("reset", "--quiet", "--hard", first, at=room.top)
    good = room.commit({"llmgw.yaml": verify(room.allows("ben"))}, by="ann")
    assert room.use(good, applied=first).startswith("ann@example.org")
    by_ben = room.commit({}, by="ben")
    assert room.use(by_ben, applied=good).startswith("ben@example.org")


def test_before_the_first_apply_what_lies_in_the_work_tree_counts(room: Room) -> None:
    room.commit({"llmgw.yaml": verify(room.allows("ann"))})
    with pytest.raises(StalledError, match=UNSIGNED):
        room.use(room.commit({}))
    assert room.use(room.commit({}, by="ann"))


def test_what_the_controller_is_told_goes_before_what_any_commit_says(room: Room, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(verify(room.allows("ben")))
    first = room.commit({"llmgw.yaml": verify(room.allows("ann"))}, by="ann")
    by_ann, by_ben = room.commit({}, by="ann"), room.commit({}, by="ben")
    for told in ({"config": str(own)}, {"LLMGW_VERIFY": f"{{allowedSigners: '{room.allows('ben')}'}}"}):
        assert room.use(by_ben, applied=first, **told)
        with pytest.raises(StalledError, match=r"verify in (.*own\.yaml:1:1|LLMGW_VERIFY) asks"):
            room.use(by_ann, applied=first, **told)
    assert room.use(by_ann, applied=first, LLMGW_VERIFY="{mode: none}") == ""


def test_signers_may_lie_in_a_file_of_the_applied_commit_or_of_the_controller(
    room: Room, tmp_path: Path
) -> None:
    keys = {
        "keys/signers": f"{room.allows('ann')}\n",
        "llmgw.yaml": "verify: {allowedSigners: keys/signers}\n",
    }
    first = room.commit(keys, by="ann")
    bad = room.commit({"keys/signers": f"{room.allows('ben')}\n"}, by="ben")
    with pytest.raises(StalledError, match="not among the allowed"):
        room.use(bad, applied=first)
    (tmp_path / "signers").write_text(room.allows("ben"))
    assert room.use(bad, applied=first, LLMGW_VERIFY="{allowedSigners: ~/signers}")
    with pytest.raises(
        StalledError, match=r"reading /nowhere, which verify in LLMGW_VERIFY names: No such file"
    ):
        room.use(bad, applied=first, LLMGW_VERIFY="{allowedSigners: /nowhere}")


def test_what_was_applied_already_can_be_looked_at_whoever_signed_it(room: Room) -> None:
    first = room.commit({})
    told = f"{{allowedSigners: '{room.allows('ann')}'}}"
    assert room.use(first, applied=first, LLMGW_VERIFY=told) == ""
    with pytest.raises(StalledError, match=UNSIGNED):
        room.use(room.commit({}), applied=first, LLMGW_VERIFY=told)


def test_every_commit_since_the_last_applied_one_may_be_asked_to_be_signed(room: Room) -> None:
    told = f"{{mode: all-since-applied, allowedSigners: '{room.allows('ann')}'}}"
    first = room.commit({}, by="ann")
    between = room.commit({})
    head = room.commit({}, by="ann")
    with pytest.raises(StalledError, match=between[:12]):
        room.use(head, applied=first, LLMGW_VERIFY=told)


@pytest.mark.parametrize(
    "text",
    [
        "{mode: head}",
        "{mode: some, allowedSigners: x}",
        "yes",
        "{allowedSigner: x}",
        "[",
        "{mode: head, pgpKeyring: 1}",
    ],
)
def test_settings_that_would_let_in_anybody_are_refused(room: Room, text: str) -> None:
    commit = room.commit({})
    with pytest.raises(InvalidError, match="LLMGW_VERIFY"):
        room.use(commit, LLMGW_VERIFY=text)
