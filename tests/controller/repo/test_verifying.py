"""Who signed a commit, by real SSH and PGP signatures."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llmgw.controller.repo import verifying
from llmgw.controller.repo.mirror import Mirror
from llmgw.controller.repo.objects import ObjectStore
from llmgw.controller.repo.remote import remote_of
from llmgw.controller.repo.verifying import Mode, Policy
from llmgw.model.ids import Commit
from llmgw.model.problems import StalledError


@dataclass(frozen=True)
class Key:
    """Somebody's SSH key."""

    path: Path

    @property
    def public(self) -> str:
        return " ".join(self.path.with_suffix(".pub").read_text().split()[:2])

    def allowed_as(self, name: str, options: str = "") -> str:
        return f"{name} {options}{self.public}\n"


@pytest.fixture
def make_key(tmp_path: Path) -> Callable[[str], Key]:
    def make(name: str) -> Key:
        path = tmp_path / f"key-{name}"
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
        subprocess.run(words, check=True, capture_output=True)
        return Key(path)

    return make


@pytest.fixture
def ann(make_key: Callable[[str], Key]) -> Key:
    return make_key("ann")


@pytest.fixture
def ben(make_key: Callable[[str], Key]) -> Key:
    return make_key("ben")


@pytest.fixture
def objects(make_objects: Any) -> ObjectStore:
    return make_objects()  # type: ignore[no-any-return]


def commit(work: Any, message: str, key: Key | None = None) -> Commit:
    signing = () if key is None else ("-c", "gpg.format=ssh", "-c", f"user.signingKey={key.path}")
    work.git(*signing, "commit", "--quiet", "--allow-empty", "--message", message, *(("-S",) if key else ()))
    return Commit(work.git("rev-parse", "HEAD"))


def asked(mode: Mode, *lines: str, pgp: bytes | None = None) -> Policy:
    signers = "".join(lines).encode() if lines else None
    return Policy(mode=mode, allowed_signers=signers, pgp_keyring=pgp, where="verify in llmgw.yaml")


def vouched(
    objects: ObjectStore, work: Any, policy: Policy, commit: Commit, applied: Commit | None = None
) -> str:
    async def main() -> str:
        mirror = Mirror(objects, remote_of(str(work.path), base=Path("/")))
        await mirror.newest()
        return await verifying.vouched(objects, policy, commit, applied=applied)

    return asyncio.run(main())


def refused(
    objects: ObjectStore, work: Any, policy: Policy, commit: Commit, applied: Commit | None = None
) -> str:
    with pytest.raises(StalledError) as caught:
        vouched(objects, work, policy, commit, applied)
    return str(caught.value)


def test_a_signature_by_an_allowed_key_is_told_with_its_signer(
    objects: ObjectStore, work: Any, ann: Key, ben: Key
) -> None:
    made = commit(work, "Serve chat", ann)
    policy = asked(Mode.HEAD, ben.allowed_as("ben@example.org"), ann.allowed_as("ann@example.org"))
    signer = vouched(objects, work, policy, made)
    assert signer.startswith("ann@example.org with SHA256:")


def test_what_is_not_signed_is_refused_with_what_to_do(objects: ObjectStore, work: Any, ann: Key) -> None:
    made = commit(work, "Serve chat")
    told = refused(objects, work, asked(Mode.HEAD, ann.allowed_as("ann@example.org")), made)
    assert told.startswith(
        f"commit {made[:12]} «Serve chat» of Ann <ann@example.org>: it is not signed. verify in llmgw.yaml"
    )
    assert "nothing was changed; sign it (git commit --amend --no-edit -S)" in told


def test_a_key_that_nobody_let_in_is_refused(objects: ObjectStore, work: Any, ann: Key, ben: Key) -> None:
    made = commit(work, "Serve chat", ben)
    told = refused(objects, work, asked(Mode.HEAD, ann.allowed_as("ann@example.org")), made)
    assert "it is signed with SHA256:" in told
    assert "which is not among the allowed ones" in told


