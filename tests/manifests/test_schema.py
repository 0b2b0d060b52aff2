"""What the schemas refuse, in words and with places; and that schemas, defaults and pages say the same."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema_rs
import pytest
from msgspec.inspect import is_struct, is_struct_type

from llmgw.controller.repo.layout import ENDPOINTS, HEAD, Kept, changes
from llmgw.manifests import decode, schema, yamltext
from llmgw.model import ids, units
from llmgw.model.facts import Facts
from llmgw.model.ids import Commit, FleetId
from llmgw.model.manifest import KINDS, Duration, FromFile, Metadata, Secret, Size
from llmgw.model.plan import Basis, Plan
from llmgw.model.record import Endpoint, NodeRecord, Record
from llmgw.model.struct import default_of, fields
from llmgw.wire.codec import from_json, to_json
from tests.manifests import derive

KIND_FILES = ("fleet", "node", "profile", "model")
HEADS = {
    "Model": "apiVersion: llmgw/v1\nkind: Model\nmetadata: {name: m}\nspec:\n",
    "Profile": "apiVersion: llmgw/v1\nkind: Profile\nmetadata: {name: p}\nspec:\n",
    "Node": "apiVersion: llmgw/v1\nkind: Node\nmetadata: {name: n}\nspec:\n",
    "Fleet": "apiVersion: llmgw/v1\nkind: Fleet\nmetadata: {name: f}\nspec:\n",
}
NEEDED = {"Model": ("source", "profile"), "Profile": ("engine",), "Node": (), "Fleet": ()}
FILLED = {
    "source": "  source: {path: /x}\n",
    "profile": "  profile: p\n",
    "engine": "  engine: {name: sim}\n",
}


def problems(text: str) -> list[str]:
    documents, wrong = yamltext.read("f.yaml", text.encode())
    assert wrong == []
    return [str(problem) for document in documents for problem in schema.check("f.yaml", document)]


def spec(kind: str, line: str) -> list[str]:
    """Problems of one more line in the spec of an otherwise right document; it stands on line 5."""
    field = line.partition(":")[0].strip()
    return problems(
        HEADS[kind] + f"  {line}\n" + "".join(FILLED[name] for name in NEEDED[kind] if name != field)
    )


@pytest.mark.parametrize(
    ("kind", "line", "problem"),
    [
        ("Model", "protect: no", '5:12: spec.protect must be true or false, not the text "no": write false: YAML 1.2'),
        ("Model", "protect: On", '5:12: spec.protect must be true or false, not the text "On": write true'),
        ("Model", 'protect: "true"', "5:12: spec.protect must be true or false, not the text"),
        ("Model", "replicas: 1e-5", "5:13: spec.replicas must be a whole number, not the number 1e-05 (written 1e-5)"),
        ("Model", "replicas: 22:22", '5:13: spec.replicas must be a whole number, not the text "22:22"'),
        ("Model", 'replicas: "3"', '5:13: spec.replicas must be a whole number, not the text "3": write it without'),
        ("Model", "replicas: -1", "5:13: spec.replicas is -1: write at least 0"),
        ("Model", "servedName: 1.10", '5:15: spec.servedName must be text, not the number 1.1 (written 1.10): quote it: "1.10"'),
        ("Model", "servedName: true", '5:15: spec.servedName must be text, not true: quote it: "true"'),
        ("Model", "aliases: default", '5:12: spec.aliases must be a list, not the text "default": write a list: ["default"]'),
        ("Model", "args: --temp 0.1", '5:9: spec.args must be a list, not the text "--temp 0.1": write a list: ["--temp", "0.1"]'),
        ("Model", "args: --a 'b c'", 'write a list: ["--a", "b c"]'),
        ("Model", "args: don't", "write a list with one word an item"),
        ("Profile", "custom: {command: run --port 1}", 'write a list: ["run", "--port", "1"]'),
        ("Model", "aliases: [a, a]", "5:3: spec.aliases names something twice: keep one"),
        ("Model", "placement:", "5:13: spec.placement must be a map of `key: value`, not nothing: write a value, or leave"),
        ("Model", "task: generat", '5:9: spec.task can\'t be the text "generat": did you mean generate?'),
        ("Model", "args: [-c, 2048]", '5:14: spec.args[1] must be text, not the number 2048: quote it: "2048"'),
        ("Model", "env: {A: 4}", '5:12: spec.env.A can\'t be the number 4: quote it: "4"'),
        ("Model", "env: {A-B: x}", '5:9: the key "A-B" can\'t stand in spec.env: write letters, digits and underscores'),
        ("Model", 'replicas: "007"', '5:13: spec.replicas must be a whole number, not the text "007": write it without quotes: 7'),
        ("Model", "env: {A: {fromenv: X}}", "5:9: spec.env.A is a map without fromEnv or fromFile: did you mean fromEnv?"),
        ("Model", "env: {A: {x: X}}", "5:9: spec.env.A is a map without fromEnv or fromFile: write text in quotes, {fromEnv: NAME}"),
        ("Model", "env: {A: {fromFile: rel.txt}}", "5:9: spec.env.A.fromFile must be an absolute path, or one that begins with ~/: write one such as"),
        ("Model", "env: {A: {fromEnv: 1bad}}", "5:9: spec.env.A.fromEnv must be a variable's name: letters, digits and _, and no digit first"),
        ("Model", "env: {A: {fromEnv: X, fromFile: /x}}", "5:9: spec.env.A has fromEnv and fromFile: keep one of them"),
        ("Model", "env: {A: {fromEnv: X, y: z}}", "5:9: spec.env.A has more than fromEnv: leave the other keys out: {fromEnv: HF_TOKEN}"),
        ("Model", "source: {huggingFace: a/b, token: {fromFile: x}}", "spec.source.token.fromFile must be an absolute path"),
        ("Model", "rollout: {max_surge: 1}", '5:13: unknown field "spec.rollout.max_surge": did you mean maxSurge?'),
        ("Model", "rollout: {maxUnavailable: all}", "5:29: spec.rollout.maxUnavailable can't be the text"),
        ("Model", "rollout: {drainTimeout: 22:22}", "5:27: spec.rollout.drainTimeout can't be the text"),
        ("Model", "rollout: {drainTimeout: 90}", "5:27: spec.rollout.drainTimeout must be text, not the number 90: write a duration"),
        ("Model", "replica: 3", '5:3: unknown field "spec.replica": did you mean replicas?'),
        ("Model", "frobnicate: 3", '5:3: unknown field "spec.frobnicate": '),
        ("Model", "source: {path: /x, url: y}", "5:3: spec.source has path and url: write exactly one of"),
        ("Model", "source: {revision: x}", "5:3: spec.source has none of huggingFace, path, url, pip: write exactly one"),
        ("Model", "source: {url: https://x/y}", "5:3: spec.source has url without sha256: write sha256 too"),
        ("Model", "source: {pip: {requirement: x, file: ../y, sha256: z}}", "5:31: spec.source.pip.requirement can't be"),
        ("Profile", "engine: {name: vllm, version: 1.10}", '5:33: spec.engine.version must be text, not the number 1.1 (written 1.10): quote it: "1.10"'),
        ("Profile", "engine: {name: vlm}", '5:18: spec.engine.name can\'t be the text "vlm": did you mean vllm?'),
        ("Profile", "engine: {version: a}", "5:3: spec.engine lacks name: write `name:`"),
        ("Profile", 'engine: {name: vllm, version: "1", path: /x}', "5:3: spec.engine has version and path"),
        ("Profile", "startupTimeout: 0s", '5:19: spec.startupTimeout can\'t be the text "0s": zero makes no sense here'),
        ("Profile", "memory: 60 GB", '5:11: spec.memory can\'t be the text "60 GB": write a size'),
        ("Profile", "memory: 0GiB", "zero makes no sense here"),
        ("Profile", "gpuMemoryUtilization: 0", "5:25: spec.gpuMemoryUtilization is 0: write more than 0"),
        ("Profile", "gpuMemoryUtilization: 1.5", "5:25: spec.gpuMemoryUtilization is 1.5: write at most 1"),
        ("Profile", "nodes: 0", "5:10: spec.nodes is 0: write at least 1"),
        ("Profile", "gpus: {share: 0MB}", "zero makes no sense here"),
        ("Node", "local: {facts: /etc/passwd}", "5:18: spec.local.facts can't be the text"),
        ("Node", "local: {workDir: relative}", "5:20: spec.local.workDir can't be the text"),
        ("Node", "ports: {from: 0}", "5:17: spec.ports.from is 0: write at least 1"),
        ("Node", "reserve: {gpus: [0]}", "5:20: spec.reserve.gpus[0] must be text, not the number 0: write a UUID"),
        ("Node", "address: 10.0.0.1:80/x", "5:12: spec.address can't be the text"),
        ("Fleet", "prune: {maxFraction: 30}", "5:24: spec.prune.maxFraction is 30: write at most 1"),
        ("Fleet", "pip: {indexUrl: file:///x}", "5:19: spec.pip.indexUrl can't be the text"),
        ("Fleet", "replicas: 1", '5:3: unknown field "spec.replicas": known here: prune, '),
    ],
)  # fmt: skip
def test_a_wrong_field_is_told_with_place_words_and_remedy(kind: str, line: str, problem: str) -> None:
    found = spec(kind, line)
    assert any(problem in text and text.startswith("f.yaml:5:") for text in found), found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\n", "f.yaml:1:1: a document without kind: write `kind:`"),
        ("kind: modle\n", 'f.yaml:1:7: the kind "modle" is not known: did you mean Model?'),
        ("kind: 3\n", "f.yaml:1:7: the kind 3 is not known"),
        ("- a\n", "f.yaml:1:1: a document must be a map, not a list"),
        ("just text\n", 'f.yaml:1:1: a document must be a map, not the text "just text"'),
        ("kind: Node\nmetadata: {name: n}\nspec: {}\n", "f.yaml:1:1: the document lacks apiVersion: write `apiVersion: llmgw/v1`"),
        ("apiVersion: llmgw/v2\nkind: Node\nmetadata: {name: n}\nspec: {}\n", 'f.yaml:1:13: apiVersion can\'t be the text "llmgw/v2"'),
        ("apiVersion: llmgw/v1\nkind: Node\nmetadata: {name: N_1}\nspec: {}\n", 'f.yaml:3:18: metadata.name can\'t be the text "N_1"'),
        ("apiVersion: llmgw/v1\nkind: Node\nmetadata: {name: n}\nspec: {}\nreserve: {}\n", 'unknown field "reserve": put it below `spec:`'),
    ],
)  # fmt: skip
def test_a_wrong_document_is_told_with_place_words_and_remedy(text: str, problem: str) -> None:
    found = problems(text)
    assert any(problem in line for line in found), found


def test_all_problems_of_a_document_are_told_at_once() -> None:
    found = problems(HEADS["Model"] + "  replicas: x\n  profile: 3\n  nope: 1\n")
    assert [line.split(":")[1] for line in found] == ["4", "5", "6", "7"]


def test_a_secret_written_in_clear_is_refused_without_repeating_it() -> None:
    canary = "hf_c4n4ryC4naryC4nary"
    texts = [
        *spec("Model", f"source: {{huggingFace: a/b, revision: 6f6073b, token: {canary}}}"),
        *spec("Model", f"source: {{huggingFace: a/b, revision: 6f6073b, token: {{fromEnv: {canary}-x}}}}"),
        *spec("Model", f"source: {{huggingFace: a/b, revision: 6f6073b, token: {{{canary}: x}}}}"),
        *spec("Model", f"source: {{huggingFace: a/b, revision: 6f6073b, token: {{fromFile: {canary}}}}}"),
        *spec(
            "Model", f"source: {{huggingFace: a/b, revision: 6f6073b, token: {{fromEnv: X, {canary}: x}}}}"
        ),
        *spec("Model", f"source: {{url: 'https://user:{canary}@x/y', sha256: {'a' * 64}}}"),
        *spec("Fleet", f"pip: {{indexUrl: 'https://user:{canary}@x/simple'}}"),
    ]
    assert len(texts) == 7
    assert canary not in "\n".join(texts)


def test_a_colon_without_a_space_is_explained() -> None:
    assert any("put a space after the colon" in text for text in spec("Node", "ports: {from:18000}"))


# ---- schemas and defaults ----------------------------------------------------------------------------


def _properties(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        for name, child in node.get("properties", {}).items():
            yield f"{path}.{name}", child
        for name, child in node.items():
            yield from _properties(child, f"{path}.{name}")
    elif isinstance(node, list):
        for child in node:
            yield from _properties(child, path)


@pytest.mark.parametrize("name", schema.DOCUMENTS)
def test_every_property_of_every_schema_has_a_description(name: str) -> None:
    found = list(_properties(schema.schema(name)))
    assert len(found) > 4
    assert [path for path, node in found if not node.get("description")] == []


@pytest.mark.parametrize("name", schema.DOCUMENTS)
def test_every_schema_is_a_valid_schema(name: str) -> None:
    jsonschema_rs.Draft202012Validator(schema.schema(name))
    assert schema.schema(name)["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def _read(kind: Any, value: Any) -> Any:
    return decode.value(kind, value)


def _parts(kind: Any) -> Iterator[Any]:
    """The values inside a type such as ``Ssh | None`` or ``tuple[Fabric, ...]``."""
    if is_struct_type(kind):
        yield kind
    for argument in get_args(kind):
        yield from _parts(argument)


def _resolved(whole: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    return {**whole["$defs"][node["$ref"].rpartition("/")[2]], **node} if "$ref" in node else node


def _compare(whole: dict[str, Any], node: dict[str, Any], kind: Any, path: str, seen: list[str]) -> None:
    """A schema's object against a kind of value: the same fields, the same needs, the same defaults."""
    node = _resolved(whole, node)
    if node.get("type") == "array":
        node = _resolved(whole, node["items"])
    by_name = {field.encode_name: field for field in fields(kind)}
    assert sorted(node["properties"]) == sorted(by_name), path
    for name, field in by_name.items():
        child, here = _resolved(whole, node["properties"][name]), f"{path}.{name}"
        seen.append(here)
        inner = [part for part in _parts(field.type) if part not in (Secret, FromFile)]
        default = default_of(field)
        assert field.required == (name in node.get("required", ())), here
        if inner:
            _compare(whole, node["properties"][name], inner[0], here, seen)
        if is_struct(default) or default is None or field.required:
            assert "default" not in child, here
        else:
            assert _read(field.type, child["default"]) == default, here


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_defaults_and_fields_of_schema_and_values_are_the_same(kind: str) -> None:
    whole = schema.schema(kind.lower())
    seen: list[str] = []
    _compare(whole, whole["properties"]["spec"], KINDS[kind], f"{kind}.spec", seen)
    _compare(whole, whole["properties"]["metadata"], Metadata, f"{kind}.metadata", seen)
    assert len(seen) > 10


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_defaults_of_a_schema_pass_it_and_mean_nothing_new(kind: str) -> None:
    """A document with every default written out is the document without any."""
    whole = schema.schema(kind.lower())

    def written(node: dict[str, Any]) -> Any:
        node = _resolved(whole, node)
        if "default" in node or "properties" not in node or "oneOf" in node:
            return node.get("default")
        parts = {name: written(child) for name, child in node["properties"].items()}
        return {name: part for name, part in parts.items() if part is not None} or None

    needed = {"source": {"path": "/x"}, "profile": "p", "engine": {"name": "sim"}}
    least = {name: needed[name] for name in NEEDED[kind]}
    full = {**(written(whole["properties"]["spec"]) or {}), **least}
    for part in ("ssh", "custom"):  # they have defaults, and something that must be told
        full.pop(part, None)
    document = {"apiVersion": "llmgw/v1", "kind": kind, "metadata": {"name": "x"}, "spec": full}
    validator = jsonschema_rs.Draft202012Validator(whole)
    assert [error.message for error in validator.iter_errors(document)] == []
    assert len(full) > len(least)
    with_defaults = _read(KINDS[kind], full)
    if kind == "Node":
        least = {"local": {}}  # an optional part, whose own default is written above
    assert with_defaults == _read(KINDS[kind], least)


