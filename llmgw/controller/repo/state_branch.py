"""The record on the state branch: each version a commit, each write a compare-and-swap.

A write is made in the mirror without a work tree and pushed as a fast-forward from the version it was made after,
never forced: whoever else pushed first wins, also at the very first write. Until the push has arrived nothing has
happened; a process killed in between leaves an object that nobody names, and the next one starts from the remote.
"""

import re
from collections.abc import Mapping
from contextlib import suppress

from llmgw.clock import Clock
from llmgw.controller.repo import layout
from llmgw.controller.repo.failures import FailureKind, GitError, explained, kind_of
from llmgw.controller.repo.git import How, Said
from llmgw.controller.repo.objects import ObjectStore
from llmgw.controller.repo.records import HistoryEntry, LostRaceError, RecordError, Stored, entry_of
from llmgw.controller.repo.refs import branch_ref, commit_id, is_commit
from llmgw.controller.repo.remote import Remote
from llmgw.model.ids import Commit
from llmgw.model.plan import Plan
from llmgw.model.problems import RetryError, StalledError, UnknownOutcomeError
from llmgw.model.record import Record
from llmgw.model.struct import Struct

PUSH_TIMEOUT = 60.0  # seconds; half of the usual lease, so that a push does not outlive the lease it brings
_ADDRESS = re.compile(r"[\x00-\x1f<>]+")
_NEXT = "refs/llmgw/next"  # where a write stands between being made and being pushed


class _Known(Struct):
    """The last version this process has read or written: what changes are told from."""

    version: Commit
    kept: layout.Kept


