"""Which weights engines can read that load a model as the Hugging Face library does: a directory, or one GGUF file."""

from collections.abc import Iterator

from llmgw.model.desired import DesiredModel
from llmgw.model.problems import Problem


def problems(model: DesiredModel, engine: str) -> Iterator[Problem]:
    source = model.spec.source
    file, field = None, ""
    if source.url is not None:
        file, field = source.url.partition("?")[0], "url"
    elif source.pip is not None:
        file, field = source.pip.file, "pip.file"
    if file is not None and not file.lower().endswith(".gguf"):
        yield Problem(
            what=f"spec.source.{field}: {engine} reads a model's directory or one GGUF file, and {file!r} is neither",
            instead="write huggingFace: with the repository, or path: with its directory on the node",
        )
