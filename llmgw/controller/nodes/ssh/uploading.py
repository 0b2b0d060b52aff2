"""The script that puts a file in its place on the other side: whole or not at all. Pure.

Through a command and not SFTP, because SFTP has the rights of the login only, and sudo is how many nodes are reached.
"""

from typing import Final

from llmgw.model.problems import StalledError

SCRIPT: Final = """\
set -eu
path=$1 mode=$2 size=$3 part=$4
find "$(dirname -- "$path")" -maxdepth 1 -name '.llmgw-*.part' -mmin +60 -delete
trap 'rm -f -- "$part"' EXIT
umask 077
cat > "$part"
have=$(wc -c < "$part")
if [ "$have" -ne "$size" ]; then
  echo "got $have of $size bytes" >&2
  exit 74
fi
chmod "$mode" "$part"
sync "$part" 2>/dev/null || sync
mv -fT -- "$part" "$path" 2>/dev/null || mv -f -- "$part" "$path"
"""
"""A connection that is cut ends standard input as if the file had ended: only its size tells the difference."""

SLOWEST: Final = 100_000
"""Bytes a second below which an upload is given up."""
START: Final = 30.0


def upload(path: str, mode: int, size: int, token: str) -> tuple[str, ...]:
    """The command; the file's bytes are its standard input."""
    if not path.startswith("/") or path.endswith("/"):
        raise StalledError(f"uploading {path}: write an absolute path of a file")
    folder, _, _ = path.rpartition("/")
    part = f"{folder}/.llmgw-{token}.part"
    return ("sh", "-c", SCRIPT, "llmgw-put", path, f"{mode:04o}", str(size), part)


def within(size: int) -> float:
    """Seconds that an upload may take."""
    return START + size / SLOWEST
