"""The mirror as a place that remotes feed and that commits are read from.

What is read is named by its commit. What can't be read any more is thrown away and fetched anew, once. A partial mirror brings
files when they are read.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from llmgw.clock import Clock
from llmgw.controller.repo import answers
from llmgw.controller.repo.answers import Entry, Listing
from llmgw.controller.repo.bare import Bare
from llmgw.controller.repo.failures import FailureKind, GitError, explained
from llmgw.controller.repo.git import MAX_OUTPUT, Git, How, Said
from llmgw.controller.repo.refs import commit_id, is_commit
from llmgw.controller.repo.remote import Remote
from llmgw.model.ids import Commit
from llmgw.model.problems import RetryError, StalledError
from llmgw.model.struct import Struct, replace

T = TypeVar("T")

ASK_TIMEOUT = 60.0  # seconds to list a remote's refs
FETCH_TIMEOUT = 600.0  # seconds; the first fetch of a large repository
MAX_ENTRIES = 200_000  # files of a tree; more is no folder of manifests
LISTED, LISTED_ENTRIES = 8, 10_000
"""Listings that are kept, and the longest: a pass asks for those of two or three commits again and again, and what a commit holds
never changes."""

_HEADER = 128  # bytes that cat-file writes before each object, at most

_TRUTH_IS_ELSEWHERE = {FailureKind.CORRUPT, FailureKind.NO_OBJECT}
_OURS_TO_MEND = {*_TRUTH_IS_ELSEWHERE, FailureKind.LOST_RACE}
"""A fetch overwrites whatever it finds; where it can't, a branch became a folder of branches or the mirror is broken."""


def _nobody_listens(_: str) -> None:
    """For those whom nobody watches."""


