"""Repositories on hosts: behind https with a token, behind ssh with a deploy key and pinned host keys."""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw.clock import FakeClock
from llmgw.controller.nodes.ssh import hostkeys
from llmgw.controller.repo.access import USER, Access, Pins, Token
from llmgw.controller.repo.git import Git, GitEnvironment, How
from llmgw.controller.repo.mirror import Mirror
from llmgw.controller.repo.objects import ObjectStore
from llmgw.controller.repo.records import RecordError
from llmgw.controller.repo.remote import remote_of
from llmgw.controller.repo.state_branch import GitRecordStore
from llmgw.model.ids import FleetId
from llmgw.model.problems import RetryError, StalledError
from llmgw.model.record import Record
from llmgw.model.struct import replace
from llmgw.redaction import Redactor
from tests.e2e.githosts import HttpsHost, SshHost, git
from tests.e2e.githosts import https_host as serve_https
from tests.e2e.githosts import ssh_host as serve_ssh

FILES = {"manifests/a.yaml": "a: 1\n", "README.md": "A fleet.\n"}


@pytest.fixture
def https(tmp_path: Path) -> Iterator[HttpsHost]:
    with serve_https(tmp_path) as host:
        yield host


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[SshHost]:
    with serve_ssh(tmp_path) as host:
        yield host


@pytest.fixture
def told() -> list[str]:
    return []


Open = Callable[..., tuple[Mirror, GitRecordStore]]


@pytest.fixture
def open_repository(tmp_path: Path, clock: FakeClock, told: list[str]) -> Open:
    """What the controller has of a repository: reader and writer."""

    def make(
        url: str, access: Access, *, state: str | None = None, **rest: Any
    ) -> tuple[Mirror, GitRecordStore]:
        environment = GitEnvironment(path=os.environ["PATH"], home=str(tmp_path))
        runner = Git(environment, redact=Redactor(["t0ken-of-the-fleet"]), access=access)
        objects = ObjectStore(
            tmp_path / "state", git=runner, clock=clock, holder="ann@box", told=told.append, **rest
        )
        remote = remote_of(url, base=tmp_path)
        state_remote = remote_of(state, base=tmp_path) if state else remote
        store = GitRecordStore(objects, state_remote, ref="llmgw/state", author="ann@box", clock=clock)
        return Mirror(objects, remote), store

    return make


def by_token(host: HttpsHost, value: Callable[[], str] | None = None, *, user: str = USER) -> Access:
    """For its repository, and for one that it has not."""
    token = Token(value=value or (lambda: host.token), user=user)
    return Access(tokens={host.url(): token, host.url("gone"): token}, ca_file=host.ca)


def by_key(host: SshHost, folder: Path, *, keys: tuple[str, ...] | None = None) -> Access:
    lines = host.host_keys if keys is None else keys
    pins = Pins(
        keys=tuple(map(hostkeys.parse, lines)),
        where="llmgw.yaml:3:1",
        file=folder / "state" / "git_host_keys",
    )
    return Access(identity=host.identity, pins=pins)


def record(serial: int = 1) -> Record:
    return Record(fleet=FleetId("f1"), serial=serial, key_id="0123abcd")


def read_and_write(mirror: Mirror, store: GitRecordStore) -> bytes:
    """Everything a pass does with a repository."""

    async def all_of_it() -> bytes:
        tree = await mirror.tree(await mirror.newest())
        stored = await store.read()
        await store.write(
            record((stored.record or record(0)).serial + 1), after=stored.version, message="A pass\n"
        )
        return tree.files["manifests/a.yaml"]

    return asyncio.run(all_of_it())


# ---- https -------------------------------------------------------------------------------------------------


def test_a_token_opens_an_https_host_for_reading_and_writing(https: HttpsHost, open_repository: Open) -> None:
    https.repositories.push(FILES)
    mirror, store = open_repository(https.url(), by_token(https))
    assert read_and_write(mirror, store) == b"a: 1\n"
    assert read_and_write(mirror, store) == b"a: 1\n"
    assert git("log", "--format=%s", "llmgw/state", at=https.repositories.path()) == "A pass\nA pass"
    assert any("git-receive-pack" in it.line and it.allowed for it in https.requests)


