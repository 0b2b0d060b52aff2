"""The agent's settings and the lay of its work directory. Bootstrap writes ``agent.json``, the agent only reads it.

====================== ====== =========================================================================
below ``work`` (0711)   mode   what
====================== ====== =========================================================================
``agent.json``          0600   these settings
``pretended.json``      0600   what the node pretends to be, when it does
``agent.sock``          0600   the agent's socket
``agent.lock``          0600   held by the one agent; says who it is
``agent.log``           0600   what the agent logs
``state``               0700   owner and fence
``shards`` ``jobs``     0700   standing orders
``jobsecrets``          0700   what jobs need and nobody may see
``jobruns``             0700   the folders of jobs at work
``status``              0700   what the shims say of the engines' ends
``logs`` ``journal``    0700   the engines' output; what happened
``weights`` ``engines`` 0755   what jobs bring
``home``                0711   the engines' homes, each 0700
====================== ====== =========================================================================
"""

from collections.abc import Mapping
from pathlib import Path

from llmgw.model.facts import Facts
from llmgw.model.problems import StalledError
from llmgw.model.struct import Struct, replace
from llmgw.wire import codec
from llmgw.wire.doorway import SOCKET
from llmgw.wire.setup import LOCK, LOG, PRETENDED, SETTINGS, SETTINGS_FORMAT, AgentSettings

MAX_SETTINGS = 1024 * 1024
MAX_PRETENDED = 4 * 1024 * 1024

JOB_RUNS = "jobruns"
FOLDERS: Mapping[str, int] = {
    "state": 0o700,
    "shards": 0o700,
    "shards/unreadable": 0o700,  # made early: a full disk must not keep a broken order from being put aside
    "jobs": 0o700,
    "jobs/unreadable": 0o700,
    "jobsecrets": 0o700,
    JOB_RUNS: 0o700,
    "status": 0o700,
    "logs": 0o700,
    "journal": 0o700,
    "home": 0o711,
}
SHARED_MODE = 0o755


class Layout(Struct):
    """Where things are."""

    work: Path
    weights: Path
    engines: Path

    @property
    def socket(self) -> Path:
        return self.work / SOCKET

    @property
    def lock(self) -> Path:
        return self.work / LOCK

    @property
    def log(self) -> Path:
        return self.work / LOG

    @property
    def journal(self) -> Path:
        return self.work / "journal" / "journal.jsonl"

    @property
    def pretended(self) -> Path:
        return self.work / PRETENDED


def layout(work: Path, settings: AgentSettings) -> Layout:
    return Layout(
        work=work,
        weights=Path(settings.weights) if settings.weights else work / "weights",
        engines=Path(settings.engines) if settings.engines else work / "engines",
    )


def make_folders(places: Layout) -> None:
    """Idempotent; modes are set again, whatever the umask or somebody's chmod made of them."""
    try:
        places.work.mkdir(parents=True, exist_ok=True)
        places.work.chmod(0o711)
        for name, mode in FOLDERS.items():
            folder = places.work / name
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)
        for folder in (places.weights, places.engines):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(SHARED_MODE)
    except OSError as wrong:
        raise StalledError(
            f"making the agent's directories below {places.work}: {wrong.strerror}: {wrong.filename}: free space or"
            " rights there, or another work directory, will help"
        ) from wrong


def read_settings(work: Path) -> AgentSettings:
    """Raises StalledError saying what is wrong with the file."""
    file = work / SETTINGS
    settings = codec_file(AgentSettings, file, limit=MAX_SETTINGS, strict=True)
    if settings.format != SETTINGS_FORMAT:
        raise StalledError(
            f"reading {file}: format {settings.format}, this agent reads {SETTINGS_FORMAT}: bootstrap the node again"
        )
    return settings


def read_pretended(places: Layout) -> Facts:
    """What the node pretends to be. Unknown fields are refused: a misspelt one would silently mean nothing."""
    facts = codec_file(Facts, places.pretended, limit=MAX_PRETENDED, strict=True)
    return replace(facts, gpu_source="pretended")


def pretended_bytes(places: Layout) -> bytes:
    """What the settings' digest covers of the pretended facts; empty when there are none."""
    try:
        with places.pretended.open("rb") as file:
            return file.read(MAX_PRETENDED)
    except OSError:
        return b""


def _remedy(wrong: OSError, file: Path) -> str:
    if isinstance(wrong, FileNotFoundError):
        return f"no agent was set up in {file.parent}: name its directory with --work DIR, or bootstrap the node again"
    if isinstance(wrong, PermissionError):
        return "run as the user that the agent runs as, which mostly is root"
    return "bootstrap the node again"


def codec_file(kind: type[codec.T], file: Path, *, limit: int, strict: bool) -> codec.T:
    try:
        with file.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as wrong:
        raise StalledError(f"reading {file}: {wrong.strerror}: {_remedy(wrong, file)}") from wrong
    if len(data) > limit:
        raise StalledError(f"reading {file}: more than {limit} bytes: bootstrap the node again")
    try:
        return codec.loads(kind, data, strict=strict)
    except codec.CodecError as wrong:
        raise StalledError(f"reading {file}: {wrong}: bootstrap the node again") from wrong
