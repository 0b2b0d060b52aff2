"""From what was seen at a weights' place to what plans use."""

from llmgw.engines.memory import config, ggufconfig
from llmgw.model.weights import Inspection, Weights


def weights_of(digest: str, description: str, seen: Inspection) -> Weights:
    """``problem`` says why they can't be used."""
    if seen.problem:
        return Weights(digest=digest, description=description, problem=seen.problem)
    if seen.format == "gguf":
        return ggufconfig.read(digest, description, seen)
    return config.read(digest, description, seen)
