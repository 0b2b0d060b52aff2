"""Fetches one repository of a Hugging Face hub at one revision: every file proved, interrupted downloads gone on with.

Standard library and huggingface_hub only, Python 3.10, one file: the agent runs it with the Python of the environment that
it has made for huggingface_hub. What to do comes as JSON on standard input, because command lines can be read by others::

    {"repo": "owner/name", "revision", "folder": dir, "token": text | null}

It tells, one JSON object a line on standard output: ``{"event": "plan", "commit", "files", "bytes", "have", "left_out"}``,
``{"event": "file", "path", "done", "files"}`` for each that is whole, and last ``{"event": "done"}`` or ``{"event": "error",
"kind", "text"}``. Kinds: gated, missing, revision, auth, retry, full, bad.

A file lies in ``folder`` under its name only when its hash is what the repository says: the SHA-256 of large files, Git's own
hash of small ones. Until then it lies in ``folder/.hub``, which is gone at the end.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

PARTIAL = ".hub"
WORKERS = 4
CHUNK = 1024 * 1024
MAX_FILES = 20_000
MAX_ORDER = 64 * 1024
RETRY_STATUS = (408, 425, 429, 500, 502, 503, 504)

FOREIGN = (".h5", ".msgpack", ".ot", ".tflite", ".onnx", ".mlmodel", ".mlpackage", ".ckpt")
"""Weights for frameworks that no engine of ours reads."""
FOREIGN_FOLDERS = ("original", "onnx", "openvino", "coreml", "metal")
"""The same weights once more, in another form."""
PICKLED = (".bin", ".pt", ".pth")
"""Left out where the same folder has safetensors: the same weights, and reading them runs code."""


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault
    """Why it was not fetched."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def main() -> int:
    try:
        order = json.loads(sys.stdin.buffer.read(MAX_ORDER))
        fetch(order["repo"], order["revision"], order["folder"], order["token"])
    except Refused as refused:
        tell(event="error", kind=refused.kind, text=str(refused))
        return 1
    except Exception as wrong:  # noqa: BLE001 - whatever it is, it must be told in a way that the agent understands
        kind, text = explained(wrong)
        tell(event="error", kind=kind, text=text)
        return 1
    tell(event="done")
    return 0


def tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def fetch(repo: str, revision: str, folder: str, token: str | None) -> None:
    from huggingface_hub import HfApi  # noqa: PLC0415 - its absence must be told like every other error

    about = HfApi(token=token or False).model_info(repo, revision=revision, files_metadata=True)
    commit = about.sha or revision
    files, left_out = chosen([Remote(sibling) for sibling in about.siblings or []])
    if not files:
        raise Refused("bad", "the repository has no files that an engine reads")
    partial = os.path.join(folder, PARTIAL)
    os.makedirs(partial, exist_ok=True)
    have = sum(present(file, folder, partial) for file in files)
    tell(
        event="plan",
        commit=commit,
        files=len(files),
        bytes=sum(file.size for file in files),
        have=have,
        left_out=left_out,
    )
    done = 0
    with ThreadPoolExecutor(WORKERS) as pool:
        wanted = Wanted(repo, commit, folder, partial, token)
        work = [pool.submit(wanted.bring, file) for file in files]
        try:
            for ended in as_completed(work):
                done += 1
                tell(event="file", path=ended.result(), done=done, files=len(files))
        except BaseException:
            wanted.over.set()
            for one in work:
                one.cancel()
            raise
    remove_others(folder, {file.path for file in files})


# ---- What the repository has ----------------------------------------------------------------------------


class Remote:
    """A file as the repository describes it. ``sha256`` where it is a large one, else ``blob``, Git's hash."""

    def __init__(self, sibling: Any) -> None:
        self.path = str(sibling.rfilename)
        lfs = sibling.lfs
        self.sha256 = str(lfs.sha256) if lfs is not None else None
        self.blob = sibling.blob_id
        size = lfs.size if lfs is not None else sibling.size
        if size is None:
            raise Refused("bad", f"the hub does not tell the size of {self.path}: is it a hub?")
        self.size = int(size)
        parts = self.path.split("/")
        if self.path.startswith("/") or any(part in ("", ".", "..") for part in parts) or "\0" in self.path:
            raise Refused(
                "bad", f"the repository holds a file called {self.path!r:.100}, which is no plain path"
            )

    @property
    def folder(self) -> str:
        return os.path.dirname(self.path)


def chosen(files: list[Remote]) -> tuple[list[Remote], list[str]]:
    """What an engine may read, and what is left out."""
    if len(files) > MAX_FILES:
        raise Refused("bad", f"the repository has {len(files)} files: more than {MAX_FILES} are not fetched")
    safe = {file.folder for file in files if file.path.endswith(".safetensors")}
    taken, left = [], []
    for file in sorted(files, key=lambda file: -file.size):
        parts = file.path.split("/")
        foreign = file.path.endswith(FOREIGN) or parts[0] in FOREIGN_FOLDERS
        pickled = file.path.endswith(PICKLED) and file.folder in safe
        hidden = any(part.startswith(".") for part in parts)
        if foreign or pickled or hidden:
            left.append(file.path)
        else:
            taken.append(file)
    return taken, sorted(left)[:100]


