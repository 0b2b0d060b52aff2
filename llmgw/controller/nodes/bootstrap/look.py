"""One look at a machine, read only, in one command: what its shell tells, then what its newest usable Python tells."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from llmgw.clock import Clock
from llmgw.controller.nodes.bootstrap.machine import Inside, Machine
from llmgw.controller.nodes.bootstrap.programs import RUNTIME, answered, said
from llmgw.controller.nodes.bootstrap.shell import Ended, Shell
from llmgw.model.problems import RetryError, StalledError
from llmgw.model.struct import Struct, replace
from llmgw.wire import codec

OLDEST: Final = (3, 10)
SECONDS: Final = 60.0
MAGIC: Final = "llmgw-look 1"
SCRIPT: Final = r"""
python=$1; work=$2; shift
printf 'llmgw-look 1\n'
printf 'uid %s\nuser %s\narch %s\nnow %s\n' "$(id -u)" "$(id -un 2>/dev/null)" "$(uname -m)" "$(date +%s)"
if [ -r /etc/os-release ]; then
  while IFS= read -r line; do
    case $line in ID=*|ID_LIKE=*|PRETTY_NAME=*) printf 'os %s\n' "$line";; esac
  done </etc/os-release
fi
there=$work
while [ ! -e "$there" ]; do there=${there%/*}; [ -n "$there" ] || there=/; done
printf 'nearest %s\n' "$there"
if [ -d "$there" ] && [ -w "$there" ] && [ -x "$there" ]; then printf 'writable yes\n'; fi
df -Pk "$there" 2>/dev/null | awk 'NR == 2 { print "free", $4 }'
found=
try() {
  [ -z "$found" ] || return 0
  said=$("$1" -I -S -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.executable)' 2>&1 </dev/null) || {
    printf 'seen %s: %s\n' "$1" "$(printf '%s' "$said" | head -n 1)"; return 0; }
  version=${said%% *}; major=${version%%.*}; minor=${version#*.}
  if [ "$major" = 3 ] && [ "$minor" -ge 10 ] 2>/dev/null; then found=${said#* }
  else printf 'seen %s: %s\n' "$1" "$version"; fi
}
if [ -n "$python" ]; then
  try "$python"
else
  for minor in 19 18 17 16 15 14 13 12 11 10; do
    for folder in /usr/bin /usr/local/bin; do
      if [ -x "$folder/python3.$minor" ]; then try "$folder/python3.$minor"; fi
    done
  done
  for name in python3 python3.13 python3.12 python3.11 python3.10; do
    [ -n "$found" ] || ! there=$(command -v "$name") || try "$there"
  done
fi
[ -n "$found" ] || { cat >/dev/null; exit 0; }
printf 'python %s\n' "$found"
exec "$found" -I -S - "$@"
"""
"""Absolute places first: what ``python3`` means on a PATH may be a shim that takes a second to start."""


class Wanted(Struct):
    """What to look for. ``python``: the one that the manifest names. ``folders`` beside the work directory."""

    node: str
    work: str
    service: str
    engine_user: str
    python: str | None = None
    folders: tuple[str, ...] = ()
    sudo: bool = False


async def look(shell: Shell, wanted: Wanted, clock: Clock) -> Machine:
    """Raises RetryError when the machine can't be reached. What is wrong with it is in the answer."""
    before = clock.now()
    refused = ""
    try:
        ended = await _run(shell, wanted, sudo=wanted.sudo)
        if wanted.sudo and ended.code is not None and MAGIC not in _text(ended).splitlines():
            refused = said(ended)
    except StalledError as wrong:
        if not wanted.sudo:
            raise
        refused = str(wrong).rpartition("…: ")[2]  # behind the command, which says nothing to a reader
    if refused:  # what else is wrong is worth knowing too
        before = clock.now()
        ended = await _run(shell, wanted, sudo=False)
    return replace(read(ended, wanted, before=before, after=clock.now()), sudo_refused=refused)


async def _run(shell: Shell, wanted: Wanted, *, sudo: bool) -> Ended:
    return await shell.run(command(wanted), stdin=program(), timeout=SECONDS, sudo=sudo)


def command(wanted: Wanted) -> Sequence[str]:
    """The words to run; the program for Python goes on standard input."""
    return (
        *("sh", "-c", SCRIPT, "sh", wanted.python or ""),
        *(wanted.work, wanted.engine_user, wanted.service, *wanted.folders),
    )


def program() -> bytes:
    return (RUNTIME / "nodelook.py").read_bytes()


def read(ended: Ended, wanted: Wanted, *, before: datetime, after: datetime) -> Machine:
    """Pure. Raises StalledError when what came is no look."""
    doing = f"node {wanted.node}: looking at the machine"
    lines = _text(ended).splitlines()
    if MAGIC not in lines:
        if ended.code is None:
            raise RetryError(f"{doing}: the line was lost")
        raise StalledError(f"{doing}: its shell gave no answer, it ended with {ended.code}: {said(ended)}")
    pairs = [line.partition(" ")[::2] for line in lines[lines.index(MAGIC) + 1 :]]
    told = dict(pairs)
    system = dict(rest.partition("=")[::2] for key, rest in pairs if key == "os")
    return Machine(
        root=told.get("uid") == "0",
        user=told.get("user") or told.get("uid", "?"),
        arch=told.get("arch", ""),
        os_ids=_os_ids(system),
        os_name=system.get("PRETTY_NAME", "").strip("\"'"),
        free=int(told["free"]) * 1024 if told.get("free", "").isdigit() else None,
        nearest=told.get("nearest", ""),
        writable=told.get("writable") == "yes",
        seen=tuple(rest for key, rest in pairs if key == "seen"),
        skew=_skew(told.get("now", ""), before, after),
        inside=_inside(ended, doing) if "python" in told else None,
    )


def _text(ended: Ended) -> str:
    return ended.out.decode(errors="replace")


def _os_ids(system: Mapping[str, str]) -> tuple[str, ...]:
    """``ubuntu debian``: what it is, then what it is like."""
    return tuple(f"{system.get('ID', '')} {system.get('ID_LIKE', '')}".replace('"', "").split())


def _skew(now: str, before: datetime, after: datetime) -> float:
    """0 while the machine's whole second lies within the time that the question took."""
    if not now.isdigit():
        return 0.0
    seconds = int(now)
    if seconds + 1 < before.timestamp():
        return seconds + 1 - before.timestamp()
    return max(0.0, seconds - after.timestamp())


def _inside(ended: Ended, doing: str) -> Inside:
    try:
        return codec.from_json(Inside, answered(ended, "look", doing=doing), strict=False)
    except codec.CodecError as wrong:
        raise StalledError(f"{doing}: {wrong}") from wrong