class ObjectStore(Bare):
    """One bare repository; several remotes may feed it.

    ``fetch_timeout`` is in seconds. ``partial``: from hosts, commits and folders are brought at once and files when they are
    read, where a host can do so. ``told`` hears how far a long fetch is, and what was mended."""

    def __init__(
        self,
        directory: Path,
        *,
        git: Git,
        clock: Clock,
        holder: str,
        fetch_timeout: float = FETCH_TIMEOUT,
        partial: bool = False,
        told: Callable[[str], None] = _nobody_listens,
    ) -> None:
        super().__init__(directory, git=git, clock=clock, holder=holder)
        self._fetch_timeout = fetch_timeout
        self._partial = partial
        self._told = told
        self._feeds: dict[str, tuple[Remote, tuple[str, ...]]] = {}
        self._listed: OrderedDict[tuple[Commit, tuple[str, ...]], tuple[Entry, ...]] = OrderedDict()
        self._whole: set[str] = set()  # remotes that can't leave out files

    # ---- remotes -----------------------------------------------------------------------------------------

    def feed(self, remote: Remote, *refs: str) -> None:
        """What is missing here may come from this remote; its refs named here come again when the mirror is made anew."""
        _, before = self._feeds.get(remote.key, (remote, ()))
        self._feeds[remote.key] = (remote, tuple(dict.fromkeys((*before, *refs))))

    async def ask(self, remote: Remote, refs: Sequence[str] = ()) -> Listing:
        """What a remote has right now: HEAD and the refs named, or all branches when none is."""
        patterns = ("HEAD", *refs) if refs else ("HEAD", "refs/heads/*")
        try:
            said = await self.git.run(
                "ls-remote",
                "--symref",
                *remote.program("upload-pack"),
                "--",
                remote.address,
                *patterns,
                doing=f"asking {remote} for its branches",
                how=How(remote=remote, timeout=min(ASK_TIMEOUT, self._fetch_timeout)),
            )
        except GitError as wrong:
            raise explained(wrong) from wrong
        return answers.listing(said.text, wanted=frozenset(refs))

    async def refresh(
        self, remote: Remote, refs: Sequence[str], *, keep: bool = False, heard: Listing | None = None
    ) -> Listing:
        """Bring the refs' commits here, whatever happened to them since (force pushes included), and tell where they
        are. Refs that the remote lacks are absent from the answer; here they are forgotten, or kept where they were last.
        ``heard``: what the remote has just said of them and others, so that it is not asked twice."""
        self.feed(remote, *refs)
        listing = await self.ask(remote, refs) if heard is None else _about(heard, refs)
        if keep:
            refs = [ref for ref in refs if ref in listing.refs]
        if await self._here(remote, refs) == dict(listing.refs):
            return listing
        try:
            await self._fetch(remote, refs, listing)
        except GitError as wrong:
            if wrong.kind not in _OURS_TO_MEND:
                raise self._explained(wrong) from wrong
            await self.rebuild(wrong.said)
        return replace(listing, refs=await self._here(remote, refs))

    async def refresh_all(self, remote: Remote) -> None:
        """Bring every branch and tag of a remote here."""
        async with self.writing() as keep:
            try:
                await self._fetch_specs(
                    remote,
                    [f"+refs/{kind}/*:{_tracking(remote, f'refs/{kind}/*')}" for kind in ("heads", "tags")],
                    keep,
                )
            except GitError as wrong:
                raise self._explained(wrong) from wrong

    def _explained(self, wrong: GitError) -> RetryError | StalledError:
        """Of a fetch."""
        if wrong.kind is not FailureKind.TIMEOUT:
            return explained(wrong)
        longer = "if the repository is large, raise fetchTimeout in llmgw.yaml"
        return explained(wrong, hint=longer if self._partial else f"{longer} or set partialClone: true")

    async def cached(self, remote: Remote, ref: str) -> Commit | None:
        """Where a ref was when it was last fetched; asks nobody."""
        return (await self._here(remote, (ref,))).get(ref)

    async def note(self, remote: Remote, ref: str, commit: Commit, keep: tuple[int, ...]) -> None:
        """A remote's ref is known to be here now, because we pushed it."""
        await self.run(
            "update-ref",
            _tracking(remote, ref),
            commit_id(commit),
            doing=f"noting {ref}",
            how=How(keep_open=keep),
        )

    async def _here(self, remote: Remote, refs: Sequence[str]) -> dict[str, Commit]:
        if not refs or not self.path.exists():
            return {}
        said = await self.run(
            "for-each-ref",
            "--format=%(objectname) %(refname)",
            *(_tracking(remote, ref) for ref in refs),
            doing=f"reading the refs of {self.path}",
            how=How(ok=frozenset({0, 128})),  # unreadable refs are as good as none: they are fetched again
        )
        pairs = (line.split(" ", 1) for line in said.text.splitlines())
        tracked = {name: object_id for object_id, name in pairs}
        return {
            ref: Commit(tracked[_tracking(remote, ref)]) for ref in refs if _tracking(remote, ref) in tracked
        }

    async def _fetch(self, remote: Remote, refs: Sequence[str], listing: Listing) -> None:
        there = [ref for ref in refs if ref in listing.refs]
        async with self.writing() as keep:
            for ref in refs:
                if ref not in listing.refs:
                    await self._forget(_tracking(remote, ref), keep)
            if not there:
                return
            await self._fetch_specs(remote, [f"+{ref}:{_tracking(remote, ref)}" for ref in there], keep)

    async def _fetch_specs(self, remote: Remote, specs: Sequence[str], keep: tuple[int, ...]) -> None:
        """``+`` before each: a rewritten history replaces what was here, nothing is merged."""
        await self._bring(remote, ("--prune", "--progress"), tuple(specs), keep)
        await self.tidy(keep, timeout=self._fetch_timeout)

    async def _bring(
        self,
        remote: Remote,
        options: Sequence[str],
        wanted: Sequence[str],
        keep: tuple[int, ...],
        *,
        stdin: bytes | None = None,
    ) -> None:
        """A host that can't leave out files sends them all, and that is told once."""
        partial = self._partial and remote.local is None
        said = await self.run(
            "fetch",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-auto-maintenance",
            *(("--filter=blob:none",) if partial else ()),
            *options,
            *remote.program("upload-pack"),
            "--",
            remote.address,
            *wanted,
            doing=f"fetching from {remote}",
            stdin=stdin,
            how=How(remote=remote, timeout=self._fetch_timeout, keep_open=keep, told=self._told),
        )
        if partial and "filtering not recognized" in said.err and remote.key not in self._whole:
            self._whole.add(remote.key)
            self._told(f"{remote} can't leave out files: all of them are brought")

    async def _bring_files(self, objects: Sequence[str]) -> None:
        """All files of a reading call at once, from whichever remote has them: git itself would ask for them one by one."""
        failed: GitError | None = None
        async with self.writing() as keep:
            for remote, _ in self._feeds.values():
                if remote.local is not None:
                    continue
                try:
                    await self._bring(remote, ("--stdin",), (), keep, stdin=answers.lines(objects))
                except GitError as wrong:
                    failed = wrong
                else:
                    return
        if failed is not None:
            raise self._explained(failed) from failed

    async def _forget(self, ref: str, keep: tuple[int, ...]) -> None:
        await self.run("update-ref", "-d", ref, doing=f"forgetting {ref}", how=How(keep_open=keep))

    async def rebuild(self, why: str) -> None:
        """Throw the mirror away and fetch again what this process has asked for. Told, never silent."""
        self._told(f"the mirror {self.path} can't be used any more ({why}): fetching it anew")
        async with self.writing() as keep:
            await self.create(keep)
        for remote, refs in tuple(self._feeds.values()):
            if not refs:
                continue
            listing = await self.ask(remote, refs)
            try:
                await self._fetch(remote, refs, listing)
            except GitError as wrong:
                raise self._explained(wrong) from wrong

    # ---- reading -----------------------------------------------------------------------------------------

    async def has(self, commit: Commit) -> bool:
        return await self.peeled(commit_id(commit)) == commit

    async def peeled(self, name: str) -> Commit | None:
        """The commit that an object id, whole or shortened, stands for; None when it is not here, or not one thing."""
        if not self.path.exists():
            return None
        said = await self.run(
            "rev-parse",
            "--verify",
            "--quiet",
            "--end-of-options",
            f"{name}^{{commit}}",
            doing=f"looking for commit {name}",
            how=How(ok=frozenset({0, 1, 128})),
        )
        answer = said.text.split()
        return Commit(answer[-1]) if said.code == 0 and answer and is_commit(answer[-1]) else None

    async def entries(self, commit: Commit, *paths: str) -> tuple[Entry, ...]:
        """Everything at and below the paths, folders included; of no path or ``.``: of the whole commit."""
        below = () if "." in paths else paths
        if (known := self._listed.get((commit, below))) is not None:
            self._listed.move_to_end((commit, below))
            return known
        call = Call(
            arguments=("ls-tree", "-rtz", "--full-tree", commit_id(commit), "--", *below),
            doing=f"listing {', '.join(below) or '.'} at {commit[:12]}",
        )
        entries = await self._healing(call, answers.entries)
        if len(entries) > MAX_ENTRIES:
            raise StalledError(
                f"{call.doing}: {len(entries)} entries, at most {MAX_ENTRIES} are read: "
                "point --path to the folder of the manifests"
            )
        if len(entries) <= LISTED_ENTRIES:
            self._listed[commit, below] = entries
            if len(self._listed) > LISTED:
                self._listed.popitem(last=False)
        return entries

    async def sizes(self, objects: Iterable[str]) -> dict[str, int]:
        """Bytes of each blob."""
        wanted = tuple(dict.fromkeys(objects))
        if not wanted:
            return {}
        call = Call(
            arguments=("cat-file", "--batch-check=%(objectname) %(objectsize)", "--buffer"),
            doing=f"measuring {len(wanted)} files",
            stdin=answers.lines(wanted),
            objects=wanted,
        )
        return await self._healing(call, answers.sizes)

    async def blobs(self, objects: Iterable[str], *, max_bytes: int = MAX_OUTPUT) -> dict[str, bytes]:
        """Content of each blob; all together at most ``max_bytes``."""
        wanted = tuple(dict.fromkeys(objects))
        if not wanted:
            return {}
        call = Call(
            arguments=("cat-file", "--batch", "--buffer"),
            doing=f"reading {len(wanted)} files",
            stdin=answers.lines(wanted),
            how=How(max_output=max_bytes + _HEADER * len(wanted)),
            objects=wanted,
        )
        return await self._healing(call, lambda out: answers.contents(out, wanted))

    async def _healing(self, call: "Call", parse: Callable[[bytes], T]) -> T:
        """Reads; what turns out to be broken or gone here is fetched anew, once, and read again."""
        why = "objects are missing"
        try:
            return parse((await self._reading(call)).out)
        except GitError as wrong:
            if wrong.kind not in _TRUTH_IS_ELSEWHERE and self.path.exists():
                raise explained(wrong) from wrong
            why = wrong.said
        except answers.MissingError:
            pass
        await self.rebuild(why)
        try:
            return parse((await self._reading(call)).out)
        except GitError as wrong:
            raise explained(wrong) from wrong
        except answers.MissingError as wrong:
            raise StalledError(
                f"{call.doing}: object {wrong} is missing even after fetching anew: run git fsck in the repository "
                "and repair it"
            ) from wrong

    async def _reading(self, call: "Call") -> Said:
        try:
            return await self._call(call)
        except GitError as wrong:
            if wrong.kind is not FailureKind.NOT_BROUGHT:
                raise
        await self._bring_files(call.objects)
        return await self._call(call)

    async def _call(self, call: "Call") -> Said:
        return await self.run(*call.arguments, doing=call.doing, stdin=call.stdin, how=call.how)


class Call(Struct):
    """A reading call, kept so that it can be made again."""

    arguments: tuple[str, ...]
    doing: str
    stdin: bytes | None = None
    how: How = How()
    objects: tuple[str, ...] = ()  # what it reads, where it is files


def _about(heard: Listing, refs: Sequence[str]) -> Listing:
    return replace(heard, refs={ref: heard.refs[ref] for ref in refs if ref in heard.refs})


def _tracking(remote: Remote, ref: str) -> str:
    return f"refs/llmgw/{remote.key}/{ref.removeprefix('refs/')}"
