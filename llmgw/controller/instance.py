"""Names a state directory, so that two controllers which go by one name (containers, say) are never taken for one."""

import os
import secrets
from pathlib import Path

from llmgw.model.problems import StalledError

FILE = "instance"
_LONGEST = 64


def instance_of(state_dir: Path) -> str:
    """The same for every run with this state directory; made at the first. StalledError when it can't be kept."""
    path = state_dir / FILE
    try:
        if path.exists():
            return _read(path)
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = path.with_name(f".{FILE}.{secrets.token_hex(4)}")
        try:
            beside.write_text(secrets.token_hex(4))
            os.link(beside, path)
        except FileExistsError:
            pass  # it has its name
        finally:
            beside.unlink(missing_ok=True)
        return _read(path)
    except OSError as wrong:
        raise StalledError(
            f"naming the state directory {state_dir}: {wrong.strerror or wrong}: let this user write there, make room, or "
            "choose another with LLMGW_STATE_DIR"
        ) from wrong


def _read(path: Path) -> str:
    with path.open() as file:
        return file.read(_LONGEST).strip()