def test_a_token_stands_in_no_argument_variable_or_file(https: HttpsHost, tmp_path: Path) -> None:
    """Git itself is replaced by a program that shows all it was given, and what its helper would answer."""
    program = tmp_path / "pretended-git"
    program.write_text(
        "#!/bin/sh\n"
        'env; echo "$@"\n'
        'for n in $(seq 0 30); do eval "key=\\$GIT_CONFIG_KEY_$n; value=\\$GIT_CONFIG_VALUE_$n"\n'
        'case "$key" in credential.https*) echo "-- $key"; sh -c "${value#!} get"; sh -c "${value#!} erase";; esac; done\n'
    )
    program.chmod(0o700)
    runner = Git(
        GitEnvironment(path=os.environ["PATH"]), binary=str(program), access=by_token(https, user="ann")
    )
    remote = remote_of(https.url(), base=tmp_path)
    text = asyncio.run(runner.run("ls-remote", doing="x", how=How(remote=remote, ok=frozenset({0, 1})))).text
    given, _, answered = text.partition(f"-- credential.https://localhost:{https.port}.helper\n")
    assert https.token not in given
    assert answered == f"username=ann\npassword={https.token}\n"


def test_a_new_token_counts_at_once(https: HttpsHost, open_repository: Open) -> None:
    https.repositories.push(FILES)
    tokens = ["t0ken-of-the-fleet"]
    mirror, _ = open_repository(https.url(), by_token(https, lambda: tokens[-1]))
    asyncio.run(mirror.newest())
    https.token = "another-t0ken"
    with pytest.raises(StalledError, match=r"Authentication failed.*give .*the token \(token\) the right"):
        asyncio.run(mirror.newest())
    tokens.append("another-t0ken")
    asyncio.run(mirror.newest())


def test_without_a_token_the_error_says_how_to_name_one(https: HttpsHost, open_repository: Open) -> None:
    mirror, _ = open_repository(https.url(), replace(by_token(https), tokens={}))
    with pytest.raises(StalledError, match=r"could not read Username.*the token \(token\)"):
        asyncio.run(mirror.newest())


def test_a_host_may_want_a_certain_user_beside_the_token(tmp_path: Path, open_repository: Open) -> None:
    with serve_https(tmp_path, user="x-token-auth") as host:
        host.repositories.push(FILES)
        with pytest.raises(StalledError, match="Authentication failed"):
            asyncio.run(open_repository(host.url(), by_token(host))[0].newest())
        asyncio.run(open_repository(host.url(), by_token(host, user="x-token-auth"))[0].newest())


def test_a_token_goes_to_its_own_host_only(https: HttpsHost, tmp_path: Path, open_repository: Open) -> None:
    https.repositories.push(FILES)
    with serve_https(tmp_path / "other") as other:
        both = tmp_path / "both.pem"
        both.write_text(https.ca.read_text() + other.ca.read_text())
        mirror, store = open_repository(
            https.url(), replace(by_token(https), ca_file=both), state=other.url()
        )
        asyncio.run(mirror.newest())
        with pytest.raises(StalledError):
            asyncio.run(store.read())
        https.elsewhere = other.url().removesuffix("/fleet.git")
        with pytest.raises(StalledError):
            asyncio.run(mirror.newest())
        assert len(other.requests) >= 2
        assert not any(it.allowed for it in other.requests)


def test_the_record_may_have_a_host_and_a_token_of_its_own(
    https: HttpsHost, tmp_path: Path, open_repository: Open
) -> None:
    https.repositories.push(FILES)
    with serve_https(tmp_path / "other", user="recorder") as other:
        both = tmp_path / "both.pem"
        both.write_text(https.ca.read_text() + other.ca.read_text())
        other.token = "t0ken-of-the-record"
        tokens = {
            **by_token(https).tokens,
            **by_token(other, lambda: "t0ken-of-the-record", user="recorder").tokens,
        }
        access = Access(tokens=tokens, ca_file=both)
        mirror, store = open_repository(https.url(), access, state=other.url())
        assert read_and_write(mirror, store) == b"a: 1\n"
        assert git("log", "--format=%s", "llmgw/state", at=other.repositories.path()) == "A pass"
        other.token = "changed"
        with pytest.raises(StalledError, match="Authentication failed"):
            asyncio.run(store.read())
        asyncio.run(mirror.newest())


