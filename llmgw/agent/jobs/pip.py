"""How jobs call pip: its command lines, its environment and what its failures mean. Where packages come from travels in
the environment, because an index's address may hold a password and every user of a machine can read command lines.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from llmgw.agent.jobs.commands import Ended
from llmgw.model.problems import StalledError

_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
VERSIONS_SHOWN = 3
NO_PIP = "No module named pip"


def without_credentials(text: str) -> str:
    """``https://ann:secret@host/`` -> ``https://***@host/``."""
    return _CREDENTIALS.sub("***@", text)


def _newest(listed: re.Match[str]) -> str:
    """Pip lists every version there ever was, and the newest last."""
    versions = listed[1].split(", ")
    if len(versions) <= VERSIONS_SHOWN:
        return listed[0]
    return f"(newest versions: {', '.join(versions[-VERSIONS_SHOWN:])})"


def pip_environment(
    base: Mapping[str, str], *, index_url: str | None, wheel_dir: str | None, temporary: Path
) -> dict[str, str]:
    """``temporary`` is on the disk that the job writes to: /tmp is often too small for what engines bring."""
    env = {
        **base,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_PROGRESS_BAR": "off",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(temporary),
    }
    if wheel_dir is not None:
        env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(Path(wheel_dir).expanduser())}
    elif index_url is not None:
        env["PIP_INDEX_URL"] = index_url
    return env


def require_wheel_dir(wheel_dir: str | None) -> None:
    """Pip itself only warns about a missing directory and then says that nothing matches."""
    if wheel_dir is not None and not Path(wheel_dir).expanduser().is_dir():
        raise StalledError(
            f"looking for packages in {wheel_dir}: no such directory on this node: copy the wheels there, or change"
            " pip.wheelDir"
        )


def pip_failure(doing: str, ended: Ended) -> StalledError:
    """What failed, with pip's own error lines first."""
    lines = [without_credentials(line) for line in ended.last_lines]
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-5:]
    why = (
        "; ".join(_VERSIONS.sub(_newest, line) for line in errors)
        or f"pip said nothing and ended with {ended.code}"
    )
    if any(NO_PIP in line for line in lines):
        why = "this Python has no pip: install it (Debian, Ubuntu: apt install python3-pip python3-venv)"
    elif any("No space left on device" in line for line in lines):
        why = f"the disk is full: {why}"
    return StalledError(f"{doing}: {why}")
