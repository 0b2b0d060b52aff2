"""The manifests' repository as the reconciler sees it: a ref is resolved to a commit once, and from then on only
that commit is read, from its tree and never from a work tree."""

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from llmgw.controller.repo.answers import Entry, Listing
from llmgw.controller.repo.failures import GitError, explained
from llmgw.controller.repo.git import How
from llmgw.controller.repo.objects import ObjectStore
from llmgw.controller.repo.refs import branch_ref, commit_id, is_ref_name, repository_path, steps_back
from llmgw.controller.repo.remote import Remote
from llmgw.manifests import paths
from llmgw.model.ids import Commit
from llmgw.model.problems import InvalidError, LlmgwError, Problem, StalledError, Where
from llmgw.model.struct import Struct, field

SUFFIXES = paths.MANIFEST_SUFFIXES
MAX_FILE = 1024 * 1024  # bytes of a manifest
MAX_EXTRA = 16 * 1024 * 1024  # bytes of a file that a manifest points to
_LFS = b"version https://git-lfs.github.com/spec/"
_BLOBS = {"100644", "100755", "100664"}
_LINK = "120000"
_SUBMODULE = "160000"
_SHORTEST = 4  # digits of an abbreviated commit id
_KINDS = ("refs/heads/", "refs/tags/")
_FOLLOWED = frozenset({"HEAD", "@"})
_NAMES = "a commit id, a branch, a tag, HEAD for the branch that is followed, or steps back from one (main~2)"


class Tree(Struct):
    """A commit's manifests. Paths count from the repository's top. Where there are symbolic links below the path,
    ``links`` holds all links of the repository with their targets as written, and ``linked`` the manifests elsewhere in
    the repository that they lead to, under their real paths."""

    commit: Commit
    path: str
    files: Mapping[str, bytes]
    links: Mapping[str, str] = field(default_factory=dict)
    linked: Mapping[str, bytes] = field(default_factory=dict)


class CommitInfo(Struct):
    commit: Commit
    author: str  # "Ann <ann@example.org>"
    date: str  # ISO 8601, the committer's
    subject: str
    parents: tuple[Commit, ...] = ()


