"""Reading manifests from commits of real repositories, whatever happened to them."""

import asyncio
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.clock import FakeClock
from llmgw.controller.repo import applied
from llmgw.controller.repo.git import Git, GitEnvironment
from llmgw.controller.repo.mirror import MAX_FILE, Mirror
from llmgw.controller.repo.objects import ObjectStore
from llmgw.controller.repo.remote import remote_of
from llmgw.model.ids import Commit
from llmgw.model.problems import InvalidError, RetryError, StalledError

Make = Callable[..., Any]


@pytest.fixture
def objects(make_objects: Make) -> ObjectStore:
    made: ObjectStore = make_objects()
    return made


@pytest.fixture
def mirror(objects: ObjectStore, work: Any) -> Mirror:
    return Mirror(objects, remote_of(str(work.path), base=Path("/")))


def newest_files(mirror: Mirror) -> dict[str, bytes]:
    async def main() -> dict[str, bytes]:
        return dict((await mirror.tree(await mirror.newest())).files)

    return asyncio.run(main())


# ---- commits -------------------------------------------------------------------------------------------------


def test_the_branch_that_is_checked_out_is_followed(make_work: Make, objects: ObjectStore) -> None:
    work = make_work("odd", branch="trunk")
    commit = work.commit({"manifests/a.yaml": "a: 1\n"})
    mirror = Mirror(objects, remote_of(str(work.path), base=Path("/")))
    assert asyncio.run(mirror.newest()) == commit
    assert asyncio.run(mirror.branch()) == "trunk"


def test_one_question_tells_which_branch_is_followed_and_where_it_is(
    tmp_path: Path, clock: FakeClock, work: Any
) -> None:
    """Over the network each takes about as long as all the rest of a plan."""
    asked, witness = tmp_path / "asked", tmp_path / "git"
    witness.write_text(
        f'#!/bin/sh\ncase " $* " in *" ls-remote "*) echo x >> {asked};; esac\nexec git "$@"\n'
    )
    witness.chmod(0o755)
    runner = Git(GitEnvironment(path=os.environ["PATH"]), binary=str(witness))
    store = ObjectStore(tmp_path / "one", git=runner, clock=clock, holder="ann@box")
    mirror = Mirror(store, remote_of(str(work.path), base=Path("/")))
    assert asyncio.run(mirror.newest()) == work.git("rev-parse", "HEAD")
    assert asked.read_text().split() == ["x"]
    newer = work.commit({"manifests/a.yaml": "a: 2\n"})
    assert asyncio.run(mirror.newest()) == newer


def test_a_new_commit_is_seen_at_once_and_the_old_one_stays_readable(mirror: Mirror, work: Any) -> None:
    first = asyncio.run(mirror.newest())
    second = work.commit({"manifests/a.yaml": "a: 2\n"})
    assert newest_files(mirror) == {"manifests/a.yaml": b"a: 2\n"}
    assert asyncio.run(mirror.newest()) == second
    assert asyncio.run(mirror.tree(first)).files == {"manifests/a.yaml": b"a: 1\n"}


def test_manifests_that_were_edited_and_not_committed_are_named(
    make_work: Make, objects: ObjectStore
) -> None:
    """`llmgw plan` said "No changes" to whoever had forgotten to commit, and nothing else."""
    work = make_work("edited")
    work.commit({"manifests/a.yaml": "a: 1\n", "manifests/b.yaml": "b: 1\n", "README.md": "x"})
    mirror = Mirror(objects, remote_of(str(work.path), base=Path("/")))
    assert asyncio.run(mirror.uncommitted()) == ()
    work.write(
        {
            "manifests/a.yaml": "a: 2\n",
            "manifests/new one.yml": "",
            "manifests/notes.txt": "",
            "README.md": "",
        }
    )
    work.git("mv", "manifests/b.yaml", "manifests/c.yaml")
    assert asyncio.run(mirror.uncommitted()) == (
        "manifests/a.yaml",
        "manifests/b.yaml",
        "manifests/c.yaml",
        "manifests/new one.yml",
    )
    bare = make_work("bare", bare=True)
    assert asyncio.run(Mirror(objects, remote_of(str(bare.path), base=Path("/"))).uncommitted()) == ()


