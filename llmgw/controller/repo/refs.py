"""Names of refs, commits and paths in a repository, checked before git ever sees them."""

import re
from pathlib import PurePosixPath

from llmgw.model.ids import Commit
from llmgw.model.problems import InvalidError, Problem

_COMMIT = re.compile(r"^[0-9a-f]{40}([0-9a-f]{24})?$")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")
_STEPS = re.compile(r"(?:[~^]\d{0,4})+$")
LONGEST = 200


def is_commit(text: str) -> bool:
    """A full commit id: 40 hex digits, or 64 in a SHA-256 repository."""
    return _COMMIT.match(text) is not None


def commit_id(text: str) -> Commit:
    """Raises ValueError: a commit that reaches git must be one by its form."""
    if not is_commit(text):
        raise ValueError(f"{text!r:.80} is no full commit id")
    return Commit(text)


def is_ref_name(text: str) -> bool:
    """The rules of ``git check-ref-format --branch``, for a branch or tag without its ``refs/…/``."""
    if not text or len(text) > LONGEST or _FORBIDDEN.search(text):
        return False
    if text[0] in "-/" or text[-1] in "/." or text in {"@", "HEAD"}:
        return False
    return not any(part.startswith(".") or part.endswith(".lock") for part in text.split("/"))


def steps_back(name: str) -> tuple[str, str]:
    """``main~2`` -> ``main`` and ``~2``: a name, and how many commits behind it are meant."""
    steps = _STEPS.search(name[:LONGEST])
    return (name, "") if steps is None else (name[: steps.start()], steps[0])


def branch_ref(name: str, *, what: str) -> str:
    """``main`` -> ``refs/heads/main``. Raises InvalidError naming the setting that holds it."""
    short = name.removeprefix("refs/heads/")
    if not is_ref_name(short):
        raise InvalidError(
            (
                Problem(
                    what=f"{what}: {name!r} is no branch name",
                    instead="write a name such as main or llmgw/state",
                ),
            )
        )
    return f"refs/heads/{short}"


def repository_path(text: str, *, what: str) -> str:
    """A path inside a repository in its one form: no leading or trailing slash, ``.`` for the top.

    Raises InvalidError for what would lead out of it."""
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\0" in text or ".git" in path.parts:
        raise InvalidError(
            (
                Problem(
                    what=f"{what}: {text!r} is no path inside the repository",
                    instead="write it from the repository's top, such as manifests or fleets/lab",
                ),
            )
        )
    return str(path)
