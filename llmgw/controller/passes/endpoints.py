"""Where models answer: every replica's URL and key, in the words of whoever wants to reach them.

Pure but for :func:`write`. The keys are secrets: what is returned here belongs on a terminal or in a 0600 file.
"""

import json
import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from llmgw.controller.passes.keyring import Keyring
from llmgw.controller.passes.saved import write_private
from llmgw.model.addresses import bare_model, is_called
from llmgw.model.ids import digest
from llmgw.model.problems import StalledError
from llmgw.model.record import FORMAT, Endpoint, EndpointAdapter, Record
from llmgw.model.struct import Struct

FORMATS = ("litellm", "nginx", "prometheus-sd")


class Reachable(Struct):
    """One replica, with the key that opens it."""

    endpoint: Endpoint
    key: str


def reachable(record: Record, keys: Keyring, model: str | None = None) -> tuple[Reachable, ...]:
    """Every published replica, or those of one model by name, served name, alias or adapter, or one replica. StalledError names the models
    that there are when it is none of them."""
    chosen = [it for it in record.endpoints if model is None or _is_meant(it, model)]
    if model is not None and not chosen:
        recorded = record.models.get(bare_model(model))
        if recorded is not None:
            raise StalledError(f"model {recorded.name} has no replica that serves: look at `llmgw status`")
        there = ", ".join(sorted({it.model for it in record.endpoints})) or "none serves yet"
        raise StalledError(f"no model is called {model}; there is: {there}")
    chosen.sort(key=lambda it: (it.model, it.replica))
    return tuple(Reachable(endpoint=it, key=keys.key(it.replica, it.key_id)) for it in chosen)


def _is_meant(endpoint: Endpoint, name: str) -> bool:
    return name in _names(endpoint) or is_called(name, model=endpoint.model, replica=endpoint.replica)


def _names(endpoint: Endpoint) -> tuple[str, ...]:
    return (
        endpoint.model,
        endpoint.served_name,
        *endpoint.aliases,
        *(it.name for it in endpoint.adapters),
    )


def ready(found: Sequence[Reachable]) -> tuple[Reachable, ...]:
    """Without those that only finish what they have begun."""
    return tuple(it for it in found if it.endpoint.state == "ready")