def test_a_key_counts_only_in_its_time(objects: ObjectStore, work: Any, ann: Key) -> None:
    made = commit(work, "Serve chat", ann)
    old = ann.allowed_as("ann@example.org", 'valid-before="20200101" ')
    assert "or was not at that time" in refused(objects, work, asked(Mode.HEAD, old), made)


def test_a_key_for_other_purposes_does_not_count(objects: ObjectStore, work: Any, ann: Key) -> None:
    made = commit(work, "Serve chat", ann)
    for_files = ann.allowed_as("ann@example.org", 'namespaces="file" ')
    assert "or its key is not allowed for commits" in refused(
        objects, work, asked(Mode.HEAD, for_files), made
    )


def test_a_signature_of_other_content_is_refused(objects: ObjectStore, work: Any, ann: Key) -> None:
    made = commit(work, "Serve chat", ann)
    raw = work.git("cat-file", "commit", made).replace("Serve chat", "Serve mine")
    forged = Commit(work.git("hash-object", "-t", "commit", "-w", "--stdin", stdin=f"{raw}\n".encode()))
    work.git("update-ref", "refs/heads/main", forged)
    told = refused(objects, work, asked(Mode.HEAD, ann.allowed_as("ann@example.org")), forged)
    assert "its signature does not fit its content" in told


def test_what_came_in_between_is_examined_where_that_is_asked_for(
    objects: ObjectStore, work: Any, ann: Key
) -> None:
    applied = Commit(work.git("rev-parse", "HEAD"))
    bad = commit(work, "Nobody signed this")
    head = commit(work, "Serve chat", ann)
    line = ann.allowed_as("ann@example.org")
    assert vouched(objects, work, asked(Mode.HEAD, line), head, applied)
    told = refused(objects, work, asked(Mode.ALL_SINCE_APPLIED, line), head, applied)
    assert f"commit {bad[:12]} «Nobody signed this»" in told
    assert applied[:12] not in told
    assert vouched(objects, work, asked(Mode.ALL_SINCE_APPLIED, line), head, bad)
    assert vouched(objects, work, asked(Mode.ALL_SINCE_APPLIED, line), head), (
        "before the first apply: the commit itself"
    )


def test_a_signed_merge_brings_in_what_nobody_signed_only_where_the_head_is_enough(
    objects: ObjectStore, work: Any, ann: Key
) -> None:
    applied = Commit(work.git("rev-parse", "HEAD"))
    work.git("switch", "--quiet", "--create", "side")
    bad = commit(work, "On a side branch")
    work.git("switch", "--quiet", "main")
    signing = ("-c", "gpg.format=ssh", "-c", f"user.signingKey={ann.path}")
    work.git(*signing, "merge", "--quiet", "--no-ff", "-S", "--message", "Merge", "side")
    head = Commit(work.git("rev-parse", "HEAD"))
    line = ann.allowed_as("ann@example.org")
    assert vouched(objects, work, asked(Mode.HEAD, line), head, applied)
    assert bad[:12] in refused(objects, work, asked(Mode.ALL_SINCE_APPLIED, line), head, applied)


def test_where_the_applied_commit_is_gone_everything_is_examined(
    objects: ObjectStore, work: Any, ann: Key
) -> None:
    head = commit(work, "Serve chat", ann)
    policy = asked(Mode.ALL_SINCE_APPLIED, ann.allowed_as("ann@example.org"))
    assert "«First»" in refused(objects, work, policy, head, Commit("1" * 40))


def test_going_back_is_examined_as_well(objects: ObjectStore, work: Any, ann: Key) -> None:
    old = Commit(work.git("rev-parse", "HEAD"))
    applied = commit(work, "Serve chat", ann)
    policy = asked(Mode.ALL_SINCE_APPLIED, ann.allowed_as("ann@example.org"))
    assert "it is not signed" in refused(objects, work, policy, old, applied)