def test_a_host_with_an_unknown_certificate_is_not_believed(https: HttpsHost, open_repository: Open) -> None:
    mirror, _ = open_repository(https.url(), replace(by_token(https), ca_file=None))
    with pytest.raises(StalledError, match=r"certificate.*name that with caFile"):
        asyncio.run(mirror.newest())
    assert not https.requests


def test_a_file_of_authorities_that_is_not_there_is_named(https: HttpsHost, open_repository: Open) -> None:
    mirror, _ = open_repository(https.url(), replace(by_token(https), ca_file=Path("/nowhere/ca.pem")))
    with pytest.raises(StalledError, match=r"caFile.*/nowhere/ca\.pem: No such file"):
        asyncio.run(mirror.newest())


def test_a_host_that_is_away_may_come_back(https: HttpsHost, open_repository: Open) -> None:
    first = https.repositories.push(FILES)
    mirror, store = open_repository(https.url(), by_token(https))
    read_and_write(mirror, store)
    https.down()
    with pytest.raises(RetryError, match="nothing was changed"):
        asyncio.run(mirror.newest())
    assert asyncio.run(mirror.commit(first)) == first
    assert asyncio.run(mirror.tree(first)).files["manifests/a.yaml"] == b"a: 1\n"
    assert asyncio.run(store.read_cached()).record == record()
    https.up()
    assert asyncio.run(mirror.newest()) == first


def test_a_slow_host_is_told_with_the_time_and_how_to_give_it_more(
    https: HttpsHost, open_repository: Open
) -> None:
    https.repositories.push(FILES)
    https.delay = 60
    mirror, _ = open_repository(https.url(), by_token(https), fetch_timeout=0.3)
    with pytest.raises(RetryError, match=r"no end after 0\.3 s"):
        asyncio.run(mirror.newest())


def test_a_fetch_that_takes_too_long_says_what_helps(tmp_path: Path, work: Any, clock: FakeClock) -> None:
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout.strip()
    program = tmp_path / "slow-git"
    program.write_text(f'#!/bin/sh\ncase "$*" in *" fetch "*) exec sleep 300 ;; esac\nexec {real} "$@"\n')
    program.chmod(0o700)
    runner = Git(GitEnvironment(path=os.environ["PATH"]), binary=str(program))
    objects = ObjectStore(tmp_path / "state", git=runner, clock=clock, holder="ann@box", fetch_timeout=3)
    mirror = Mirror(objects, remote_of(str(work.path), base=tmp_path))
    with pytest.raises(
        RetryError, match=r"no end after 3 s: .*raise fetchTimeout .*or set partialClone: true"
    ):
        asyncio.run(mirror.newest())


def test_a_long_fetch_says_how_far_it_is(tmp_path: Path) -> None:
    program = tmp_path / "talking-git"
    steps = r"Receiving objects:  45% (45/100), 1.20 MiB | 1.00 MiB/s\r"
    program.write_text(
        f"#!/bin/sh\nprintf '{steps.replace('%', '%%')}' >&2\necho 'fatal: the reason' >&2; exit 1\n"
    )
    program.chmod(0o700)
    heard: list[str] = []
    runner = Git(GitEnvironment(path=os.environ["PATH"]), binary=str(program))
    with pytest.raises(Exception, match=r"^fetching: fatal: the reason$"):
        asyncio.run(runner.run("fetch", doing="fetching", how=How(told=heard.append, tell_every=0)))
    assert heard[0] == "fetching: Receiving objects:  45% (45/100), 1.20 MiB | 1.00 MiB/s"


# ---- large repositories ------------------------------------------------------------------------------------


def objects_of(folder: Path) -> set[str]:
    """The files that a mirror holds itself."""
    said = git("cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)", at=folder)
    return {line.split()[0] for line in said.splitlines() if line.endswith(" blob")}


