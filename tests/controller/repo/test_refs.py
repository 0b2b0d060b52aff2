"""Names are checked by our rules before git sees them; git itself is the judge of the rules."""

import subprocess
from pathlib import Path

import pytest

from llmgw.controller.repo.refs import branch_ref, commit_id, is_ref_name, repository_path
from llmgw.controller.repo.remote import remote_of
from llmgw.model.problems import InvalidError

NAMES = [
    "main",
    "llmgw/state",
    "a.b",
    "feature/x-1",
    "ümlaut",
    "-main",
    "--upload-pack=x",
    "a..b",
    "a b",
    "a~1",
    "a^",
    "a:b",
    "a?",
    "a*",
    "a[b",
    "a\\b",
    "/a",
    "a/",
    "a//b",
    "a.",
    ".a",
    "a/.b",
    "a.lock",
    "a.lock/b",
    "a@{1}",
    "",
    "a\nb",
    "a\x7f",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_branch_name_is_what_git_takes_for_one(name: str) -> None:
    judged = subprocess.run(
        ["git", "check-ref-format", "--branch", name], capture_output=True, check=False, cwd="/"
    )
    assert is_ref_name(name) is (judged.returncode == 0)


def test_names_that_mean_something_else_to_git_are_no_branches() -> None:
    assert not is_ref_name("@")
    assert not is_ref_name("HEAD")


def test_a_wrong_branch_is_named_with_its_setting() -> None:
    with pytest.raises(InvalidError, match="stateRef: '--force' is no branch name"):
        branch_ref("--force", what="stateRef")
    assert (
        branch_ref("refs/heads/main", what="branch") == branch_ref("main", what="branch") == "refs/heads/main"
    )


@pytest.mark.parametrize("text", ["main", "abc", "A" * 40, "g" * 40, "-" + "a" * 39, "a" * 41])
def test_only_whole_commit_ids_reach_git(text: str) -> None:
    with pytest.raises(ValueError, match="no full commit id"):
        commit_id(text)


@pytest.mark.parametrize("text", ["/etc", "../x", "a/../../b", ".git", "x/.git/config"])
def test_paths_never_lead_out_of_the_repository(text: str) -> None:
    with pytest.raises(InvalidError):
        repository_path(text, what="path")


@pytest.mark.parametrize(
    ("text", "path"), [(".", "."), ("manifests/", "manifests"), ("./a//b", "a/b"), ("", ".")]
)
def test_paths_have_one_form(text: str, path: str) -> None:
    assert repository_path(text, what="path") == path


@pytest.mark.parametrize(
    "text",
    [
        "ext::sh -c x",
        "fd::17",
        "git://host/x",
        "http://host/x",
        "--upload-pack=x",
        "",
        "https:///x",
        "https://host:port/x",
        "ssh:///x",
        "ssh://-oProxyCommand=x/y",
        "ssh://-oProxyCommand=x@host/y",
        "-oProxyCommand=x@host:y",
        "ssh://git:pw@host/x",
        "a\nb",
    ],
)
def test_addresses_that_run_programs_or_send_in_clear_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidError):
        remote_of(text, base=tmp_path)


@pytest.mark.parametrize("who", ["ann:canary-77", "canary-77", "canary-77:x-oauth-basic"])
def test_a_password_in_an_address_is_refused_with_what_to_write(who: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidError) as caught:
        remote_of(f"https://{who}@host.example:8443/fleet.git", base=tmp_path)
    told = str(caught.value)
    assert "write repo: https://host.example:8443/fleet.git and token: {fromFile: " in told
    assert "tokenUser: NAME" in told, "a setting that exists"
    assert "canary" not in told


def test_the_ways_to_write_an_address(tmp_path: Path) -> None:
    (tmp_path / "with:colon").mkdir()
    assert remote_of("git@host:fleet.git", base=tmp_path).local is None
    assert remote_of("ssh://git@host/fleet.git", base=tmp_path).address == "ssh://git@host/fleet.git"
    assert remote_of("fleet.git", base=tmp_path).local == tmp_path / "fleet.git"
    assert remote_of("with:colon", base=tmp_path).local == tmp_path / "with:colon"
    assert remote_of(f"file://{tmp_path}/x", base=Path("/")).local == tmp_path / "x"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ssh://git@host:2222/lab/fleet.git", "git@host:lab/fleet"),
        ("https://Host.example/lab/fleet", "ssh://git@host.example/lab/fleet.git/"),
        ("/srv/fleet.git", "file:///srv/fleet.git"),
        ("/srv/fleet", "/srv/fleet/.git"),
    ],
)
def test_one_repository_has_one_place_however_it_is_reached(one: str, other: str) -> None:
    assert remote_of(one, base=Path("/")).place == remote_of(other, base=Path("/")).place


def test_places_of_different_repositories_differ() -> None:
    texts = ("/lab/fleet", "git@host:lab/fleet", "git@other:lab/fleet", "git@host:lab/other")
    assert len({remote_of(text, base=Path("/")).place for text in texts}) == len(texts)
