"""From settings to an open repository on a host: the same words in llmgw.yaml and in the environment."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llmgw.controller.opening import opened
from llmgw.controller.settings import Settings, load_settings
from llmgw.model.ids import Commit, FleetId
from llmgw.model.manifest import Secret
from llmgw.model.problems import InvalidError, StalledError
from llmgw.model.record import Record
from llmgw.redaction import Redactor
from tests.e2e.githosts import https_host, ssh_host

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
FILES = {"manifests/a.yaml": "# nothing yet\n"}


def load(folder: Path, text: str = "", **variables: str) -> Settings:
    (folder / "llmgw.yaml").write_text(text)
    return load_settings(flags={}, environ={"HOME": "/home/ann", **variables}, cwd=folder)


def wrong(folder: Path, text: str = "", **variables: str) -> list[str]:
    with pytest.raises(InvalidError) as caught:
        load(folder, f"repo: /srv/fleet.git\n{text}", **variables)
    return [str(problem).replace(str(folder), "HERE") for problem in caught.value.problems]


def use(folder: Path, variables: Mapping[str, str], redactor: Redactor | None = None) -> Commit:
    """Reads the manifests' branch, and writes a record beside it."""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LLMGW_STATE_DIR": str(folder / "state"),
        **variables,
    }
    settings = load_settings(flags={}, environ=environ, cwd=folder)

    async def main() -> Commit:
        async with opened(settings, environ, redactor=redactor or Redactor()) as found:
            newest = await found.fleet.source.newest()
            await found.fleet.source.desired(newest, key_id="")
            stored = await found.store.read()
            record = Record(fleet=FleetId("f1"), key_id="0123abcd", serial=1)
            await found.store.write(record, after=stored.version, message="A pass\n")
            return newest

    return asyncio.run(main())


def test_the_environment_says_the_same_as_the_file(tmp_path: Path) -> None:
    text = f"""\
repo: ssh://git@git.example/fleet.git
gitIdentity: keys/deploy
token: {{fromFile: /etc/llmgw/token}}
tokenUser: ann
stateRepo: https://other.example/record.git
stateToken: {{fromFile: /etc/llmgw/record-token}}
stateTokenUser: ben
caFile: ca.pem
hostKeys: ["{KEY}"]
fetchTimeout: 20m
partialClone: true
verify: {{mode: all-since-applied, allowedSigners: signers}}
"""
    written = load(tmp_path, text)
    variables: dict[str, Any] = {
        "LLMGW_REPO": "ssh://git@git.example/fleet.git",
        "LLMGW_GIT_IDENTITY": str(tmp_path / "keys" / "deploy"),
        "LLMGW_TOKEN": "{fromFile: /etc/llmgw/token}",
        "LLMGW_TOKEN_USER": "ann",
        "LLMGW_STATE_REPO": "https://other.example/record.git",
        "LLMGW_STATE_TOKEN": "{fromFile: /etc/llmgw/record-token}",
        "LLMGW_STATE_TOKEN_USER": "ben",
        "LLMGW_CA_FILE": str(tmp_path / "ca.pem"),
        "LLMGW_HOST_KEYS": json.dumps([KEY]),
        "LLMGW_FETCH_TIMEOUT": "20m",
        "LLMGW_PARTIAL_CLONE": "true",
        "LLMGW_VERIFY": "mode: all-since-applied\nallowedSigners: signers",
    }
    said = load(tmp_path, **variables)
    for name in (
        "git_identity", "token_user", "state_repo", "state_token_user", "ca_file", "fetch_timeout", "partial_clone",
    ):  # fmt: skip
        assert getattr(said, name) == getattr(written, name) is not None
    for name in ("token", "state_token", "host_keys", "verify"):
        assert getattr(said.hosts, name) == getattr(written.hosts, name) is not None
    assert said.hosts.token == Secret(from_file="/etc/llmgw/token")
    assert load(tmp_path, text, LLMGW_TOKEN="{fromEnv: T}").hosts.token == Secret(from_env="T")


def test_the_key_for_nodes_is_shown_to_git_hosts_too_unless_they_have_their_own(tmp_path: Path) -> None:
    text = "repo: /srv/fleet.git\nsshIdentity: /keys/nodes\n"
    assert load(tmp_path, text).git_identity == Path("/keys/nodes")
    assert load(tmp_path, f"{text}gitIdentity: /keys/git\n").git_identity == Path("/keys/git")
    assert load(tmp_path, "repo: /srv/fleet.git\n").git_identity is None


def test_what_can_not_be_meant_is_refused_with_what_to_write(tmp_path: Path) -> None:
    (told,) = wrong(tmp_path, 'hostKeys: ["git.example ssh-ed25519 AAAA"]\n')
    assert told.startswith("HERE/llmgw.yaml:2:12: hostKeys[0] is no key")
    assert "ssh-keyscan" in told
    (told,) = wrong(tmp_path, "token: canary-of-a-token\n")
    assert (
        told
        == "HERE/llmgw.yaml:2:8: token can't be what is written there: write {fromFile: /absolute/path} or {fromEnv: NAME}"
    )
    (told,) = wrong(tmp_path, "partialClone: perhaps\n")
    assert "write true or false" in told
    (told,) = wrong(tmp_path, "fetchTimeout: 0s\n")
    assert "less than 1s" in told
    assert wrong(tmp_path, LLMGW_TOKEN="{fromEnv: [canary")[0].startswith("LLMGW_TOKEN: ")
    assert "canary" not in "".join(wrong(tmp_path, LLMGW_TOKEN="{fromEnv: [canary"))