class GitRecordStore:
    """A RecordStore on a branch of a repository. See records.RecordStore for what each method promises."""

    def __init__(self, objects: ObjectStore, remote: Remote, *, ref: str, author: str, clock: Clock) -> None:
        """``ref``: a branch name such as ``llmgw/state``. ``author``: who stands in the commits, ``user@host``."""
        self._objects = objects
        self._remote = remote
        self._ref = branch_ref(ref, what="stateRef")
        self._author = author
        self._clock = clock
        self._known: _Known | None = None
        objects.feed(remote)

    @property
    def place(self) -> str:
        """For messages: where the record is."""
        return f"{self._ref.removeprefix('refs/heads/')} of {self._remote}"

    async def read(self) -> Stored:
        version = await self.tip()
        if version is None and (last := await self.read_cached()).record is not None:
            raise self._gone(last)
        return await self._stored(version)

    async def read_cached(self) -> Stored:
        """The record as it was when it was last fetched; asks nobody. For when the repository is out of reach, or the branch gone."""
        return await self._stored(await self._objects.cached(self._remote, self._ref))

    async def tip(self) -> Commit | None:
        """The newest version without reading it: where a record that can't be read is replaced by ``recover``."""
        listing = await self._objects.refresh(self._remote, (self._ref,), keep=True)
        return listing.refs.get(self._ref)

    async def write(
        self, record: Record, *, after: Commit | None, message: str, plan: Plan | None = None
    ) -> Commit:
        kept = layout.Kept(record=record, plan=plan)
        try:
            version = await self._write(kept, after, message)
        except GitError as wrong:
            if wrong.kind not in {FailureKind.CORRUPT, FailureKind.NO_OBJECT}:
                raise _unwritten(wrong) from wrong
            await self._objects.rebuild(wrong.said)
            await self.tip()  # brings the branch here even if this process has only ever written
            try:
                version = await self._write(kept, after, message)
            except GitError as again:
                raise _unwritten(again) from again
        self._known = _Known(version=version, kept=kept)
        return version

    async def _write(self, kept: layout.Kept, after: Commit | None, message: str) -> Commit:
        files, anew = await self._changes(kept, after)
        async with self._objects.writing() as keep:
            version = await self._commit(files, after, message, keep, anew=anew)
            await self._push(version, after, keep)
            with suppress(GitError):  # the record has arrived; the next read fetches what could not be noted
                await self._objects.note(self._remote, self._ref, version, keep)
        return version

    async def history(self, limit: int = 50) -> tuple[HistoryEntry, ...]:
        tip = await self.tip()
        if tip is None:
            return ()
        try:
            said = await self._objects.run(
                "log",
                "-z",
                f"--max-count={int(limit)}",
                "--no-show-signature",
                "--format=tformat:%H%n%cI%n%B",
                "--end-of-options",
                tip,
                "--",
                doing=f"reading the history of {self.place}",
            )
        except GitError as wrong:
            raise explained(wrong) from wrong
        return tuple(_entry(text) for text in said.out.decode("utf-8", "replace").split("\0") if text.strip())

    # ---- reading -----------------------------------------------------------------------------------------

    async def _stored(self, version: Commit | None) -> Stored:
        if version is None:
            return Stored(record=None, version=None)
        known = self._known
        if known is None or known.version != version:
            known = _Known(version=version, kept=await self._kept(version))
            self._known = known
        return Stored(record=known.kept.record, version=version, pending_plan=known.kept.plan)

    async def _kept(self, version: Commit) -> layout.Kept:
        files = await self._files(version)
        try:
            return layout.read(files)
        except layout.NewerFormatError as newer:
            raise RecordError(
                f"reading the record at {version[:12]} on {self.place}: {newer}: upgrade llmgw here"
            ) from newer
        except layout.LayoutError as broken:
            raise UnreadableRecordError(self._unreadable(version, broken)) from broken

    def _gone(self, last: Stored) -> "LostRecordError":
        """A branch that was here once is no new fleet: nodes that have no agent yet would become another fleet's."""
        assert last.record is not None
        return LostRecordError(
            f"reading the record on {self.place}: the branch is gone, and it held serial {last.record.serial}: nothing is "
            f"changed; push it back (git --git-dir={self._objects.path} push {self._remote} {last.version}:{self._ref}), or "
            "rebuild it from the agents with llmgw recover"
        )

    def _unreadable(self, version: Commit, broken: layout.LayoutError) -> str:
        return (
            f"reading the record at {version[:12]} on {self.place}: {broken}: nothing is changed while the record can't be "
            f"read; git revert what broke it on that branch, or rebuild it from the agents with llmgw recover (if the "
            "branch is not llmgw's at all, choose another with --state-ref)"
        )

    async def _files(self, version: Commit) -> Mapping[str, bytes]:
        entries = await self._objects.entries(version)
        ours = {
            entry.path: entry.object
            for entry in entries
            if entry.kind == "blob" and layout.is_ours(entry.path)
        }
        if len(ours) > layout.MAX_FILES:
            raise RecordError(
                f"reading the record at {version[:12]} on {self.place}: {len(ours)} files, at most {layout.MAX_FILES} "
                "are read: this is no record of llmgw's"
            )
        blobs = await self._objects.blobs(ours.values(), max_bytes=layout.MAX_BYTES)
        return {path: blobs[object_id] for path, object_id in ours.items()}

    # ---- writing -----------------------------------------------------------------------------------------

    async def _changes(self, kept: layout.Kept, after: Commit | None) -> tuple[dict[str, bytes | None], bool]:
        """Files to write or remove, and whether everything is written anew (over a record that can't be read)."""
        if after is None:
            return layout.changes(None, kept), False
        if (self._known is None or self._known.version != after) and not await self._objects.has(after):
            await self.tip()
            if not await self._objects.has(after):
                raise self._lost()
        try:
            await self._stored(commit_id(after))
        except UnreadableRecordError:
            return layout.changes(None, kept), True
        assert self._known is not None
        return layout.changes(self._known.kept, kept), False

    async def _commit(
        self,
        files: Mapping[str, bytes | None],
        after: Commit | None,
        message: str,
        keep: tuple[int, ...],
        *,
        anew: bool = False,
    ) -> Commit:
        seconds = int(self._clock.now().timestamp())
        script = _script(files, after=after, message=message, author=self._author, seconds=seconds, anew=anew)
        said = await self._objects.run(
            "fast-import",
            "--quiet",
            "--force",
            "--date-format=raw",
            doing=f"writing the record for {self.place}",
            stdin=script,
            how=How(keep_open=keep),
        )
        made = said.text.strip()
        if not is_commit(made):
            raise RecordError(
                f"writing the record for {self.place}: git answers {made!r:.80} instead of a commit"
            )
        return Commit(made)

    async def _say_push(self, version: Commit, keep: tuple[int, ...]) -> Said:
        return await self._objects.run(
            "push",
            "--porcelain",
            "--no-verify",
            *self._remote.program("receive-pack"),
            "--",
            self._remote.address,
            f"{version}:{self._ref}",
            doing=f"pushing the record to {self.place}",
            how=How(remote=self._remote, timeout=PUSH_TIMEOUT, ok=frozenset({0, 1}), keep_open=keep),
        )

    async def _push(self, version: Commit, after: Commit | None, keep: tuple[int, ...]) -> None:
        try:
            said = await self._say_push(version, keep)
        except GitError as wrong:
            problem: GitError | None = wrong
        else:
            problem = _refusal(said)
        if problem is None:
            return
        if problem.kind in {
            FailureKind.LOST_RACE,
            FailureKind.DENIED,
            FailureKind.CHECKED_OUT,
            FailureKind.HOST_KEY,
        }:
            raise self._typed(problem) from problem
        await self._settle(version, after, problem)

    async def _settle(self, version: Commit, after: Commit | None, problem: GitError) -> None:
        """The push broke off: only the remote knows whether it arrived."""
        try:
            listing = await self._objects.ask(self._remote, (self._ref,))
        except RetryError as wrong:
            raise UnknownOutcomeError(
                f"{problem}: it is not known whether the record arrived, the repository does not answer: "
                "read the record again before anything else"
            ) from wrong
        tip = listing.refs.get(self._ref)
        if tip == version:
            return
        if tip != after:
            raise self._lost() from problem
        raise self._typed(problem) from problem

    def _typed(self, problem: GitError) -> RetryError | RecordError | LostRaceError:
        if problem.kind is FailureKind.LOST_RACE:
            return self._lost()
        if problem.kind is FailureKind.DENIED:
            return RecordError(
                f"pushing the record: this controller may not write {self.place}: {problem.said}: give its key (gitIdentity) or its "
                "token (token; stateToken, where the record has one of its own) the right to push there, or name another repository for "
                "the record with stateRepo"
            )
        return _unwritten(problem)

    def _lost(self) -> LostRaceError:
        return LostRaceError(f"pushing the record to {self.place}: somebody else wrote it first: plan again")


