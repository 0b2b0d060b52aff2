"""What was seen of weights that can't change any more, by digest, in the state directory: a file each, and not too many."""

import secrets
from pathlib import Path

from llmgw.model.struct import Struct
from llmgw.model.weights import Inspection
from llmgw.wire import codec

MAX_FILE = 4 * 1024 * 1024
MOST = 500


class Cache(Struct, kw_only=False):
    """Losing it costs a few questions, so nothing about it is ever an error."""

    folder: Path

    def read(self, digest: str) -> Inspection | None:
        try:
            with self._file(digest).open("rb") as stream:
                return codec.loads(Inspection, stream.read(MAX_FILE), strict=False)
        except (OSError, codec.CodecError):
            return None

    def write(self, digest: str, seen: Inspection) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            beside = self.folder / f".{digest}-{secrets.token_hex(4)}"
            beside.write_bytes(codec.dumps_readable(seen))
            beside.replace(self._file(digest))
            kept = sorted(self.folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
            for file in kept[MOST:]:
                file.unlink(missing_ok=True)
        except OSError:
            return

    def _file(self, digest: str) -> Path:
        return self.folder / f"{digest}.json"
