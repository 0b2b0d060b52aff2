"""What *ready* means for an engine that speaks the OpenAI API: it is healthy, lists the name people call it by,
and gives one token."""

import json
from typing import Literal

from llmgw.model.launch import HttpProbe, Metric, Probes

Task = Literal["generate", "embed", "rerank", "other"]


def openai_probes(
    *,
    host: str,
    port: int,
    served_name: str,
    task: Task,
    in_flight: tuple[str, ...],
    health: str = "/health",
) -> Probes:
    """Probes of a shard that serves HTTP. Everything but ``health`` is asked with the replica's key."""
    return Probes(
        port=port,
        host=host,
        ready=(
            HttpProbe(path=health),
            models_probe(served_name),
        ),
        token=token_probe(served_name, task),
        alive=HttpProbe(path=health),
        in_flight=Metric(path="/metrics", names=in_flight, authorized=True),
    )


def models_probe(served_name: str) -> HttpProbe:
    """The name is looked for in quotes, so that ``chat`` is not found in ``chat-large``."""
    return HttpProbe(path="/v1/models", authorized=True, contains=json.dumps(served_name, ensure_ascii=False))


def token_probe(served_name: str, task: Task) -> HttpProbe | None:
    """One unit of real work. A healthy answer alone has been seen from engines that could compute nothing."""
    match task:
        case "generate":
            body = {"model": served_name, "prompt": "Hi", "max_tokens": 1, "temperature": 0}
            return _post("/v1/completions", body)
        case "embed":
            return _post("/v1/embeddings", {"model": served_name, "input": "Hi"})
        case "rerank":
            return _post("/v1/rerank", {"model": served_name, "query": "Hi", "documents": ["Hi"]})
        case "other":
            return None


def _post(path: str, body: dict[str, object]) -> HttpProbe:
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return HttpProbe(path=path, method="POST", body=text, authorized=True)
