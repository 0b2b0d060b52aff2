"""What git's words mean for us: its exit status tells failure, only its text tells which.

Git has no error codes, so this one table reads its messages (the runner sets ``LC_ALL=C``). A message it does not
know is a failure that a person must look at, never a reason to try again.
"""

from datetime import timedelta
from enum import Enum

from llmgw.model.problems import LlmgwError, RetryError, StalledError


class FailureKind(Enum):
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    HOST_KEY = "host-key"
    CERTIFICATE = "certificate"
    DENIED = "denied"
    CHECKED_OUT = "checked-out"
    NO_REPOSITORY = "no-repository"
    NO_REF = "no-ref"
    NO_OBJECT = "no-object"
    LOST_RACE = "lost-race"
    UNTRUSTED = "untrusted"
    FULL = "full"
    LOCKED = "locked"
    CORRUPT = "corrupt"
    TOO_LARGE = "too-large"
    NOT_BROUGHT = "not-brought"
    NO_GIT = "no-git"
    OTHER = "other"


# The first kind with a text that occurs wins: the narrow ones stand above the broad ones, which git often adds
# as a second line ("Could not read from remote repository" follows a refused key as well as a dead host).
_TABLE: tuple[tuple[FailureKind, tuple[str, ...]], ...] = (
    (FailureKind.UNTRUSTED, ("dubious ownership",)),
    (FailureKind.FULL, ("no space left on device", "disk quota exceeded", "file too large")),
    (FailureKind.HOST_KEY, ("host key verification failed", "host identification has changed")),
    (
        FailureKind.CERTIFICATE,
        (
            "certificate verification failed",
            "ssl certificate problem",
            "error setting certificate",
            "certificate subject name",
        ),
    ),
    # A call that may talk to nobody lacked a file of a partial mirror. Which of git's two halves tells it is chance.
    (
        FailureKind.NOT_BROUGHT,
        (
            "from promisor remote",
            "transport 'https' not allowed",
            "transport 'ssh' not allowed",
        ),
    ),
    (FailureKind.CHECKED_OUT, ("refusing to update checked out branch", "branch is currently checked out")),
    (
        FailureKind.DENIED,
        (
            "hook declined",
            "permission denied",
            "permission to ",
            "protected branch",
            "authentication failed",
            "access denied",
            "could not read username",
            "could not read password",
            "insufficient permission",
            "unpacker error",
            "read-only file system",
            "requested url returned error: 401",
            "requested url returned error: 403",
            "deny updating a hidden ref",
            "prohibited",
        ),
    ),
    (
        FailureKind.LOST_RACE,
        (
            "fetch first",
            "non-fast-forward",
            "stale info",
            "failed to update ref",
            "cannot lock ref",
            "incorrect old value provided",
            "reference already exists",
            "remote contains work",
        ),
    ),
    (FailureKind.NO_REF, ("couldn't find remote ref",)),
    (
        FailureKind.UNREACHABLE,
        (
            "could not resolve host",
            "name or service not known",
            "temporary failure in name resolution",
            "connection refused",
            "connection timed out",
            "connection reset",
            "connection closed by",
            "network is unreachable",
            "no route to host",
            "operation timed out",
            "broken pipe",
            "early eof",
            "failed to connect",
            "requested url returned error: 5",
        ),
    ),
    (
        FailureKind.NO_REPOSITORY,
        (
            "does not appear to be a git repository",
            "repository not found",
            "error: 404",
            "no such file or directory",
        ),
    ),
    (FailureKind.LOCKED, (".lock': file exists",)),
    (
        FailureKind.NO_OBJECT,
        (
            "not a valid object name",
            "unknown revision",
            "not our ref",
            "not a tree object",
            "not a valid commit",
        ),
    ),
    (
        FailureKind.CORRUPT,
        (
            "bad object",
            "corrupt",
            "missing blob",
            "missing tree",
            "unable to read",
            "could not read",
            "object file",
            "packfile",
            "bad config",
            "not a git repository",
            "invalid index-pack output",
            "did not send all necessary objects",
        ),
    ),
    (FailureKind.UNREACHABLE, ("could not read from remote repository", "the remote end hung up")),
)


def kind_of(stderr: str) -> FailureKind:
    lowered = stderr.lower()
    if "could not read from remote repository" in lowered:
        lowered = lowered.replace("could not read from remote repository", "", 1)
        known = _look_up(lowered)
        return FailureKind.UNREACHABLE if known is FailureKind.OTHER else known
    return _look_up(lowered)


def _look_up(lowered: str) -> FailureKind:
    for kind, texts in _TABLE:
        if any(text in lowered for text in texts):
            return kind
    return FailureKind.OTHER


class GitError(LlmgwError):
    """Git failed. ``said`` is the end of what it said, redacted; callers turn this into an error typed by what
    happens next with :func:`explained`."""

    def __init__(self, doing: str, said: str, *, kind: FailureKind, code: int | None = None) -> None:
        super().__init__(f"{doing}: {said or f'git ended with {code}'}")
        self.doing = doing
        self.said = said or f"git ended with {code}"
        self.kind = kind
        self.code = code


_TRY: dict[FailureKind, str] = {
    FailureKind.UNREACHABLE: "check the address and the network; nothing was changed",
    FailureKind.TIMEOUT: "the repository is slow or out of reach; nothing was changed",
    FailureKind.HOST_KEY: "compare the server's key with the one your provider publishes, then put it into hostKeys of "
    "llmgw.yaml or into known_hosts (ssh-keyscan shows it); it is never accepted by itself",
    FailureKind.CERTIFICATE: "if the host has a certificate of your own authority, name that with caFile",
    FailureKind.DENIED: "give the key (gitIdentity) or the token (token) the right it lacks (read for manifests, write for "
    "the state branch), or name another repository for the record with stateRepo",
    FailureKind.CHECKED_OUT: "that branch is checked out there: choose another name with --state-ref, or check out "
    "another branch",
    FailureKind.NO_REPOSITORY: "check --repo, and that this user may read it",
    FailureKind.NO_REF: "check --branch",
    FailureKind.NO_OBJECT: "give a commit that is in the repository",
    FailureKind.LOST_RACE: "somebody else wrote first: plan again",
    FailureKind.UNTRUSTED: "the repository belongs to another user; name it with --repo to say that you trust it, or "
    "run this as its owner",
    FailureKind.FULL: "make room on that disk and run this again",
    FailureKind.LOCKED: "another git is at work there, or one was killed: wait, then remove the file it names",
    FailureKind.CORRUPT: "run git fsck there and repair it or clone it anew; nothing was changed",
    FailureKind.TOO_LARGE: "point --path to a smaller part of the repository",
    FailureKind.NOT_BROUGHT: "run this again while the repository can be reached",
    FailureKind.NO_GIT: "install git (on Debian and Ubuntu: apt install git)",
    FailureKind.OTHER: "read what git says, and run it by hand there if that does not tell enough",
}

RETRY_AFTER = timedelta(seconds=5)
"""A repository that does not answer is asked again no sooner: most outages last longer, and pollers add up."""

_PASSING = {FailureKind.UNREACHABLE, FailureKind.TIMEOUT, FailureKind.LOCKED}


def explained(error: GitError, *, hint: str = "") -> RetryError | StalledError:
    """The same failure, typed by what happens next and with what to try."""
    message = f"{error}: {hint or _TRY[error.kind]}"
    if error.kind in _PASSING:
        return RetryError(message, after=RETRY_AFTER)
    return StalledError(message)