def test_what_a_commit_holds_is_asked_of_git_once(objects: ObjectStore, mirror: Mirror, work: Any) -> None:
    commit = asyncio.run(mirror.newest())
    first = asyncio.run(objects.entries(commit, "manifests"))
    shutil.rmtree(objects.path)
    assert asyncio.run(objects.entries(commit, "manifests")) is first


def test_a_rewritten_branch_is_followed_and_an_applied_commit_kept(
    objects: ObjectStore, mirror: Mirror, work: Any
) -> None:
    first = work.commit({"manifests/a.yaml": "a: applied\n"})
    assert asyncio.run(mirror.newest()) == first
    asyncio.run(applied.keep(objects, first))
    work.git("commit", "--quiet", "--amend", "--message", "Rewritten")
    work.git("reflog", "expire", "--expire=now", "--all")
    work.git("gc", "--quiet", "--prune=now")
    rewritten = Commit(work.git("rev-parse", "HEAD"))
    assert asyncio.run(mirror.newest()) == rewritten
    subprocess.run(["git", "-C", str(mirror.objects.path), "gc", "--quiet", "--prune=now"], check=True)
    assert asyncio.run(mirror.tree(first)).files == {"manifests/a.yaml": b"a: applied\n"}
    assert not asyncio.run(mirror.is_ancestor(first, rewritten))


def test_what_is_kept_of_a_thousand_applied_commits_is_one_name(
    objects: ObjectStore, mirror: Mirror, work: Any
) -> None:
    """And one for each history that was rewritten, up to a bound."""
    commits = []
    for number in range(4):
        commits.append(work.commit({"manifests/a.yaml": f"a: {number}\n"}))
        asyncio.run(mirror.newest())
        asyncio.run(applied.keep(objects, commits[-1]))
    assert kept(objects) == {commits[-1]}
    rewritten = []
    for number in range(3):
        work.git("commit", "--quiet", "--amend", "--message", f"Rewritten {number}")
        rewritten.append(asyncio.run(mirror.newest()))
        asyncio.run(applied.keep(objects, rewritten[-1]))
    assert kept(objects) == {commits[-1], *rewritten}
    asyncio.run(applied.keep(objects, commits[-1]))
    assert kept(objects) == {commits[-1], *rewritten}, "applied once more, after a way back"


def test_histories_that_were_rewritten_again_and_again_are_not_all_kept(
    objects: ObjectStore, mirror: Mirror, work: Any
) -> None:
    asyncio.run(mirror.newest())
    tree = work.git("rev-parse", "HEAD^{tree}")
    stream = "".join(
        f"commit refs/heads/other-{number}\ncommitter a <a@b> {1_000_000 + number} +0000\ndata 1\nx\nM 040000 {tree} \n\n"
        for number in range(applied.KEPT + 20)
    )
    subprocess.run(
        ["git", "-C", str(work.path), "fast-import", "--quiet"], input=stream, text=True, check=True
    )
    asyncio.run(objects.refresh_all(mirror.remote))
    names = work.git("for-each-ref", "--format=%(objectname)", "refs/heads/other-*").split()
    orders = "".join(f"update refs/llmgw/applied/{name} {name}\n" for name in names)
    git = ["git", "-C", str(objects.path)]
    subprocess.run([*git, "update-ref", "--stdin"], input=orders, text=True, check=True)
    newest = asyncio.run(mirror.newest())
    asyncio.run(applied.keep(objects, newest))
    assert len(kept(objects)) == applied.KEPT + 1
    assert newest in kept(objects)
    assert work.git("rev-parse", f"other-{applied.KEPT + 19}") in kept(objects)
    assert work.git("rev-parse", "other-0") not in kept(objects)


