"""Who signed a commit, and whether that is enough. Whose signatures count is a parameter: it never comes from the commit that
is examined."""

import asyncio
import os
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Final

from llmgw.controller.repo.failures import GitError, explained
from llmgw.controller.repo.git import How
from llmgw.controller.repo.objects import ObjectStore
from llmgw.controller.repo.refs import commit_id
from llmgw.model.ids import Commit
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct

MOST: Final = 1000
"""Commits that are examined for one pass; each costs a few hundredths of a second."""
TIMEOUT: Final = 120.0
_GPG_TIMEOUT: Final = 30.0
_GPG_CONF: Final = (
    "trust-model always\nno-autostart\nno-auto-key-locate\nno-auto-key-retrieve\nbatch\nno-tty\n"
)
"""Who is in the keyring counts: it was made for this, so no web of trust is asked. And nobody is asked over a network."""
_SHOWN: Final = 5
_FORMAT: Final = "%H%x00%G?%x00%GS%x00%GK%x00%an <%ae>%x00%s"


class Mode(Enum):
    """``head``: the commit that is applied is signed. ``all-since-applied``: so is every commit that came since the one that
    was applied last, on whichever branch it was made."""

    NONE = "none"
    HEAD = "head"
    ALL_SINCE_APPLIED = "all-since-applied"


class Policy(Struct):
    """``allowed_signers`` and ``pgp_keyring`` are contents. ``where`` says who asks for it."""

    mode: Mode
    allowed_signers: bytes | None = None
    pgp_keyring: bytes | None = None
    where: str


class Signature(Struct):
    """What git says of one commit. ``state`` is the letter of ``git log --format=%G?``."""

    commit: Commit
    state: str
    signer: str
    key: str
    author: str
    subject: str

    @property
    def good(self) -> bool:
        return self.state == "G"

    def __str__(self) -> str:
        """Who signed, for people."""
        return f"{self.signer} with {self.key}" if self.key else self.signer

    @property
    def why_not(self) -> str:
        match self.state:
            case "N":
                return "it is not signed"
            case "U" | "E":
                return f"it is signed with {self.key or 'a key'}, which is not among the allowed ones or was not at that time"
            case "X":
                return f"its signature by {self} has expired"
            case "Y":
                return f"the key of {self} had expired"
            case "R":
                return f"the key of {self} was revoked"
            case _:
                return "its signature does not fit its content, or its key is not allowed for commits"


async def vouched(objects: ObjectStore, policy: Policy, commit: Commit, *, applied: Commit | None) -> str:
    """Who signed the commit; empty where nobody needs to have. StalledError naming what is not signed as it must be."""
    if policy.mode is Mode.NONE:
        return ""
    commits: tuple[Commit, ...] = (commit_id(commit),)
    if policy.mode is Mode.ALL_SINCE_APPLIED and applied is not None and applied != commit:
        commits = (commit, *await _since(objects, commit, applied, policy))
    found = await signatures(objects, policy, tuple(dict.fromkeys(commits)))
    bad = [each for each in found if not each.good]
    if bad:
        raise StalledError(_refusal(policy, bad))
    return str(next(each for each in found if each.commit == commit))


async def signatures(
    objects: ObjectStore, policy: Policy, commits: tuple[Commit, ...]
) -> tuple[Signature, ...]:
    """What git says of each. Looks at the keys of the policy only: none of the user's, of the system's, or of a network."""
    doing = f"examining the signature of {commits[0][:12]}" + (
        f" and {len(commits) - 1} more" if len(commits) > 1 else ""
    )
    async with _keys(policy) as (config, variables):
        try:
            said = await objects.run(
                "log",
                "--no-walk=unsorted",
                "--stdin",
                f"--format=tformat:{_FORMAT}%x00",
                "-z",
                doing=doing,
                stdin="".join(f"{commit_id(commit)}\n" for commit in commits).encode(),
                how=How(config=config, variables=variables, timeout=TIMEOUT),
            )
        except GitError as wrong:
            raise explained(wrong) from wrong
    fields = said.out.decode("utf-8", "replace").split("\0")
    rows = [fields[at : at + 6] for at in range(0, len(fields) - 6, 7)]
    found = tuple(
        Signature(
            commit=Commit(row[0].strip()),
            state=row[1],
            signer=row[2],
            key=row[3],
            author=row[4],
            subject=row[5],
        )
        for row in rows
    )
    if [each.commit for each in found] != list(commits):
        raise StalledError(f"{doing}: git does not tell of every commit: run git fsck in the repository")
    return found