def test_a_token_of_the_record_wants_a_repository_of_the_record(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidError, match=r"LLMGW_STATE_TOKEN: stateToken is for a stateRepo, and the record lies in"
    ):
        load(tmp_path, "repo: https://git.example/fleet.git\n", LLMGW_STATE_TOKEN="{fromEnv: T}")


def test_a_token_is_never_named_by_what_a_commit_may_change(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    text = "repo: https://git.example/fleet.git\ntoken: {fromFile: /home/ann/.ssh/id_ed25519}\n"
    (tmp_path / "llmgw.yaml").write_text(text)
    with pytest.raises(
        InvalidError, match=r"llmgw\.yaml:2:1: token stands in a file of a repository.*LLMGW_TOKEN"
    ):
        load(tmp_path, text)
    text = text.splitlines()[0]
    with pytest.raises(
        InvalidError, match=r"llmgw\.yaml:1:1: the host that gets the token is named in a file of a repo"
    ):
        load(tmp_path, text, LLMGW_TOKEN="{fromEnv: T}")
    with pytest.raises(
        InvalidError,
        match=r"llmgw\.yaml:2:1: the host that gets the stateToken is named .* LLMGW_STATE_REPO or with --state",
    ):
        load(tmp_path, f"{text}\nstateRepo: https://evil.example/x\n", LLMGW_STATE_TOKEN="{fromEnv: T}")
    with pytest.raises(InvalidError, match=r"llmgw\.yaml:3:1: stateToken stands in a file of a repository"):
        load(tmp_path, f"{text}\nstateRepo: /srv/record.git\nstateToken: {{fromEnv: T}}\n")
    both = {"LLMGW_TOKEN": "{fromEnv: T}", "LLMGW_REPO": "https://git.example/fleet.git"}
    assert load(tmp_path, text, **both).hosts.token == Secret(from_env="T")
    named = load_settings(
        flags={},
        environ={"HOME": "/home/ann", **both},
        cwd=tmp_path.parent,
        config=str(tmp_path / "llmgw.yaml"),
    )
    assert named.hosts.token is not None, "who names a file says that it is theirs"


def test_a_token_and_an_authority_open_a_host(tmp_path: Path) -> None:
    with https_host(tmp_path) as host:
        pushed = host.repositories.push(FILES)
        redactor = Redactor()
        assert use(tmp_path, host.settings(), redactor) == pushed
        assert host.token not in redactor(f"it was {host.token}"), (
            "whatever went wrong later, it would not show"
        )
        variables = {**host.settings(), "LLMGW_TOKEN": "{fromEnv: NOT_THERE}"}
        with pytest.raises(StalledError, match="fromEnv: NOT_THERE: the variable is not set"):
            use(tmp_path, variables)
        (host.ca.parent / "two-lines").write_text("a-token-that\nhas-two-lines\n")
        variables["LLMGW_TOKEN"] = f"{{fromFile: {host.ca.parent / 'two-lines'}}}"
        with pytest.raises(StalledError, match="several lines") as caught:
            use(tmp_path, variables)
        assert "has-two-lines" not in str(caught.value)


def test_the_record_lies_at_another_host_with_a_token_of_its_own(tmp_path: Path) -> None:
    with https_host(tmp_path) as host, https_host(tmp_path / "other", user="recorder") as other:
        pushed = host.repositories.push(FILES)
        other.token = "t0ken-of-the-record"
        both = tmp_path / "both.pem"
        both.write_text(host.ca.read_text() + other.ca.read_text())
        variables = {**host.settings(), "LLMGW_CA_FILE": str(both), "LLMGW_STATE_REPO": other.url()}
        with pytest.raises(StalledError, match="could not read Username"):
            use(tmp_path, variables)
        assert not any(request.allowed for request in other.requests)
        own = {
            "LLMGW_STATE_TOKEN": "{fromEnv: RECORD}",
            "RECORD": other.token,
            "LLMGW_STATE_TOKEN_USER": "recorder",
        }
        assert use(tmp_path, {**variables, **own}) == pushed
        assert any(request.allowed for request in other.requests)


def test_a_deploy_key_and_pinned_keys_open_a_host(tmp_path: Path) -> None:
    with ssh_host(tmp_path) as host:
        pushed = host.repositories.push(FILES)
        assert use(tmp_path, host.settings()) == pushed
        with pytest.raises(
            StalledError,
            match=r"the host shows ED25519 SHA256:.*, and LLMGW_HOST_KEYS expects ssh-ed25519 SHA256:",
        ):
            use(tmp_path, {**host.settings(), "LLMGW_HOST_KEYS": json.dumps([KEY])})
