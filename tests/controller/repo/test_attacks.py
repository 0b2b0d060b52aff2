"""What a hostile repository, or one of a careless owner, could make git do for us. Each attack leaves a proof when it works."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.clock import FakeClock
from llmgw.controller.repo import applied
from llmgw.controller.repo.mirror import Mirror
from llmgw.controller.repo.objects import ObjectStore
from llmgw.controller.repo.remote import remote_of
from llmgw.controller.repo.state_branch import GitRecordStore
from llmgw.model.ids import FleetId
from llmgw.model.problems import InvalidError, StalledError
from llmgw.model.record import Record

Make = Callable[..., Any]


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    return tmp_path / "it-worked"


@pytest.fixture
def weapon(tmp_path: Path, proof: Path) -> Path:
    """A program that leaves the proof, whatever it is called with."""
    path = tmp_path / "weapon"
    path.write_text(f'#!/bin/sh\necho "$0 $*" >> {proof}\ncat 2>/dev/null\nexit 0\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def mirror(make_objects: Make, work: Any) -> Mirror:
    return Mirror(make_objects(), remote_of(str(work.path), base=Path("/")))


@pytest.fixture
def store(mirror: Mirror, work: Any, clock: FakeClock) -> GitRecordStore:
    remote = remote_of(str(work.path), base=Path("/"))
    return GitRecordStore(mirror.objects, remote, ref="llmgw/state", author="ann@box", clock=clock)


def everything(mirror: Mirror, store: GitRecordStore) -> dict[str, bytes]:
    """All that is ever done with a repository on this machine."""

    async def main() -> dict[str, bytes]:
        commit = await mirror.newest()
        tree = await mirror.tree(commit)
        await mirror.info(commit)
        await mirror.unpushed(commit)
        await mirror.uncommitted()
        await mirror.commit("main")
        await applied.keep(mirror.objects, commit)
        await store.write(
            Record(fleet=FleetId("f1"), serial=1, key_id="0123abcd"), after=None, message="A pass\n"
        )
        await store.history()
        return dict(tree.files)

    return asyncio.run(main())


def settings_that_run(weapon: Path) -> list[tuple[str, str]]:
    return [
        ("core.fsmonitor", str(weapon)),
        ("core.sshCommand", str(weapon)),
        ("core.gitProxy", str(weapon)),
        ("core.pager", str(weapon)),
        ("core.editor", str(weapon)),
        ("core.askPass", str(weapon)),
        ("core.hooksPath", str(weapon.parent)),
        ("credential.helper", f"!{weapon}"),
        ("uploadpack.packObjectsHook", str(weapon)),
        ("diff.external", str(weapon)),
        ("gpg.program", str(weapon)),
        ("gpg.ssh.program", str(weapon)),
        ("log.showSignature", "true"),
        ("alias.show", f"!{weapon}"),
        ("alias.status", f"!{weapon}"),
        ("protocol.ext.allow", "always"),
        ("sequence.editor", str(weapon)),
        ("trailer.x.command", str(weapon)),
    ]


def test_programs_that_a_repositorys_settings_name_are_not_run(
    mirror: Mirror, store: GitRecordStore, work: Any, weapon: Path, proof: Path
) -> None:
    for name, value in settings_that_run(weapon):
        work.git("config", name, value)
    (work.path / "manifests" / "a.yaml").write_text("a: 2\n")
    assert everything(mirror, store) == {"manifests/a.yaml": b"a: 1\n"}
    assert not proof.exists(), proof.read_text()


def test_programs_that_the_mirrors_settings_name_are_not_run(
    mirror: Mirror, store: GitRecordStore, work: Any, weapon: Path, proof: Path
) -> None:
    asyncio.run(mirror.newest())
    for name, value in (*settings_that_run(weapon), ("core.alternateRefsCommand", str(weapon))):
        work.git("--git-dir", str(mirror.objects.path), "config", name, value)
    work.commit({"manifests/a.yaml": "a: 2\n"})
    assert everything(mirror, store) == {"manifests/a.yaml": b"a: 2\n"}
    assert not proof.exists(), proof.read_text()


def test_hooks_of_a_repository_that_is_only_read_are_not_run(
    mirror: Mirror, work: Any, weapon: Path, proof: Path
) -> None:
    hooks = work.path / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in (
        "reference-transaction",
        "post-checkout",
        "fsmonitor-watchman",
        "post-index-change",
        "post-merge",
    ):
        (hooks / name).symlink_to(weapon)
    asyncio.run(mirror.tree(asyncio.run(mirror.newest())))
    asyncio.run(mirror.uncommitted())
    assert not proof.exists(), proof.read_text()


def test_attributes_change_nothing_of_what_is_read(
    mirror: Mirror, store: GitRecordStore, work: Any, weapon: Path, proof: Path
) -> None:
    for name in ("clean", "smudge", "process"):
        work.git("config", f"filter.evil.{name}", str(weapon))
    (work.path / ".git" / "config").write_text(
        (work.path / ".git" / "config").read_text().replace(str(weapon), "cat")
    )
    content = b"a: $Id$ $Format:%H$\r\n"
    work.commit({"manifests/a.yaml": content})
    work.write({"manifests/.gitattributes": "*.yaml filter=evil ident export-subst text eol=lf diff=evil\n"})
    work.git("update-index", "--add", "manifests/.gitattributes")
    work.git("commit", "--quiet", "--message", "Attributes")
    assert everything(mirror, store)["manifests/a.yaml"] == content
    assert not proof.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="repositories of other users need root: not proved")
def test_filters_of_another_users_work_tree_are_not_run_as_us(
    mirror: Mirror, store: GitRecordStore, work: Any, weapon: Path, proof: Path
) -> None:
    work.git("config", "filter.evil.clean", str(weapon))
    work.commit({".gitattributes": "* filter=evil\n", "manifests/b.yaml": "b: 1\n"})
    proof.unlink(missing_ok=True)
    for path in (work.path, *work.path.rglob("*")):
        os.lchown(path, 65534, 65534)
    (work.path / "manifests" / "b.yaml").write_text("b: 2\n")
    os.utime(work.path / "manifests" / "b.yaml", (1, 1))
    assert everything(mirror, store)["manifests/b.yaml"] == b"b: 1\n"
    assert not proof.exists(), proof.read_text()


def test_submodules_are_neither_fetched_nor_asked_for(
    mirror: Mirror, store: GitRecordStore, work: Any, weapon: Path, proof: Path
) -> None:
    head = work.git("rev-parse", "HEAD")
    modules = f'[submodule "x"]\n\tpath = x\n\turl = ext::{weapon}\n\tupdate = !{weapon}\n\tfetchRecurseSubmodules = true\n'
    work.commit({".gitmodules": modules})
    work.git("update-index", "--add", "--cacheinfo", f"160000,{head},x")
    work.git("commit", "--quiet", "--message", "A submodule beside the manifests")
    assert everything(mirror, store) == {"manifests/a.yaml": b"a: 1\n"}
    assert not proof.exists()


def test_refs_that_look_like_options_are_names(
    mirror: Mirror, store: GitRecordStore, work: Any, weapon: Path, proof: Path
) -> None:
    head = work.git("rev-parse", "HEAD")
    evil = f"--upload-pack={weapon}"
    packed = work.path / ".git" / "packed-refs"
    packed.write_text(f"{head} refs/heads/{evil}\n{head} refs/tags/--output=x\n")
    everything(mirror, store)
    for name in (
        evil,
        f"--output={proof}",
        "-x",
        f"refs/heads/{evil}",
        "main;touch x",
        "main:refs/heads/x",
        "a..b",
    ):
        with pytest.raises((InvalidError, StalledError)):
            asyncio.run(mirror.commit(name))
        with pytest.raises(InvalidError):
            Mirror(mirror.objects, mirror.remote, branch=name)
    asyncio.run(mirror.objects.refresh_all(mirror.remote))
    assert not proof.exists()


def test_objects_lent_by_another_repository_stay_there(mirror: Mirror, work: Any, make_work: Make) -> None:
    """A repository may borrow objects from any path; what we keep of it is ours and whole."""
    lender = make_work("lender")
    lender.commit({"secret.yaml": "x: 1\n"})
    alternates = work.path / ".git" / "objects" / "info" / "alternates"
    alternates.parent.mkdir(exist_ok=True)
    alternates.write_text(f"{lender.path}/.git/objects\n")
    commit = asyncio.run(mirror.newest())
    assert not (mirror.objects.path / "objects" / "info" / "alternates").exists()
    alternates.unlink()
    assert asyncio.run(mirror.tree(commit)).files == {"manifests/a.yaml": b"a: 1\n"}


def test_replaced_and_grafted_objects_are_read_as_they_are(mirror: Mirror, work: Any) -> None:
    good = work.git("rev-parse", "HEAD")
    evil = work.commit({"manifests/a.yaml": "a: evil\n"})
    work.git("reset", "--quiet", "--hard", good)
    commit = asyncio.run(mirror.newest())
    asyncio.run(mirror.objects.refresh_all(mirror.remote))
    work.git("push", "--quiet", str(mirror.objects.path), f"{evil}:refs/replace/{good}")
    work.git("replace", good, evil)
    assert asyncio.run(mirror.tree(commit)).files == {"manifests/a.yaml": b"a: 1\n"}


def test_names_of_paths_reach_git_as_names(mirror: Mirror, work: Any, proof: Path) -> None:
    for path in ("--output=x", ":(top)manifests", ":!manifests", "*.yaml", "manifests/../.."):
        commit = asyncio.run(mirror.newest())
        with pytest.raises((InvalidError, StalledError)):
            asyncio.run(mirror.tree(commit, path))
    assert not proof.exists()


def test_a_location_that_git_would_run_is_refused(tmp_path: Path) -> None:
    for text in (
        "ext::sh -c touch% /tmp/x",
        "fd::17/foo",
        "transport::address",
        "-u/tmp/x",
        "--upload-pack=/tmp/x",
        "ssh://-oProxyCommand=touch/x",
        "git://host/x",
        "http://host/x",
        "ftp://host/x",
        "https://host/x\n[core]",
    ):
        with pytest.raises(InvalidError):
            remote_of(text, base=tmp_path)


def test_nothing_of_the_outside_environment_reaches_git(
    make_objects: Make, monkeypatch: pytest.MonkeyPatch, work: Any, weapon: Path, proof: Path
) -> None:
    for name in (
        "GIT_SSH_COMMAND",
        "GIT_SSH",
        "GIT_ASKPASS",
        "SSH_ASKPASS",
        "GIT_EXTERNAL_DIFF",
        "GIT_PAGER",
        "GIT_EDITOR",
    ):
        monkeypatch.setenv(name, str(weapon))
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", "/nowhere")
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", f"'core.fsmonitor={weapon}'")
    store: ObjectStore = make_objects()
    mirror = Mirror(store, remote_of(str(work.path), base=Path("/")))
    assert asyncio.run(mirror.tree(asyncio.run(mirror.newest()))).files
    assert not proof.exists()