async def _since(objects: ObjectStore, commit: Commit, applied: Commit, policy: Policy) -> tuple[Commit, ...]:
    """All commits that the applied one does not hold; all there are, where it is nowhere to be found any more."""
    known = (f"^{commit_id(applied)}",) if await objects.has(applied) else ()
    try:
        said = await objects.run(
            "rev-list",
            f"--max-count={MOST + 1}",
            commit,
            *known,
            "--",
            doing=f"listing what came with {commit[:12]}",
        )
    except GitError as wrong:
        raise explained(wrong) from wrong
    found = tuple(Commit(line) for line in said.text.split())
    if len(found) > MOST:
        raise StalledError(
            f"examining the signatures of what came with {commit[:12]}: more than {MOST} commits since {applied[:12]}, which was "
            f"applied last: apply a commit in between first, or once with verify: {{mode: head}} ({policy.where})"
        )
    return found


def _refusal(policy: Policy, bad: list[Signature]) -> str:
    told = "; ".join(
        f"commit {each.commit[:12]} «{each.subject:.60}» of {each.author:.80}: {each.why_not}"
        for each in bad[:_SHOWN]
    )
    more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    what_to_do = (
        "have each of them signed (git rebase --exec 'git commit --amend --no-edit -S' does it for your own)"
        if policy.mode is Mode.ALL_SINCE_APPLIED
        else "sign it (git commit --amend --no-edit -S), or put a signed commit on top of it"
    )
    return (
        f"{told}{more}. {policy.where} asks for signatures ({policy.mode.value}): nothing was changed; {what_to_do}, or let "
        "its key in where that is written"
    )


# ---- keys --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _keys(policy: Policy) -> AsyncIterator[tuple[tuple[tuple[str, str], ...], dict[str, str]]]:
    """Settings and variables that make git see the policy's keys and no others, for one call."""
    with tempfile.TemporaryDirectory(prefix="llmgw-verify-") as folder:
        signers = Path(folder) / "allowed-signers"
        signers.write_bytes(policy.allowed_signers or b"")
        config = [
            ("gpg.ssh.program", "ssh-keygen"),
            ("gpg.ssh.allowedSignersFile", str(signers)),
            ("gpg.ssh.revocationFile", ""),
            ("gpg.x509.program", "false"),
            ("gpg.minTrustLevel", "undefined"),
            ("gpg.program", "false"),
            ("gpg.openpgp.program", "false"),
        ]
        if policy.pgp_keyring is not None:
            await _import(Path(folder), policy)
            config += [("gpg.program", "gpg"), ("gpg.openpgp.program", "gpg")]
        yield tuple(config), {"GNUPGHOME": folder}


async def _import(home: Path, policy: Policy) -> None:
    (home / "gpg.conf").write_text(_GPG_CONF)
    keyring = home / "given"
    keyring.write_bytes(policy.pgp_keyring or b"")
    doing = f"reading the PGP keys of {policy.where}"
    try:
        process = await asyncio.create_subprocess_exec(
            "gpg",
            "--homedir",
            str(home),
            "--import",
            str(keyring),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.defpath, "LC_ALL": "C"},
        )
    except FileNotFoundError as wrong:
        raise StalledError(
            f"{doing}: gpg is not installed: install it (on Debian and Ubuntu: apt install gpg)"
        ) from wrong
    try:
        async with asyncio.timeout(_GPG_TIMEOUT):
            _, err = await process.communicate()
    except TimeoutError as late:
        raise StalledError(f"{doing}: gpg does not end within {_GPG_TIMEOUT:g} s") from late
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        lines = err.decode("utf-8", "replace").strip().splitlines()
        said = re.sub(r"^gpg: ", "", lines[-1]) if lines else f"gpg ended with {process.returncode}"
        raise StalledError(f"{doing}: {said}: write what `gpg --armor --export NAME…` prints")