def test_a_large_repository_brings_only_the_files_that_are_read(
    https: HttpsHost, tmp_path: Path, open_repository: Open
) -> None:
    git("config", "uploadpack.allowFilter", "true", at=https.repositories.path())
    https.repositories.push({"manifests/a.yaml": "a: 0\n", "weights.bin": "large\n"})
    old = https.repositories.push({"manifests/a.yaml": "a: 1\n", "manifests/b.yaml": "b: 1\n"})
    mirror, store = open_repository(https.url(), by_token(https), partial=True)
    asyncio.run(mirror.newest())
    assert not objects_of(tmp_path / "state" / "mirror.git")
    asked = len(https.requests)
    assert asyncio.run(mirror.tree(old)).files == {
        "manifests/a.yaml": b"a: 1\n",
        "manifests/b.yaml": b"b: 1\n",
    }
    assert len(objects_of(tmp_path / "state" / "mirror.git")) == 2
    assert sum("POST" in it.line for it in https.requests[asked:]) <= 2, "all files of a call come at once"
    read_and_write(mirror, store)
    read_and_write(mirror, store)
    assert git("log", "--format=%s", "llmgw/state", at=https.repositories.path()) == "A pass\nA pass"


def test_of_a_large_repository_what_was_read_stays_readable_while_the_host_is_away(
    https: HttpsHost, open_repository: Open
) -> None:
    git("config", "uploadpack.allowFilter", "true", at=https.repositories.path())
    first = https.repositories.push({"manifests/a.yaml": "a: 1\n"})
    second = https.repositories.push({"manifests/a.yaml": "a: 2\n"})
    mirror, _ = open_repository(https.url(), by_token(https), partial=True)
    assert asyncio.run(mirror.newest()) == second
    asyncio.run(mirror.tree(second))
    https.down()
    assert asyncio.run(mirror.tree(second)).files == {"manifests/a.yaml": b"a: 2\n"}
    with pytest.raises(RetryError, match="fetching from https"):
        asyncio.run(mirror.tree(first))
    https.up()
    assert asyncio.run(mirror.tree(first)).files == {"manifests/a.yaml": b"a: 1\n"}


def test_a_host_that_can_not_leave_out_files_sends_them_all(
    https: HttpsHost, tmp_path: Path, told: list[str], open_repository: Open
) -> None:
    git("config", "uploadpack.allowFilter", "false", at=https.repositories.path())
    https.repositories.push(FILES)
    mirror, store = open_repository(https.url(), by_token(https), partial=True)
    assert read_and_write(mirror, store) == b"a: 1\n"
    assert len(objects_of(tmp_path / "state" / "mirror.git")) >= 2
    assert told == [f"{https.url()} can't leave out files: all of them are brought"]


# ---- ssh ---------------------------------------------------------------------------------------------------


def test_a_deploy_key_and_a_pinned_host_key_are_all_that_ssh_needs(
    ssh: SshHost, tmp_path: Path, open_repository: Open
) -> None:
    ssh.repositories.push(FILES)
    mirror, store = open_repository(ssh.url(), by_key(ssh, tmp_path))
    assert read_and_write(mirror, store) == b"a: 1\n"
    assert git("log", "--format=%s", "llmgw/state", at=ssh.repositories.path()) == "A pass"


def test_a_key_that_may_only_read_says_what_it_lacks(
    ssh: SshHost, tmp_path: Path, open_repository: Open
) -> None:
    ssh.repositories.push(FILES)
    ssh.allow(write=False)
    mirror, store = open_repository(ssh.url(), by_key(ssh, tmp_path))
    commit = asyncio.run(mirror.newest())
    with pytest.raises(
        RecordError, match=r"may not write llmgw/state of ssh://.*denied to this deploy key.*\(gitIdentity\)"
    ):
        asyncio.run(store.write(record(), after=None, message="A pass\n"))
    assert asyncio.run(mirror.newest()) == commit


def test_a_changed_host_key_is_refused_with_both_fingerprints(
    ssh: SshHost, tmp_path: Path, open_repository: Open
) -> None:
    ssh.repositories.push(FILES)
    old = ssh.host_keys
    ssh.down()
    ssh.new_host_keys()
    ssh.up()
    expected, shown = (hostkeys.parse(key).fingerprint for key in (*old, *ssh.host_keys))
    mirror, _ = open_repository(ssh.url(), by_key(ssh, tmp_path, keys=old))
    with pytest.raises(StalledError) as caught:
        asyncio.run(mirror.newest())
    told = str(caught.value)
    assert f"the host shows ED25519 {shown}, and llmgw.yaml:3:1 expects ssh-ed25519 {expected}" in told
    assert "never accepted by itself" in told
    both, _ = open_repository(ssh.url(), by_key(ssh, tmp_path, keys=(*old, *ssh.host_keys)))
    asyncio.run(both.newest())