@pytest.mark.parametrize("name", KIND_FILES)
def test_every_example_in_a_schema_passes_its_own_rule(name: str) -> None:
    whole = schema.schema(name)
    checked = 0
    for path, node in _properties(whole):
        for example in node.get("examples", ()):
            rule = {**node, "$defs": whole["$defs"]}
            assert jsonschema_rs.is_valid(rule, example), (path, example)
            checked += 1
    assert checked > 3


def test_names_follow_the_rule_of_ids() -> None:
    for kind in KIND_FILES:
        assert schema.schema(kind)["$defs"]["name"]["pattern"] == ids.NAME_PATTERN


# ---- derived schemas and pages -----------------------------------------------------------------------


def test_schemas_of_what_llmgw_writes_are_as_derived_from_the_values() -> None:
    for name, text in derive.schemas().items():
        kept = (schema.folder() / name).read_text(encoding="utf-8")
        assert kept == text, f"{name} is out of date: run python tests/manifests/derive.py"


def test_the_tables_of_the_manual_are_as_derived_from_the_schemas() -> None:
    text = (derive.ROOT / "docs" / "manifests.md").read_text(encoding="utf-8")
    assert text == derive.with_tables(text), "out of date: run python tests/manifests/derive.py"


def _accepts(name: str, value: Any) -> list[str]:
    validator = jsonschema_rs.Draft202012Validator(schema.schema(name))
    return [error.message for error in validator.iter_errors(value)]


