"""Edits that are commits: in the user's own work tree, with the user's identity, hooks and signing, and of single files only.

Unlike the mirror, this is the user's git: their configuration counts, and so does their environment.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from llmgw.controller.repo.remote import Remote, remote_of
from llmgw.model.problems import InvalidError, StalledError
from llmgw.model.struct import Struct
from llmgw.redaction import MASK, without_userinfo

ASKING: Final = 60.0
COMMITTING: Final = 600.0
"""Seconds: hooks run, and a key that signs may want its passphrase typed."""
SAID: Final = 2000
LITERALLY: Final = {"GIT_LITERAL_PATHSPECS": "1"}
"""A path is a path, whatever signs are in it. ``check-ignore`` takes it so anyway and refuses to be told."""


class WorkTree(Struct):
    """``top`` is the work tree's; ``environ`` what the user's own git would see."""

    top: Path
    environ: Mapping[str, str]
    otherwise: str = ""
    """What else a person may do where a commit can't be made, as the end of a sentence: ``, or --no-commit``."""

    def check(self, path: str, *, branch: str | None, doing: str) -> None:
        """Before anything is asked or written: whether a commit of ``path`` can work. StalledError saying why it can't."""
        if self._git("var", "GIT_COMMITTER_IDENT").returncode != 0:
            raise StalledError(
                f"{doing}: git does not know who commits: git config user.name '…' and git config user.email '…'{self.otherwise}"
            )
        on = self._git("symbolic-ref", "--quiet", "--short", "HEAD").stdout.strip()
        if not on:
            raise StalledError(
                f"{doing}: {self.top} is on no branch: git switch to the fleet's{self.otherwise}"
            )
        if branch is not None and on != branch:
            raise StalledError(
                f"{doing}: {self.top} is on the branch {on}, and the fleet follows {branch}: git switch {branch}{self.otherwise}"
            )
        if self._git("check-ignore", "--quiet", "--", path).returncode == 0:
            raise StalledError(f"{doing}: git ignores {path}: change .gitignore{self.otherwise}")
        if self._git("diff", "--name-only", "--diff-filter=U").stdout.strip():
            raise StalledError(f"{doing}: a merge is not finished in {self.top}: finish it{self.otherwise}")

    def is_clone_of(self, repository: Remote) -> bool:
        """Whether one of its remotes is that repository, by whichever address."""
        lines = self._git("remote", "--verbose").stdout.splitlines()
        addresses = {line.partition("\t")[2].rpartition(" (")[0] for line in lines}
        return any(_place(address, self.top) == repository.place for address in addresses)

    def unchanged(self, path: str) -> bool:
        """Whether a file is as the last commit has it."""
        said = self._git("status", "--porcelain", "--untracked-files=all", "--", path)
        return said.returncode == 0 and not said.stdout.strip()

    def commit(self, *paths: str, message: str, doing: str) -> str:
        """Commits these files as they lie there (or their removal), whatever else is staged; the commit's short id.

        StalledError with git's own words; nothing of it stays staged then."""
        added = self._git("add", "--all", "--", *paths)
        if added.returncode == 0:
            done = self._git(
                "commit", "--quiet", "--only", "--message", message, "--", *paths, timeout=COMMITTING
            )
            if done.returncode == 0:
                return self._git("rev-parse", "--short=10", "HEAD").stdout.strip()
            self._unstage(*paths)
        else:
            done = added
        said = (done.stderr.strip() or done.stdout.strip())[-SAID:]
        raise StalledError(f"{doing}: git does not commit it: {said}: correct that{self.otherwise}")

    def push_hint(self) -> str:
        """What is still to be done so that others see the commit; empty when the repository has no remote."""
        remotes = self._git("remote").stdout.split()
        if not remotes:
            return ""
        upstream = self._git("rev-parse", "--abbrev-ref", "--symbolic-full-name", "@{upstream}")
        if upstream.returncode == 0:
            return "git push"
        on = self._git("symbolic-ref", "--quiet", "--short", "HEAD").stdout.strip() or "HEAD"
        remote = "origin" if "origin" in remotes else remotes[0]
        return f"git push --set-upstream {remote} {on}"

    def restore(self, folder: str, commit: str, *, message: str, doing: str) -> str:
        """A new commit in which a folder is what it was at ``commit``; its short id, empty when it is so already. StalledError when git
        does not know that commit here, or refuses; the folder is as it was then."""
        if self._git("cat-file", "-e", f"{commit}^{{commit}}").returncode != 0:
            raise StalledError(f"{doing}: this clone does not have {commit[:10]}: git fetch first")
        done = self._git("restore", f"--source={commit}", "--staged", "--worktree", "--", folder)
        if done.returncode == 0 and self.unchanged(folder):
            return ""
        if done.returncode == 0:
            try:
                return self.commit(folder, message=message, doing=doing)
            except StalledError:
                self._git("restore", "--source=HEAD", "--staged", "--worktree", "--", folder)
                raise
        self._git("restore", "--source=HEAD", "--staged", "--worktree", "--", folder)
        raise StalledError(f"{doing}: git restore: {done.stderr.strip()[-SAID:]}")

    def push(self, commit: str) -> str:
        """Where the commit has gone; empty when the repository has no remote. StalledError with git's own words: the commit stays."""
        words = self.push_hint().split()
        if not words:
            return ""
        done = self._git(*words[1:], timeout=COMMITTING)
        if done.returncode == 0:
            upstream = self._git("rev-parse", "--abbrev-ref", "--symbolic-full-name", "@{upstream}")
            return upstream.stdout.strip()
        said = (done.stderr.strip() or done.stdout.strip())[-SAID:]
        behind = "rejected" in said
        raise StalledError(
            f"pushing {commit}: git does not push it: {said}: it stays committed here; "
            + ("git pull --rebase, then git push" if behind else "correct that, then git push")
        )

    def _unstage(self, *paths: str) -> None:
        """Before a branch's first commit there is nothing to go back to."""
        if self._git("rev-parse", "--verify", "--quiet", "HEAD").returncode == 0:
            self._git("reset", "--quiet", "--", *paths)
        else:
            self._git("rm", "--quiet", "--cached", "--ignore-unmatch", "--force", "--", *paths)

    def _git(self, *arguments: str, timeout: float = ASKING) -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run(
                ("git", *arguments),
                cwd=self.top,
                env={**self.environ, **(LITERALLY if arguments[0] != "check-ignore" else {})},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except FileNotFoundError as wrong:
            raise StalledError("git is not on PATH: install it") from wrong
        except subprocess.TimeoutExpired as late:
            raise StalledError(
                f"git {arguments[0]} in {self.top}: no end within {timeout:g} s: does a hook or a passphrase wait for somebody?"
            ) from late


def _place(address: str, top: Path) -> tuple[str, str] | None:
    """None: of an address that is none of ours."""
    try:
        return remote_of(without_userinfo(address).replace(f"{MASK}@", ""), base=top).place
    except InvalidError:
        return None