def test_a_key_of_another_type_is_not_a_pinned_one(
    ssh: SshHost, tmp_path: Path, open_repository: Open
) -> None:
    ssh.repositories.push(FILES)
    old = ssh.host_keys
    ssh.down()
    ssh.new_host_keys("ecdsa")
    ssh.up()
    mirror, _ = open_repository(ssh.url(), by_key(ssh, tmp_path, keys=old))
    with pytest.raises(
        StalledError, match=r"the host shows ECDSA SHA256:.*, and llmgw\.yaml:3:1 expects ssh-ed25519"
    ):
        asyncio.run(mirror.newest())


def test_a_key_that_known_hosts_contradicts_is_told_with_its_line(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    known.write_text(f"# mine\ngit.example {key}\n")
    words = (
        "@@@\nThe fingerprint for the ED25519 key sent by the remote host is\nSHA256:abc.\n"
        f"Offending ED25519 key in {known}:2\nHost key verification failed.\n"
    )
    assert Access().host_trouble(words) == (
        f"the host shows ED25519 SHA256:abc, and {known}:2 expects ssh-ed25519 {hostkeys.parse(key).fingerprint}"
    )
    unknown = "No ED25519 host key is known for git.example and you have requested strict checking."
    assert Access().host_trouble(unknown) == "the host shows a key of type ED25519, and no key of it is known"
    assert not Access().host_trouble("Permission denied (publickey).")


def test_a_key_file_that_is_not_there_is_named(ssh: SshHost, tmp_path: Path, open_repository: Open) -> None:
    access = replace(by_key(ssh, tmp_path), identity=tmp_path / "nowhere")
    mirror, _ = open_repository(ssh.url(), access)
    with pytest.raises(StalledError, match=r"the key for the Git host .*nowhere: No such file"):
        asyncio.run(mirror.newest())


def test_an_ssh_host_that_is_away_may_come_back(ssh: SshHost, tmp_path: Path, open_repository: Open) -> None:
    ssh.repositories.push(FILES)
    mirror, _ = open_repository(ssh.url(), by_key(ssh, tmp_path))
    ssh.down()
    with pytest.raises(RetryError, match="nothing was changed"):
        asyncio.run(mirror.newest())
    ssh.up()
    asyncio.run(mirror.newest())


# ---- what breaks -------------------------------------------------------------------------------------------


def test_a_mirror_that_was_made_anew_is_told(
    https: HttpsHost, told: list[str], open_repository: Open
) -> None:
    commit = https.repositories.push(FILES)
    mirror, _ = open_repository(https.url(), by_token(https))
    asyncio.run(mirror.newest())
    for pack in (mirror.objects.path / "objects").rglob("*"):
        if pack.is_file():
            pack.chmod(0o600)
            pack.write_bytes(b"broken")
    assert asyncio.run(mirror.tree(commit)).files == {"manifests/a.yaml": b"a: 1\n"}
    assert len([line for line in told if "fetching it anew" in line]) == 1


@pytest.mark.parametrize("trouble", ["wrong", "away", "certificate", "slow", "gone", "hook"])
def test_the_token_shows_in_no_error(trouble: str, https: HttpsHost, open_repository: Open) -> None:
    https.repositories.push(FILES)
    access = replace(by_token(https), ca_file=None) if trouble == "certificate" else by_token(https)
    url = https.url("gone") if trouble == "gone" else https.url()
    mirror, store = open_repository(url, access, fetch_timeout=0.5 if trouble == "slow" else 60)
    token = https.token
    if trouble == "wrong":
        access = by_token(https, lambda: token)
        mirror, store = open_repository(url, access)
        https.token = "changed"
    if trouble == "away":
        https.down()
    if trouble == "slow":
        https.delay = 60
    if trouble == "hook":
        hook = https.repositories.path() / "hooks" / "pre-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\necho 'refused https://llmgw:{token}@host/x and {token}' >&2\nexit 1\n")
        hook.chmod(0o700)

    async def everything() -> None:
        await mirror.newest()
        await store.write(record(), after=None, message="A pass\n")

    with pytest.raises((RetryError, StalledError)) as caught:
        asyncio.run(everything())
    chain: BaseException | None = caught.value
    while chain is not None:
        assert token not in str(chain)
        assert token not in repr(chain)
        assert token not in json.dumps([str(it) for it in vars(chain).values()])
        chain = chain.__cause__ or chain.__context__