def test_what_is_written_passes_its_schema_and_unknown_fields_are_tolerated(tmp_path: Path) -> None:
    endpoint = Endpoint(
        model="m", served_name="m", aliases=("a",), replica=ids.replica_id(prefix="m", spec_digest="0" * 64, ordinal=0, n=1),
        address="127.0.0.1", port=1, key_id="k", state="ready",
    )  # fmt: skip
    node = NodeRecord(name="n", address="a", facts=Facts(hostname="h"))
    record = Record(
        fleet=FleetId("f"), serial=3, commit=Commit("0" * 40), nodes={"n": node}, endpoints=(endpoint,)
    )
    files = changes(None, Kept(record=record))
    for name, file in (("record", HEAD), ("endpoints", ENDPOINTS)):
        data = json.loads(files[file] or b"")
        assert _accepts(name, data) == []
        assert _accepts(name, {**data, "fromTheFuture": 1}) == []
        assert _accepts(name, {key: value for key, value in data.items() if key != "format"}) != []
    created = from_json(Plan, {"basis": to_json(Basis(fleet=FleetId("f"), commit=None, serial=0, observed="")),
                               "created": "2026-01-31T00:00:00Z"}, strict=True)  # fmt: skip
    plan = {"formatVersion": 1, **to_json(created)}
    assert _accepts("plan", plan) == []
    assert _accepts("plan", {**plan, "fromTheFuture": 1}) == []
    assert _accepts("plan", {**plan, "changes": [{"address": 1}]}) != []


