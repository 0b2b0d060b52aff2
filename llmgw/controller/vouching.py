"""Whose signatures count, and whether a commit may be used: asked before anything of a commit is read.

Who says so is the controller's own configuration, or the commit that was applied last; never the commit that is examined, or
whoever can push could let themselves in.
"""

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

from llmgw.controller import githosts
from llmgw.controller.githosts import Verify
from llmgw.controller.repo.mirror import Mirror
from llmgw.controller.repo.records import Stored
from llmgw.controller.repo.state_branch import GitRecordStore, UnreadableRecordError
from llmgw.controller.repo.verifying import Mode, Policy, vouched
from llmgw.model.ids import Commit
from llmgw.model.problems import StalledError, Where
from llmgw.model.struct import Struct

FILE: Final = "llmgw.yaml"
_MAX_KEYS: Final = 1024 * 1024  # bytes
_CONTENT = re.compile(r"\n|\s(ssh-|ecdsa-|sk-)|-----BEGIN PGP")
"""A value that is who may sign, and not a path to it."""


class Vouching(Struct):
    """``verify`` is what the settings say, at ``where``. ``own``: they are the controller's, outside of the repository, so they
    alone count. Else they lie in a work tree, and what the last applied commit says goes before them."""

    mirror: Mirror
    store: GitRecordStore
    verify: Verify | None
    where: Where | None
    own: bool
    home: Path

    async def __call__(self, commit: Commit) -> str:
        """Who signed the commit; empty where nobody needs to have. StalledError for a commit that must not be used. What has
        been applied already is never refused: it is what runs."""
        applied = await self._applied()
        policy = await self._policy(applied)
        if policy is None:
            return ""
        try:
            return await vouched(self.mirror.objects, policy, commit, applied=applied)
        except StalledError:
            if commit != applied:
                raise
            return ""

    async def _applied(self) -> Commit | None:
        """As the record said when it was last read."""
        try:
            stored: Stored = await self.store.read_cached()
        except UnreadableRecordError:
            return None
        return stored.record.commit if stored.record is not None else None

    async def _policy(self, applied: Commit | None) -> Policy | None:
        if self.own or applied is None or not await self.mirror.has(applied):
            return self._as_configured()
        path, verify = await self._written_at(applied)
        if verify is None:
            return self._as_configured()
        where = f"verify in {path} of {applied[:12]}, the commit applied last,"
        named = (name for name in (verify.allowed_signers, verify.pgp_keyring) if name is not None)
        inside = [name for name in named if _in_repository(name)]
        folder = PurePosixPath(path).parent
        files = await self.mirror.files(applied, {name: str(folder / name) for name in inside})

        def read(name: str) -> bytes:
            if name not in inside:
                return self._file(name, where)
            if name not in files:
                raise StalledError(f"{where} names {name}, which is not in that commit: nothing was changed")
            return files[name]

        return _made(verify, where, read)

    def _as_configured(self) -> Policy | None:
        if self.verify is None:
            return None
        where = f"verify in {self.where or 'the settings'}"
        return _made(self.verify, where, lambda name: self._file(name, where))

    async def _written_at(self, commit: Commit) -> tuple[str, Verify | None]:
        """The llmgw.yaml beside the fleet or above it, and what it says. InvalidError when it is not right."""
        fleet = PurePosixPath(await self.mirror.fleet_path(commit))
        names = {str(folder / FILE): str(folder / FILE) for folder in (fleet, *fleet.parents)}
        found = await self.mirror.files(commit, names)
        path = next((name for name in names if name in found), "")
        return path, githosts.verify_in(f"{path} at {commit[:12]}", found[path]) if path else None

    def _file(self, name: str, where: str) -> bytes:
        path = self.home / name[2:] if name.startswith("~/") else Path(name)
        if not path.is_absolute() and self.where is not None:
            path = Path(self.where.file).parent / path
        try:
            with path.open("rb") as file:
                content = file.read(_MAX_KEYS + 1)
        except OSError as wrong:
            raise StalledError(
                f"reading {path}, which {where} names: {wrong.strerror or wrong}: nothing was changed; put it there"
            ) from wrong
        if len(content) > _MAX_KEYS:
            raise StalledError(f"reading {path}, which {where} names: more than {_MAX_KEYS} bytes")
        return content


def _in_repository(name: str) -> bool:
    return not _CONTENT.search(name) and not name.startswith(("/", "~/"))


def _made(verify: Verify, where: str, read: Callable[[str], bytes]) -> Policy:
    def content(name: str | None) -> bytes | None:
        if name is None:
            return None
        return f"{name}\n".encode() if _CONTENT.search(name) else read(name)

    if verify.mode is Mode.NONE:
        return Policy(mode=verify.mode, where=where)
    return Policy(
        mode=verify.mode,
        allowed_signers=content(verify.allowed_signers),
        pgp_keyring=content(verify.pgp_keyring),
        where=where,
    )