def test_the_users_own_keys_and_settings_do_not_count(
    objects: ObjectStore, work: Any, ann: Key, ben: Key, tmp_path: Path
) -> None:
    allowed = tmp_path / "home" / "allowed"
    allowed.write_text(ben.allowed_as("ben@example.org"))
    (tmp_path / "home" / ".gitconfig").write_text(f'[gpg "ssh"]\n\tallowedSignersFile = {allowed}\n')
    made = commit(work, "Serve chat", ben)
    assert "not among the allowed" in refused(
        objects, work, asked(Mode.HEAD, ann.allowed_as("ann@example.org")), made
    )
    mirror = objects.path / "config"
    mirror.write_text(
        f'{mirror.read_text()}[gpg "ssh"]\n\tallowedSignersFile = {allowed}\n\tprogram = true\n'
    )
    assert "not among the allowed" in refused(
        objects, work, asked(Mode.HEAD, ann.allowed_as("ann@example.org")), made
    )


# ---- PGP ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pgp() -> Iterator[Path]:
    """Somebody's keyring with two keys, ann's and ben's. Its sockets want a short path."""
    if shutil.which("gpg") is None:
        pytest.skip("gpg is not installed: signatures by PGP keys were not proved")
    with tempfile.TemporaryDirectory(prefix="gpg-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        for name in ("ann", "ben"):
            gpg(
                home,
                "--passphrase",
                "",
                "--quick-gen-key",
                f"{name} <{name}@example.org>",
                "ed25519",
                "sign",
                "never",
            )
        try:
            yield home
        finally:
            subprocess.run(
                ["gpgconf", "--homedir", folder, "--kill", "all"], check=False, capture_output=True
            )


def gpg(home: Path, *words: str) -> bytes:
    command = ["gpg", "--homedir", str(home), "--batch", "--pinentry-mode", "loopback", *words]
    return subprocess.run(command, check=True, capture_output=True, timeout=60).stdout


def commit_pgp(work: Any, home: Path, who: str) -> Commit:
    program = home / "signing-gpg"
    program.write_text(f'#!/bin/sh\nexec gpg --homedir {home} --batch --pinentry-mode loopback "$@"\n')
    program.chmod(0o700)
    settings = ("-c", f"gpg.program={program}", "-c", f"user.signingKey={who}@example.org")
    work.git(*settings, "commit", "--quiet", "--allow-empty", "-S", "--message", f"By {who}")
    return Commit(work.git("rev-parse", "HEAD"))


def test_pgp_keys_count_when_they_are_in_the_keyring(objects: ObjectStore, work: Any, pgp: Path) -> None:
    by_ann, by_ben = commit_pgp(work, pgp, "ann"), commit_pgp(work, pgp, "ben")
    for keyring in (gpg(pgp, "--armor", "--export", "ann@"), gpg(pgp, "--export", "ann@")):
        policy = asked(Mode.HEAD, pgp=keyring)
        assert vouched(objects, work, policy, by_ann).startswith("ann <ann@example.org> with ")
        assert "not among the allowed ones" in refused(objects, work, policy, by_ben)


def test_each_kind_of_key_counts_only_where_it_is_let_in(
    objects: ObjectStore, work: Any, pgp: Path, ann: Key
) -> None:
    by_pgp, by_ssh = commit_pgp(work, pgp, "ann"), commit(work, "By SSH", ann)
    keyring = gpg(pgp, "--armor", "--export", "ann@")
    line = ann.allowed_as("ann@example.org")
    refused(objects, work, asked(Mode.HEAD, line), by_pgp)
    refused(objects, work, asked(Mode.HEAD, pgp=keyring), by_ssh)
    both = asked(Mode.HEAD, line, pgp=keyring)
    assert vouched(objects, work, both, by_pgp)
    assert vouched(objects, work, both, by_ssh)


def test_a_keyring_that_is_none_is_named(objects: ObjectStore, work: Any, pgp: Path) -> None:
    made = commit(work, "Serve chat")
    told = refused(objects, work, asked(Mode.HEAD, pgp=b"no keys at all\n"), made)
    assert "reading the PGP keys of verify in llmgw.yaml" in told
    assert "gpg --armor --export" in told