# ---- units -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("2h", 7200), ("1h30m", 5400), ("500ms", 0.5), ("1.5s", 1.5), ("1d", 86400)]
)  # fmt: skip
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert _read(Duration, text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [("40GiB", 40 * 1024**3), ("500MB", 500 * 10**6), ("1.5KiB", 1536), ("0B", 0), ("2TB", 2 * 10**12), ("0.1GB", 10**8)],
)  # fmt: skip
def test_sizes_are_exact_bytes(text: str, size: int) -> None:
    assert _read(Size, text) == size


@pytest.mark.parametrize("text", ["", "5", "5 m", "m", "-5s", "5x", "5s!", "٥s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        units.duration(text)


@pytest.mark.parametrize("text", ["", "40", "40 GiB", "GiB", "-1GB", "1gb", "1.GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        units.size(text)


def test_a_whole_number_with_a_fraction_of_zero_is_taken_as_editors_take_it() -> None:
    text = (
        HEADS["Model"]
        + "  source: {path: /x}\n  profile: p\n  replicas: 1e1\n  rollout: {maxUnavailable: 2.0}\n"
    )
    documents, _ = yamltext.read("f.yaml", text.encode())
    assert schema.check("f.yaml", documents[0]) == []
    found: Any = decode.manifest("f.yaml", documents[0]).spec
    assert (found.replicas, found.rollout.max_unavailable) == (10, 2)
    assert type(found.replicas) is int


def test_a_mapping_where_a_file_name_belongs_is_a_problem_and_no_crash() -> None:
    head = "apiVersion: llmgw/v1\nkind: Model\nmetadata: {name: m}\nspec:\n  profile: p\n"
    hash_ = f'"{"0" * 64}"'
    (problem, *_) = problems(f"{head}  source: {{pip: {{requirement: a==1, file: {{}}, sha256: {hash_}}}}}\n")
    assert "spec.source.pip.file" in problem