class Mirror:
    """Reads the manifests' repository through the mirror in the state directory."""

    def __init__(
        self,
        objects: ObjectStore,
        remote: Remote,
        *,
        branch: str | None = None,
        path: str | None = None,
        base: str = ".",
    ) -> None:
        """``branch`` None: the one that the repository's HEAD names. ``path`` None: ``manifests`` below ``base`` where
        the commit has it, else ``base``."""
        self.objects = objects
        self.remote = remote
        self._branch = branch_ref(branch, what="branch") if branch else None
        self._path = repository_path(path, what="path") if path is not None else None
        self._base = repository_path(base, what="path")
        objects.feed(remote)

    # ---- commits -----------------------------------------------------------------------------------------

    async def newest(self, *, fetch: bool = True) -> Commit:
        """The commit that the followed branch points to right now. Ask once and carry the answer.

        ``fetch=False`` answers from what was fetched last. Raises RetryError when the repository is out of reach,
        StalledError when it has no such branch, saying which it has."""
        ref, heard = await self._configured_branch()
        if fetch:
            tip = (await self.objects.refresh(self.remote, (ref,), heard=heard)).refs.get(ref)
        else:
            tip = await self.objects.cached(self.remote, ref)
        if tip is None:
            raise await self._no_branch(ref, fetch=fetch)
        return tip

    async def last_known(self) -> Commit | None:
        """Where the followed branch pointed when it was read last; asks nobody. None: it never was, or only the remote
        knows which branch that is."""
        return await self.objects.cached(self.remote, self._branch) if self._branch else None

    async def commit(self, name: str) -> Commit:
        """The commit that a person means by a full or shortened id, a branch or a tag, HEAD for the branch that is followed, or
        any of these and steps back from there (``main~2``, ``HEAD^``)."""
        base, steps = steps_back(name)
        found = await (self.newest() if base in _FOLLOWED else self._named_commit(base, name))
        if not steps:
            return found
        behind = await self.objects.peeled(f"{found}{steps}")
        if behind is None:
            raise StalledError(
                f"looking for {name} in {self.remote}: {base} is {found[:12]}, which has no {steps}"
            )
        return behind

    async def _named_commit(self, name: str, whole: str) -> Commit:
        digits = len(name) >= _SHORTEST and all(digit in "0123456789abcdef" for digit in name)
        if digits and (found := await self.objects.peeled(name)):
            return found
        kinds = [kind for kind in _KINDS if name.startswith(kind)]
        short = name.removeprefix(kinds[0]) if kinds else name
        if not is_ref_name(short):
            raise InvalidError((Problem(what=f"{whole!r:.80} names no commit", instead=f"give {_NAMES}"),))
        refs = [f"{kind}{short}" for kind in kinds or _KINDS]
        listing = await self.objects.refresh(self.remote, refs)
        for tip in listing.refs.values():
            if found := await self.objects.peeled(tip):
                return found
        if digits:
            await self.objects.refresh_all(self.remote)
            if found := await self.objects.peeled(name):
                return found
        raise StalledError(
            f"looking for {name} in {self.remote}: no branch, no tag, and no commit of one is called that: push it, or give {_NAMES} "
            "that is there (a clone's own origin/main is main here)"
        )

    async def branch(self) -> str:
        """Short name of the branch that is followed."""
        ref, _ = await self._configured_branch()
        return ref.removeprefix("refs/heads/")

    async def info(self, commit: Commit) -> CommitInfo:
        try:
            said = await self.objects.run(
                "show",
                "--no-patch",
                "--no-show-signature",
                "--format=%H%x00%an <%ae>%x00%cI%x00%P%x00%s",
                "--end-of-options",
                commit_id(commit),
                "--",
                doing=f"reading commit {commit[:12]}",
            )
        except GitError as wrong:
            raise explained(wrong) from wrong
        text = said.out.decode("utf-8", "replace").rstrip("\n")
        full, author, date, parents, subject = text.split("\0", 4)
        return CommitInfo(
            commit=Commit(full),
            author=author,
            date=date,
            subject=subject,
            parents=tuple(Commit(parent) for parent in parents.split()),
        )

    async def author_of(self, commit: Commit) -> str:
        return (await self.info(commit)).author

    async def has(self, commit: Commit) -> bool:
        return await self.objects.has(commit)

    async def is_ancestor(self, older: Commit, newer: Commit) -> bool:
        """Whether ``older`` is reachable from ``newer`` (a commit is its own ancestor). A commit that is no longer
        anywhere, after its history was rewritten, is nobody's ancestor."""
        try:
            said = await self.objects.run(
                "merge-base",
                "--is-ancestor",
                commit_id(older),
                commit_id(newer),
                doing=f"comparing {older[:12]} with {newer[:12]}",
                how=How(ok=frozenset({0, 1, 128})),
            )
        except GitError as wrong:
            raise explained(wrong) from wrong
        if said.code == 128 and await self.has(older) and await self.has(newer):
            raise StalledError(
                f"comparing {older[:12]} with {newer[:12]}: {said.err or 'git says nothing'}: "
                f"remove {self.objects.path}, it is fetched anew"
            )
        return said.code == 0

    async def unpushed(self, commit: Commit) -> bool:
        """Whether only this machine has the commit: the repository is a local one with remotes, and none of them is
        known to have it. False for a repository without remotes, and for one that is itself remote or bare."""
        if self.remote.local is None or not await self._has_remotes():
            return False
        reached = await self._in_repository(
            "for-each-ref",
            "--count=1",
            "--format=%(refname)",
            f"--contains={commit_id(commit)}",
            "refs/remotes/",
        )
        return not reached.strip()

    async def uncommitted(self) -> tuple[str, ...]:
        """Manifests of a work tree on this machine that are not as its last commit has them, by path. None for a bare
        or remote repository, and where git does not say: it is only for a note to people. Comparing a work tree runs the filters
        that its owner has set, so one of another user is not looked at, whoever named it."""
        if self.remote.local is None:
            return ()
        usual = posixpath.join(self._base, "manifests")
        below = self._path or (usual if (self.remote.local / usual).is_dir() else self._base)
        status = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--", below)
        try:
            said = await self._in_repository(*status, trusted=False)
        except LlmgwError:
            return ()
        changed = (entry[len("XY ") :] for entry in said.split("\0") if entry)
        return tuple(sorted(path for path in changed if path.endswith(SUFFIXES)))

    async def _has_remotes(self) -> bool:
        if not (await self._in_repository("remote")).strip():
            return False
        return (await self._in_repository("rev-parse", "--is-bare-repository")).strip() == "false"

    async def _in_repository(self, *arguments: str, trusted: bool = True) -> str:
        local = self.remote.local
        assert local is not None
        trust = (("safe.directory", str(local)),) if self.remote.trusted and trusted else ()
        try:
            said = await self.objects.git.run(
                *arguments, doing=f"looking into {local}", directory=local, how=How(config=trust)
            )
        except GitError as wrong:
            raise explained(wrong) from wrong
        return said.text

    async def _configured_branch(self) -> tuple[str, Listing | None]:
        """And what the remote says of its branches, if it had to be asked which one its HEAD names."""
        if self._branch:
            return self._branch, None
        there = await self.objects.ask(self.remote)
        head = there.head
        if head is None or not head.startswith("refs/heads/"):
            raise StalledError(
                f"reading {self.remote}: its HEAD names no branch that it has (a single commit is checked out, or its "
                f"default is another name); {_these(there.refs)}"
                if there.refs
                else f"reading {self.remote}: it has no commit yet: commit the manifests first"
            )
        self._branch = head
        return head, there

    async def _no_branch(self, ref: str, *, fetch: bool) -> StalledError:
        name = ref.removeprefix("refs/heads/")
        if not fetch:
            return StalledError(
                f"reading branch {name} of {self.remote}: it was never fetched: run this without --offline"
            )
        there = (await self.objects.ask(self.remote)).refs
        exist = _these(there) if there else "it has no branch yet: commit first"
        return StalledError(f"reading {self.remote}: it has no branch {name}; {exist}")

    # ---- trees -------------------------------------------------------------------------------------------

    async def fleet_path(self, commit: Commit) -> str:
        """Where the manifests lie in this commit."""
        if self._path is not None:
            return self._path
        usual = posixpath.normpath(posixpath.join(self._base, paths.DEFAULT_FOLDER))
        entries = await self.objects.entries(commit, usual)
        there = any(entry.path == usual and entry.kind == "tree" for entry in entries)
        return usual if there else self._base

    async def tree(self, commit: Commit, path: str | None = None, *, extra: Sequence[str] = ()) -> Tree:
        """The manifests at and below ``path`` (None: :meth:`fleet_path`), and the files named in ``extra`` that exist,
        wherever they lie. Folders and files beginning with a dot are skipped.

        Raises InvalidError, all problems at once, for what can't be read as a manifest: too large, a submodule, a
        pointer to Git LFS. What can't be read must never look like what is not there."""
        where = await self.fleet_path(commit) if path is None else repository_path(path, what="path")
        entries = await self.objects.entries(commit, where)
        await self._check_path(commit, where, entries)
        below = tuple(entry for entry in entries if _counts(entry, where))
        manifests = {entry.path: entry.object for entry in below if _is_manifest(entry, where)}
        extras = await self._named(commit, extra)
        links, linked = await self._followed(commit, [entry.path for entry in below if entry.mode == _LINK])
        linked = {real: object_id for real, object_id in linked.items() if real not in manifests}
        await self._check_sizes(below, {**manifests, **linked}, extras)
        contents = await self.objects.blobs((*manifests.values(), *extras.values(), *linked.values()))
        files = {name: contents[object_id] for name, object_id in sorted({**extras, **manifests}.items())}
        elsewhere = {name: contents[object_id] for name, object_id in sorted(linked.items())}
        _refuse_pointers({**files, **elsewhere})
        return Tree(commit=commit, path=where, files=files, links=links, linked=elsewhere)

    async def files(self, commit: Commit, names: Mapping[str, str]) -> dict[str, bytes]:
        """Those of these files that the commit has, by the keys of ``names``; none that is a link, or too large."""
        found = await self._named(commit, tuple(names.values()))
        sizes = await self.objects.sizes(found.values())
        small = {path: object_id for path, object_id in found.items() if sizes[object_id] <= MAX_FILE}
        contents = await self.objects.blobs(small.values())
        return {
            name: contents[small[inside]]
            for name, path in names.items()
            if (inside := repository_path(path, what="path")) in small
        }

    async def _check_path(self, commit: Commit, where: str, entries: Sequence[Entry]) -> None:
        """The path is a folder of this commit (or one file), reached through folders only."""
        if where == "." or any(
            entry.path == where and entry.mode not in {_LINK, _SUBMODULE} for entry in entries
        ):
            return
        for part in (where, *map(str, PurePosixPath(where).parents)):
            for entry in await self.objects.entries(commit, part):
                if entry.path == part and entry.mode == _SUBMODULE:
                    raise InvalidError((_submodule(part),))
                if entry.path == part and entry.mode == _LINK:
                    raise InvalidError(
                        (
                            Problem(
                                where=Where(file=part),
                                what="the manifests' path is a symbolic link",
                                instead="point --path to the folder itself",
                            ),
                        )
                    )
        raise StalledError(
            f"reading the manifests of {self.remote}: commit {commit[:12]} has no {where}: point --path to where they "
            "are, from the repository's top"
        )

    async def _named(self, commit: Commit, names: Sequence[str]) -> dict[str, str]:
        inside = tuple(dict.fromkeys(repository_path(name, what="path") for name in names))
        if not inside:
            return {}
        entries = await self.objects.entries(commit, *inside)
        return {
            entry.path: entry.object for entry in entries if entry.path in inside and entry.mode in _BLOBS
        }

    async def _followed(self, commit: Commit, links: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """All links of the repository with their targets, and the manifests that ``links`` lead to: real path -> object.
        Links that lead nowhere, or out of the repository, are the loader's to tell."""
        if not links:
            return {}, {}
        everything = {entry.path: entry for entry in await self.objects.entries(commit)}
        pointers = {path: entry.object for path, entry in everything.items() if entry.mode == _LINK}
        texts = await self.objects.blobs(pointers.values())
        targets = {
            path: texts[found].decode("utf-8", "surrogateescape") for path, found in sorted(pointers.items())
        }
        follow = paths.Links(targets=targets)
        reached: dict[str, str] = {}
        for real in filter(None, map(follow.resolve, links)):
            here = everything.get(real)
            below = (
                [path for path in everything if path.startswith(f"{real}/")]
                if here and here.kind == "tree"
                else [real]
            )
            for path in below:
                if path in everything and everything[path].mode in _BLOBS and path.endswith(SUFFIXES):
                    reached[path] = everything[path].object
        return targets, reached

    async def _check_sizes(
        self, below: Sequence[Entry], manifests: Mapping[str, str], others: Mapping[str, str]
    ) -> None:
        problems = [_submodule(entry.path) for entry in below if entry.mode == _SUBMODULE]
        sizes = await self.objects.sizes((*manifests.values(), *others.values()))
        for limit, names in ((MAX_FILE, manifests), (MAX_EXTRA, others)):
            problems += [
                Problem(
                    where=Where(file=name),
                    what=f"the file has {sizes[object_id]} bytes, at most {limit} are read",
                    instead="split it",
                )
                for name, object_id in names.items()
                if sizes[object_id] > limit
            ]
        if problems:
            raise InvalidError(tuple(problems))


def _these(branches: Iterable[str]) -> str:
    names = [branch.removeprefix("refs/heads/") for branch in sorted(branches)]
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"these exist: {', '.join(names[:20])}{more}: choose one with --branch"


def _counts(entry: Entry, where: str) -> bool:
    """Below the path, and in no dot folder there."""
    return entry.path == where or paths.is_visible(entry.path, where)


def _is_manifest(entry: Entry, where: str) -> bool:
    return entry.mode in _BLOBS and (entry.path == where or paths.is_manifest(entry.path, where))


def _submodule(path: str) -> Problem:
    return Problem(
        where=Where(file=path),
        what="this is a Git submodule, whose files are not in this commit",
        instead="move the manifests into the repository, or point --path to a folder without submodules",
    )


def _refuse_pointers(files: Mapping[str, bytes]) -> None:
    pointers = [name for name, content in files.items() if content.startswith(_LFS)]
    if pointers:
        raise InvalidError(
            tuple(
                Problem(
                    where=Where(file=name, line=1, column=1),
                    what="this is a pointer to Git LFS, not the file itself",
                    instead="store it in Git itself (git lfs untrack, then commit it again)",
                )
                for name in pointers
            )
        )