def as_table(found: Sequence[Reachable]) -> str:
    """For people. The keys are shown: that is what the command is asked for."""
    if not found:
        return "No replica serves yet.\n"
    rows = [("MODEL", "REPLICA", "STATE", "URL", "KEY")]
    rows += [
        (it.endpoint.served_name, it.endpoint.replica, it.endpoint.state, it.endpoint.url, it.key)
        for it in found
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    text = lines[0] + "\n"
    for line, it in zip(lines[1:], found, strict=True):
        text += f"{line}\n"
        for adapter in it.endpoint.adapters:
            text += f"    adapter {adapter.name}: send {json.dumps(dict(adapter.send), ensure_ascii=False)}\n"
    return text


def as_env(found: Sequence[Reachable]) -> str:
    """Lines for ``eval``, of the first ready replica."""
    serving = ready(found)
    if not serving:
        raise StalledError("no replica is ready: look at `llmgw status`, and ask again when one is")
    first = serving[0]
    pairs = {
        "OPENAI_BASE_URL": first.endpoint.url,
        "OPENAI_API_KEY": first.key,
        "OPENAI_MODEL": first.endpoint.served_name,
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in pairs.items())


def as_json(found: Sequence[Reachable], record: Record) -> str:
    """See schemas/endpoints.schema.json."""
    document = {
        "format": FORMAT,
        "fleet": record.fleet,
        "serial": record.serial,
        "endpoints": [
            {
                "model": it.endpoint.model,
                "servedName": it.endpoint.served_name,
                "aliases": list(it.endpoint.aliases),
                "replica": it.endpoint.replica,
                "address": it.endpoint.address,
                "port": it.endpoint.port,
                "url": it.endpoint.url,
                "keyId": it.endpoint.key_id,
                "key": it.key,
                "state": it.endpoint.state,
                "adapters": [
                    {"name": adapter.name, "send": dict(adapter.send)} for adapter in it.endpoint.adapters
                ],
            }
            for it in found
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_format(found: Sequence[Reachable], name: str) -> str:
    match name:
        case "litellm":
            return _litellm(ready(found))
        case "nginx":
            return _nginx(ready(found))
        case "prometheus-sd":
            return prometheus_sd([it.endpoint for it in found])
        case _:
            raise StalledError(f"no format is called {name}: use one of {', '.join(FORMATS)}")


def _litellm(found: Sequence[Reachable]) -> str:
    """``model_list`` of a LiteLLM proxy: one entry a replica and name, which it balances over. JSON is YAML."""
    entries: list[dict[str, object]] = [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"openai/{it.endpoint.served_name}",
                "api_base": it.endpoint.url,
                "api_key": it.key,
            },
        }
        for it in found
        for name in (it.endpoint.served_name, *it.endpoint.aliases)
    ]
    entries += [_litellm_adapter(it, adapter) for it in found for adapter in it.endpoint.adapters]
    return json.dumps({"model_list": entries}, indent=2, ensure_ascii=False) + "\n"


def _litellm_adapter(it: Reachable, adapter: EndpointAdapter) -> dict[str, object]:
    """Called by the adapter's own name; what a request needs besides goes along by itself."""
    fields = dict(adapter.send)
    params = {
        "model": f"openai/{fields.pop('model', it.endpoint.served_name)}",
        "api_base": it.endpoint.url,
        "api_key": it.key,
        **({"extra_body": fields} if fields else {}),
    }
    return {"model_name": adapter.name, "litellm_params": params}


def _nginx(found: Sequence[Reachable]) -> str:
    """For the ``http`` block: two variables a model, where a request goes and the key that opens it there. The place
    is drawn before the request is sent, because an ``upstream`` block can't give each of its servers a key."""
    models: defaultdict[str, list[Reachable]] = defaultdict(list)
    for it in found:
        models[it.endpoint.model].append(it)
    lines: list[str] = []
    for model, members in sorted(models.items()):
        place, key = f"$llmgw_{_word(model)}", f"$llmgw_{_word(model)}_key"
        share = f"{int(10_000 / len(members)) / 100:g}%"
        lines.append(f"# proxy_pass http://{place}; proxy_set_header Authorization {key};")
        lines.append(f'split_clients "$request_id" {place} {{')
        lines += [f'    {share} "{_authority(it.endpoint)}";' for it in members[:-1]]
        lines += [f'    * "{_authority(members[-1].endpoint)}";', "}"]
        lines.append(f"map {place} {key} {{")
        lines += [f'    "{_authority(it.endpoint)}" "Bearer {it.key}";' for it in members]
        lines += ["}", ""]
    return "\n".join(lines) if lines else "# no replica is ready\n"


def prometheus_sd(endpoints: Sequence[Endpoint]) -> str:
    """For ``file_sd_configs`` and ``http_sd_configs``: one target a replica. Engines whose metrics need the key need it in the
    scrape job."""
    targets = [
        {
            "targets": [_authority(endpoint)],
            "labels": {
                "model": endpoint.model,
                "served_name": endpoint.served_name,
                "replica": endpoint.replica,
                "state": endpoint.state,
            },
        }
        for endpoint in endpoints
    ]
    return json.dumps(targets, indent=2, ensure_ascii=False) + "\n"


def _authority(endpoint: Endpoint) -> str:
    host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
    return f"{host}:{endpoint.port}"


def _word(name: str) -> str:
    """A variable's name, another for every model: ``a-b`` becomes ``a_b``, so ``a.b`` must be something else."""
    word = name.replace("-", "_").replace(".", "_")
    return f"{word}_{digest(name)[:8]}" if "." in name else word


def write(text: str, path: Path) -> None:
    """Whole or not at all, mode 0600: whoever can read it can use the models."""
    write_private(path, text.encode())