def present(file: Remote, folder: str, partial: str) -> int:
    """Bytes of it that lie there, whole or not."""
    for path in (os.path.join(folder, file.path), partial_of(file, partial)):
        if os.path.isfile(path):
            return min(os.stat(path).st_size, file.size)
    return 0


def partial_of(file: Remote, partial: str) -> str:
    """Named by what it must become, so that another revision never goes on with it."""
    name = f"{file.path}\0{file.sha256 or file.blob}\0{file.size}"
    return os.path.join(partial, hashlib.sha256(name.encode()).hexdigest()[:32])


# ---- One file ---------------------------------------------------------------------------------------------


class Wanted:
    """Brings single files of one commit. ``over``: another one has failed."""

    def __init__(self, repo: str, commit: str, folder: str, partial: str, token: str | None) -> None:
        self.repo = repo
        self.commit = commit
        self.folder = folder
        self.partial = partial
        self.token = token
        self.over = threading.Event()

    def bring(self, file: Remote) -> str:
        target = os.path.join(self.folder, file.path)
        if os.path.isfile(target) and self.matches(file, target):
            return file.path
        half = partial_of(file, self.partial)
        self.download(file, half)
        if not self.matches(file, half):
            os.unlink(half)
            raise Refused("retry", f"{file.path}: what came is not what the repository says it holds")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(half, target)
        return file.path

    def download(self, file: Remote, half: str) -> None:
        from huggingface_hub import hf_hub_url  # noqa: PLC0415 - see fetch
        from huggingface_hub.file_download import http_get  # noqa: PLC0415 - see fetch
        from huggingface_hub.utils import (  # type: ignore[attr-defined] # noqa: PLC0415 - it is documented there
            build_hf_headers,
        )

        with open(half, "ab") as sink:
            have = sink.tell()
            if have > file.size:
                sink.truncate(0)
                have = 0
            if have < file.size:
                try:
                    http_get(
                        hf_hub_url(self.repo, file.path, revision=self.commit),
                        sink,
                        resume_size=have,
                        headers=build_hf_headers(token=self.token or False),
                        expected_size=file.size,
                    )
                except OSError as wrong:
                    if "Consistency check failed" in str(wrong):  # more or less than it should be: begin anew
                        sink.truncate(0)
                        raise Refused("retry", f"{file.path}: it did not come in its length") from wrong
                    raise
            sink.flush()
            os.fsync(sink.fileno())

    def matches(self, file: Remote, path: str) -> bool:
        if os.stat(path).st_size != file.size:
            return False
        if file.sha256 is None and not file.blob:
            return True  # its size is all that is known of it
        sha = hashlib.sha256() if file.sha256 else git_hash(file)
        with open(path, "rb") as source:
            for data in self.chunks(source):
                sha.update(data)
        return sha.hexdigest() == (file.sha256 or file.blob)

    def chunks(self, source: Any) -> Iterator[bytes]:
        while data := source.read(CHUNK):
            if self.over.is_set():
                raise Refused("retry", "another file has failed")
            yield data


def git_hash(file: Remote) -> Any:
    """Of a blob: SHA-1 in repositories of the usual format, SHA-256 in the other."""
    start = f"blob {file.size}\0".encode()
    return hashlib.sha256(start) if len(file.blob) == 64 else hashlib.sha1(start)  # noqa: S324 - Git's, not ours


def remove_others(folder: str, wanted: set[str]) -> None:
    """What an earlier try has left and this revision does not have; and what was half done."""
    shutil.rmtree(os.path.join(folder, PARTIAL))
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            if os.path.relpath(path, folder) not in wanted:
                os.unlink(path)


# ---- What went wrong --------------------------------------------------------------------------------------


def explained(wrong: Exception) -> tuple[str, str]:
    """An error by what happens next."""
    from huggingface_hub import errors  # noqa: PLC0415 - see fetch

    status = getattr(getattr(wrong, "response", None), "status_code", None)
    from_the_line = type(wrong).__module__.startswith(("httpx", "httpcore"))
    kinds = (
        ("gated", isinstance(wrong, errors.GatedRepoError)),
        ("revision", isinstance(wrong, errors.RevisionNotFoundError)),
        ("auth", status in (401, 403)),
        ("missing", isinstance(wrong, errors.RepositoryNotFoundError)),
        ("retry", status in RETRY_STATUS),
        ("full", isinstance(wrong, OSError) and wrong.errno in (errno.ENOSPC, errno.EDQUOT)),
        ("retry", status is None and (from_the_line or isinstance(wrong, ConnectionError | TimeoutError))),
    )
    kind = next((kind for kind, holds in kinds if holds), "bad")
    return kind, one_line(str(wrong)) or type(wrong).__name__


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()[:600]


if __name__ == "__main__":
    sys.exit(main())