class LostRecordError(RecordError):
    """The branch is gone, and this state directory knows what it held last."""


class UnreadableRecordError(RecordError):
    """There is a record and it can't be read: never the same as none."""


def _unwritten(wrong: GitError) -> RetryError | RecordError:
    """Like :func:`explained`."""
    told = explained(wrong)
    return RecordError(str(told)) if isinstance(told, StalledError) else told


def _refusal(said: Said) -> GitError | None:
    """What a push's answer says was wrong. ``=``: the remote had this very commit already, so somebody else made it."""
    for line in said.text.splitlines():
        if line.startswith("!"):
            reason = line.split("\t")[-1]
            kind = kind_of(f"{reason}\n{said.err}")
            told = f"{reason} / {said.err}" if kind is FailureKind.OTHER and said.err else reason
            return GitError("pushing the record", told, kind=kind, code=said.code)
        if line.startswith("="):
            return GitError("pushing the record", line, kind=FailureKind.LOST_RACE, code=said.code)
    if said.code:
        return GitError("pushing the record", said.err, kind=kind_of(said.err), code=said.code)
    return None


def _script(
    files: Mapping[str, bytes | None],
    *,
    after: Commit | None,
    message: str,
    author: str,
    seconds: int,
    anew: bool,
) -> bytes:
    """Input of ``git fast-import``. Paths are of safe characters by layout's own rule: nothing to quote."""
    name = _ADDRESS.sub(" ", author).strip() or "llmgw"
    host = name.rpartition("@")[2].replace(" ", "-") or "localhost"
    email = name if "@" in name and " " not in name else f"llmgw@{host}"
    text = message.encode()
    parts = [
        b"feature done\n",
        b"reset %s\n" % _NEXT.encode() if after is None else b"",
        b"commit %s\nmark :1\n" % _NEXT.encode(),
        f"author {name} <{email}> {seconds} +0000\n".encode(),
        f"committer llmgw <llmgw@{host}> {seconds} +0000\n".encode(),
        b"data %d\n%s\n" % (len(text), text),
        b"from %s\n" % after.encode() if after else b"",
        b"deleteall\n" if anew else b"",
    ]
    for path, content in files.items():
        if content is None:
            parts.append(f"D {path}\n".encode())
        else:
            parts.append(f"M 100644 inline {path}\ndata {len(content)}\n".encode() + content + b"\n")
    parts.append(b"\nget-mark :1\ndone\n")
    return b"".join(parts)


def _entry(text: str) -> HistoryEntry:
    version, at, message = text.split("\n", 2)
    return entry_of(Commit(version), message, at)