def kept(objects: ObjectStore) -> set[str]:
    listed = subprocess.run(
        [
            "git",
            "-C",
            str(objects.path),
            "for-each-ref",
            "--format=%(refname:lstrip=3)",
            "refs/llmgw/applied/",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(listed.stdout.split())


def test_ancestors_are_told(mirror: Mirror, work: Any) -> None:
    first = Commit(work.git("rev-parse", "HEAD"))
    second = work.commit({"manifests/a.yaml": "a: 2\n"})
    asyncio.run(mirror.newest())
    assert asyncio.run(mirror.is_ancestor(first, second))
    assert not asyncio.run(mirror.is_ancestor(second, first))
    assert asyncio.run(mirror.is_ancestor(first, first))
    assert not asyncio.run(mirror.is_ancestor(Commit("1" * 40), second)), "a commit that is nowhere"


def test_a_commit_tells_who_made_it(mirror: Mirror, work: Any) -> None:
    commit = work.commit({"manifests/a.yaml": "a: 2\n"}, "Scale up\n\nBecause of Monday.")
    asyncio.run(mirror.newest())
    info = asyncio.run(mirror.info(commit))
    assert (info.author, info.subject, info.commit) == ("Ann <ann@example.org>", "Scale up", commit)
    assert len(info.parents) == 1
    assert asyncio.run(mirror.author_of(commit)) == "Ann <ann@example.org>"


def test_people_may_name_a_commit_by_id_branch_or_tag(mirror: Mirror, work: Any) -> None:
    first = work.git("rev-parse", "HEAD")
    work.git("tag", "--annotate", "--message", "x", "v1")
    work.git("checkout", "--quiet", "-b", "feature/x")
    other = work.commit({"manifests/a.yaml": "a: other\n"})
    for name, commit in (
        ("v1", first),
        ("feature/x", other),
        (other[:10], other),
        (other, other),
        ("main", first),
        ("refs/heads/main", first),
        ("refs/tags/v1", first),
        ("feature/x~1", first),
        ("feature/x^", first),
        (f"{other[:10]}^1~0", first),
        ("HEAD", other),
        ("@~1", first),
    ):
        assert asyncio.run(mirror.commit(name)) == commit, name


def test_head_is_the_branch_that_is_followed_whatever_is_checked_out(objects: ObjectStore, work: Any) -> None:
    main = work.git("rev-parse", "HEAD")
    work.git("checkout", "--quiet", "-b", "feature")
    work.commit({"manifests/a.yaml": "a: other\n"})
    following = Mirror(objects, remote_of(str(work.path), base=work.path), branch="main")
    assert asyncio.run(following.commit("HEAD")) == main


def test_steps_behind_the_first_commit_lead_nowhere(mirror: Mirror) -> None:
    with pytest.raises(
        StalledError, match=r"looking for main~7 in .*: main is [0-9a-f]{12}, which has no ~7"
    ):
        asyncio.run(mirror.commit("main~7"))


def test_a_short_id_is_found_without_having_fetched_its_branch(mirror: Mirror, work: Any) -> None:
    work.git("checkout", "--quiet", "-b", "other")
    other = work.commit({"manifests/a.yaml": "a: other\n"})
    work.git("checkout", "--quiet", "main")
    assert asyncio.run(mirror.commit(other[:12])) == other


@pytest.mark.parametrize(
    "name",
    ["--all", "no-such-branch", "0" * 40, "abcdef1", "main:manifests", "HEAD~1~", "", "main..x", "main@{1}"],
)
def test_what_names_no_commit_is_refused_with_its_name(mirror: Mirror, name: str) -> None:
    asyncio.run(mirror.newest())
    with pytest.raises((StalledError, InvalidError), match=re.escape(repr(name)[1:-1]) or "names no commit"):
        asyncio.run(mirror.commit(name))


def test_a_missing_branch_is_answered_with_those_that_exist(objects: ObjectStore, work: Any) -> None:
    work.git("branch", "develop")
    mirror = Mirror(objects, remote_of(str(work.path), base=Path("/")), branch="master")
    with pytest.raises(
        StalledError, match=r"no branch master; these exist: develop, main: choose one with --branch"
    ):
        asyncio.run(mirror.newest())


def test_a_branch_that_went_away_is_not_read_from_memory(objects: ObjectStore, work: Any) -> None:
    work.git("branch", "short-lived")
    mirror = Mirror(objects, remote_of(str(work.path), base=Path("/")), branch="short-lived")
    asyncio.run(mirror.newest())
    work.git("branch", "-D", "short-lived")
    with pytest.raises(StalledError, match="no branch short-lived"):
        asyncio.run(mirror.newest())


def test_a_branch_may_become_a_folder_of_branches(objects: ObjectStore, work: Any) -> None:
    remote = remote_of(str(work.path), base=Path("/"))
    work.git("branch", "team")
    asyncio.run(Mirror(objects, remote, branch="team").newest())
    work.git("branch", "-D", "team")
    work.git("branch", "team/a")
    head = work.git("rev-parse", "HEAD")
    assert asyncio.run(Mirror(objects, remote, branch="team/a").newest()) == head


def test_an_empty_repository_says_what_is_missing(make_work: Make, objects: ObjectStore) -> None:
    mirror = Mirror(objects, remote_of(str(make_work("empty").path), base=Path("/")))
    with pytest.raises(StalledError, match=r"has no commit yet: commit the manifests first$"):
        asyncio.run(mirror.newest())


def test_a_detached_head_asks_for_a_branch(mirror: Mirror, work: Any) -> None:
    work.git("checkout", "--quiet", "--detach")
    with pytest.raises(
        StalledError,
        match=r"HEAD names no branch that it has .*; these exist: main: choose one with --branch$",
    ):
        asyncio.run(mirror.newest())


@pytest.mark.parametrize("default", ["master", "trunk"])
def test_a_default_branch_that_nobody_pushed_to_is_answered_with_those_that_exist(
    objects: ObjectStore, make_work: Make, work: Any, default: str
) -> None:
    """A bare repository is made for one name, and its first push comes under another."""
    hub = make_work("hub", branch=default, bare=True)
    work.git("push", "--quiet", str(hub.path), "main")
    remote = remote_of(str(hub.path), base=Path("/"))
    with pytest.raises(
        StalledError, match=r"its default is another name\); these exist: main: choose one with"
    ):
        asyncio.run(Mirror(objects, remote).newest())
    assert asyncio.run(Mirror(objects, remote, branch="main").newest()) == work.git("rev-parse", "main")


def test_only_the_branch_that_is_followed_is_brought(objects: ObjectStore, mirror: Mirror, work: Any) -> None:
    """A repository of a thousand branches costs no more than one of one."""
    main = asyncio.run(mirror.newest())
    work.git("checkout", "--quiet", "-b", "other")
    other = Commit(work.commit({"manifests/a.yaml": "a: other\n"}))
    work.git("tag", "v1")
    work.git("checkout", "--quiet", "main")
    newer = Commit(work.commit({"manifests/a.yaml": "a: 2\n"}))
    assert asyncio.run(mirror.newest()) == newer
    assert asyncio.run(objects.has(main))
    assert not asyncio.run(objects.has(other))


def test_a_host_that_answers_from_an_older_copy_brings_nothing_back(
    objects: ObjectStore, mirror: Mirror, work: Any
) -> None:
    """What was seen newest is still known as newer: the commit that such a host names is an ancestor, and plans refuse those."""
    first = asyncio.run(mirror.newest())
    second = Commit(work.commit({"manifests/a.yaml": "a: 2\n"}))
    assert asyncio.run(mirror.newest()) == second
    asyncio.run(applied.keep(objects, second))
    work.git("reset", "--quiet", "--hard", first)
    assert asyncio.run(mirror.newest()) == first
    assert asyncio.run(mirror.is_ancestor(first, second))
    assert not asyncio.run(mirror.is_ancestor(second, first))


def test_a_repository_that_is_not_there_stalls_and_one_out_of_reach_may_come_back(
    objects: ObjectStore, tmp_path: Path
) -> None:
    gone = Mirror(objects, remote_of(str(tmp_path / "gone"), base=Path("/")))
    with pytest.raises(StalledError, match=r"gone.*check --repo"):
        asyncio.run(gone.newest())
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"https://127.0.0.1:{closed.getsockname()[1]}/fleet.git"
        away = Mirror(objects, remote_of(address, base=Path("/")), branch="main")
        with pytest.raises(RetryError, match=r"https://127\.0\.0\.1:\d+/fleet.git.*nothing was changed"):
            asyncio.run(away.newest())


def test_what_was_fetched_can_be_read_while_the_repository_is_away(mirror: Mirror, work: Any) -> None:
    commit = asyncio.run(mirror.newest())
    work.path.rename(work.path.with_name("moved"))
    with pytest.raises(StalledError):
        asyncio.run(mirror.newest())
    assert asyncio.run(mirror.newest(fetch=False)) == commit
    assert asyncio.run(mirror.commit(commit[:8])) == commit
    assert asyncio.run(mirror.tree(commit)).files


# ---- pushed or not -------------------------------------------------------------------------------------------


def test_unpushed_is_what_no_remote_is_known_to_have(make_work: Make, mirror: Mirror, work: Any) -> None:
    first = asyncio.run(mirror.newest())
    assert not asyncio.run(mirror.unpushed(first)), "a repository without remotes has nowhere to push to"
    hub = make_work("hub", bare=True)
    work.git("remote", "add", "origin", str(hub.path))
    assert asyncio.run(mirror.unpushed(first))
    work.git("push", "--quiet", "origin", "main")
    second = work.commit({"manifests/a.yaml": "a: 2\n"})
    assert not asyncio.run(mirror.unpushed(first))
    assert asyncio.run(mirror.unpushed(second))
    work.git("push", "--quiet", "origin", "main:other")
    assert not asyncio.run(mirror.unpushed(second)), "on any branch of any remote"
    server = Mirror(mirror.objects, remote_of(str(hub.path), base=Path("/")), branch="main")
    assert not asyncio.run(server.unpushed(asyncio.run(server.newest())))


# ---- trees ---------------------------------------------------------------------------------------------------


def test_only_manifests_below_the_path_are_read(mirror: Mirror, work: Any) -> None:
    work.commit(
        {
            "manifests/b.yml": "b: 1\n",
            "manifests/deep/er/c.yaml": "c: 1\n",
            "manifests/README.md": "no",
            "manifests/.hidden/d.yaml": "no",
            "manifests/.e.yaml": "no",
            "manifests/llmgw.yaml": "repo: no\n",
            "manifests-old/f.yaml": "no",
            "other.yaml": "no",
            "llmgw.yaml": "no",
        }
    )
    assert sorted(newest_files(mirror)) == ["manifests/a.yaml", "manifests/b.yml", "manifests/deep/er/c.yaml"]


def test_without_a_manifests_folder_the_whole_repository_is_the_fleet(
    make_work: Make, objects: ObjectStore
) -> None:
    work = make_work("flat")
    work.commit(
        {"a.yaml": "a: 1\n", "sub/b.yaml": "b: 1\n", "llmgw.yaml": "repo: x\n", ".github/ci.yml": "no"}
    )
    mirror = Mirror(objects, remote_of(str(work.path), base=Path("/")))
    assert sorted(newest_files(mirror)) == ["a.yaml", "sub/b.yaml"]


def test_the_fleet_lies_where_its_settings_file_lies(make_work: Make, objects: ObjectStore) -> None:
    work = make_work("many")
    commit = work.commit({"fleets/lab/manifests/a.yaml": "a: 1\n", "fleets/home/b.yaml": "b: 1\n"})
    remote = remote_of(str(work.path), base=Path("/"))

    async def main() -> tuple[str, str]:
        lab, home = Mirror(objects, remote, base="fleets/lab"), Mirror(objects, remote, base="fleets/home")
        await lab.newest()
        return await lab.fleet_path(commit), await home.fleet_path(commit)

    assert asyncio.run(main()) == ("fleets/lab/manifests", "fleets/home")


def test_odd_names_come_through_unharmed(mirror: Mirror, work: Any) -> None:
    names = [
        'manifests/quo"te.yaml',
        "manifests/new\nline.yaml",
        "manifests/ü.yaml",
        "manifests/-x.yaml",
        "manifests/*.yaml",
    ]
    work.commit(dict.fromkeys(names, "x: 1\n"))
    assert set(names) <= set(newest_files(mirror))


def test_what_looks_like_gits_own_answer_is_content(mirror: Mirror, work: Any) -> None:
    text = f"a: 1\n{'0' * 40} missing\n{'0' * 40} blob 3\n"
    work.commit({"manifests/a.yaml": text, "manifests/empty.yaml": ""})
    before = asyncio.run(mirror.newest())
    identity = mirror.objects.path.stat().st_ino
    assert asyncio.run(mirror.tree(before)).files == {
        "manifests/a.yaml": text.encode(),
        "manifests/empty.yaml": b"",
    }
    assert mirror.objects.path.stat().st_ino == identity, "the mirror was thrown away for nothing"


def test_links_are_told_and_never_followed_out(mirror: Mirror, work: Any) -> None:
    work.write(
        {
            "shared/common.yaml": "c: 1\n",
            "shared/deep/d.yaml": "d: 1\n",
            "shared/no.txt": "",
            "other/e.yaml": "",
        }
    )
    for link, target in (
        ("manifests/inside.yaml", "a.yaml"),
        ("manifests/shared.yaml", "../shared/common.yaml"),
        ("manifests/out.yaml", "../../etc/passwd"),
        ("manifests/absolute.yaml", "/etc/passwd"),
        ("manifests/folder", "../way/deep"),
        ("manifests/dangling.yaml", "nowhere.yaml"),
        ("manifests/circle.yaml", "circle.yaml"),
        ("way", "shared"),
    ):
        (work.path / link).symlink_to(target)
    commit = work.commit({})

    async def main() -> Any:
        await mirror.newest()
        return await mirror.tree(commit)

    tree = asyncio.run(main())
    assert set(tree.files) == {"manifests/a.yaml"}
    assert tree.links["manifests/absolute.yaml"] == "/etc/passwd"
    assert tree.links["way"] == "shared"
    assert len(tree.links) == 8
    assert tree.linked == {"shared/common.yaml": b"c: 1\n", "shared/deep/d.yaml": b"d: 1\n"}


def test_files_that_manifests_point_to_come_when_asked_for(mirror: Mirror, work: Any) -> None:
    commit = work.commit({"manifests/facts.json": "{}", "top.json": "[]"})

    async def main() -> Any:
        await mirror.newest()
        return await mirror.tree(commit, extra=("manifests/facts.json", "top.json", "absent.json"))

    assert set(asyncio.run(main()).files) == {"manifests/a.yaml", "manifests/facts.json", "top.json"}


def test_all_that_can_not_be_read_is_named_at_once(mirror: Mirror, make_work: Make, work: Any) -> None:
    sub = make_work("sub")
    sub.commit({"x.yaml": "x: 1\n"})
    work.git("submodule", "--quiet", "add", str(sub.path), "manifests/sub")
    work.commit({"manifests/huge.yaml": "x" * (MAX_FILE + 1)})
    asyncio.run(mirror.newest())
    with pytest.raises(InvalidError) as caught:
        newest_files(mirror)
    assert [str(problem.where) for problem in caught.value.problems] == [
        "manifests/sub",
        "manifests/huge.yaml",
    ]
    assert "submodule" in str(caught.value)


def test_a_pointer_to_large_file_storage_is_no_manifest(mirror: Mirror, work: Any) -> None:
    work.commit({"manifests/lfs.yaml": "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 3\n"})
    with pytest.raises(InvalidError, match=r"manifests/lfs\.yaml:1:1: this is a pointer to Git LFS"):
        newest_files(mirror)


def test_a_path_that_is_not_there_is_named_with_its_commit(objects: ObjectStore, work: Any) -> None:
    mirror = Mirror(objects, remote_of(str(work.path), base=Path("/")), path="fleets/lab")
    with pytest.raises(StalledError, match=r"commit [0-9a-f]{12} has no fleets/lab: point --path"):
        newest_files(mirror)


def test_a_path_that_is_a_link_or_lies_in_a_submodule_is_refused(
    objects: ObjectStore, make_work: Make, work: Any
) -> None:
    sub = make_work("sub")
    sub.commit({"deep/x.yaml": "x: 1\n"})
    work.git("submodule", "--quiet", "add", str(sub.path), "sub")
    (work.path / "link").symlink_to("manifests")
    work.commit({})
    remote = remote_of(str(work.path), base=Path("/"))
    with pytest.raises(InvalidError, match="link: the manifests' path is a symbolic link"):
        newest_files(Mirror(objects, remote, path="link"))
    with pytest.raises(InvalidError, match="sub: this is a Git submodule"):
        newest_files(Mirror(objects, remote, path="sub/deep"))


# ---- the mirror itself ---------------------------------------------------------------------------------------


def test_locks_of_a_killed_git_do_not_stop_the_next(mirror: Mirror, work: Any) -> None:
    asyncio.run(mirror.newest())
    refs = next((mirror.objects.path / "refs" / "llmgw").rglob("main"))
    left = [
        refs.with_name("main.lock"),
        mirror.objects.path / "packed-refs.lock",
        mirror.objects.path / "HEAD.lock",
    ]
    for lock in left:
        lock.write_text("")
    identity = mirror.objects.path.stat().st_ino
    commit = work.commit({"manifests/a.yaml": "a: 2\n"})
    assert asyncio.run(mirror.newest()) == commit
    assert not any(lock.exists() for lock in left)
    assert mirror.objects.path.stat().st_ino == identity, "the mirror was thrown away for a file of no bytes"


def damage_an_object(repository: Path) -> None:
    for path in repository.glob("objects/??/*"):
        path.chmod(0o600)
        path.write_bytes(b"garbage")


def remove_all_objects(repository: Path) -> None:
    for path in repository.glob("objects/??/*"):
        path.unlink()


def truncate_head(repository: Path) -> None:
    (repository / "HEAD").write_text("")


def break_the_configuration(repository: Path) -> None:
    (repository / "config").write_text("[core\n")


def remove_the_objects_folder(repository: Path) -> None:
    shutil.rmtree(repository / "objects")


@pytest.mark.parametrize(
    "damage",
    [damage_an_object, remove_all_objects, truncate_head, break_the_configuration, remove_the_objects_folder],
)
def test_a_damaged_mirror_is_fetched_anew(mirror: Mirror, work: Any, damage: Callable[[Path], None]) -> None:
    asyncio.run(mirror.newest())
    damage(mirror.objects.path)
    assert newest_files(mirror) == {"manifests/a.yaml": b"a: 1\n"}
    commit = work.commit({"manifests/a.yaml": "a: 2\n"})
    assert asyncio.run(mirror.newest()) == commit


def test_a_damaged_repository_is_not_read_as_an_empty_one(mirror: Mirror, work: Any) -> None:
    for path in (work.path / ".git").glob("objects/??/*"):
        path.chmod(0o600)
        path.write_bytes(b"garbage")
    with pytest.raises(StalledError):
        newest_files(mirror)


def test_two_processes_may_fetch_at_once(make_objects: Make, work: Any) -> None:
    commit = work.commit({f"manifests/{n}.yaml": f"n: {n}\n" for n in range(200)})
    remote = remote_of(str(work.path), base=Path("/"))

    async def main() -> list[Commit]:
        mirrors = [Mirror(make_objects("shared"), remote) for _ in range(4)]
        return list(await asyncio.gather(*(mirror.newest() for mirror in mirrors)))

    assert asyncio.run(main()) == [commit] * 4


def test_the_mirror_is_private_and_runs_no_hook(mirror: Mirror, work: Any, tmp_path: Path) -> None:
    asyncio.run(mirror.newest())
    assert mirror.objects.path.stat().st_mode & 0o777 == 0o700
    hooks = mirror.objects.path / "hooks"
    hooks.mkdir(exist_ok=True)
    hook = hooks / "reference-transaction"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o700)
    work.commit({"manifests/a.yaml": "a: 2\n"})
    asyncio.run(mirror.newest())
    assert not (tmp_path / "ran").exists()


def test_a_state_directory_that_can_not_be_made_is_named(
    git: Git, clock: Any, tmp_path: Path, work: Any
) -> None:
    (tmp_path / "file").write_text("")
    objects = ObjectStore(tmp_path / "file" / "state", git=git, clock=clock, holder="ann@box")
    mirror = Mirror(objects, remote_of(str(work.path), base=Path("/")))
    with pytest.raises(StalledError, match="--state-dir"):
        asyncio.run(mirror.newest())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a repository to another user")
def test_a_repository_of_another_user_is_read_only_when_it_was_named(objects: ObjectStore, work: Any) -> None:
    for path in (work.path, *work.path.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    found = Mirror(objects, remote_of(str(work.path), base=Path("/"), trusted=False))
    with pytest.raises(StalledError, match="belongs to another user; name it with --repo"):
        asyncio.run(found.newest())
    named = Mirror(objects, remote_of(str(work.path), base=Path("/")))
    commit = asyncio.run(named.newest())
    assert not asyncio.run(named.unpushed(commit))
