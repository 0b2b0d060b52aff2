"""A Node to the text of its manifest, with comments, for people to go on writing in. Pure: what it says is decided elsewhere.

Only what differs from the defaults is written, and what a newcomer is likely to want next stands there as a comment.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from llmgw.model.manifest import API_VERSION, Expect, NodeSpec, Ssh
from llmgw.model.struct import Struct

_PLAIN: Final = re.compile(r"^[A-Za-z/~][A-Za-z0-9 ._/~@-]*[A-Za-z0-9._/~@-]$|^[a-z]$")
_IPV4: Final = re.compile(r"^\d{1,3}(\.\d{1,3}){3}$")
_USUAL: Final = Ssh(host="")
_WORDS_OF_YAML: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


class Remarks(Struct):
    """What is said beside the fields. ``machine``: what it is, one a line; ``address``: why this one; ``fabric``: adapters
    that were seen."""

    machine: Sequence[str] = ()
    address: str = ""
    fabric: Sequence[str] = ()


def node_text(name: str, spec: NodeSpec, *, remarks: Remarks, schema: str | None = None) -> str:
    """One document of kind Node. ``spec`` may hold what a new node over SSH has: pool, ssh, address, expect, python.
    ``schema``: where editors find the schema, seen from the file."""
    ssh = spec.ssh
    assert ssh is not None, "only nodes over SSH are written here"
    lines = [f"# yaml-language-server: $schema={schema}", "#"] if schema else []
    lines += [f"# {line}" for line in remarks.machine]
    lines += [f"apiVersion: {API_VERSION}", "kind: Node", "metadata:", f"  name: {scalar(name)}", "spec:"]
    lines += [f"  pool: {scalar(spec.pool)}", "  transport: ssh", "  ssh:"]
    lines += [f"    {line}" for line in _ssh(ssh)]
    lines += [f"  {line}" for line in _address(spec, ssh, remarks.address)]
    lines += [f"  {line}" for line in _expect(spec.expect)]
    if spec.python is not None:
        lines += [
            "  # Runs the agent and makes the engines' environments.",
            f"  python: {scalar(spec.python)}",
        ]
    lines += [f"  {line}" for line in _later(spec, remarks.fabric)]
    return "\n".join(lines) + "\n"


def scalar(text: str) -> str:
    """As YAML that can mean nothing else than this text."""
    if _IPV4.match(text) or (_PLAIN.match(text) and text.lower() not in _WORDS_OF_YAML):
        return text
    return json.dumps(text)


def _ssh(ssh: Ssh) -> Iterator[str]:
    yield f"host: {scalar(ssh.host)}"
    if ssh.port != _USUAL.port:
        yield f"port: {ssh.port}"
    yield f"user: {scalar(ssh.user)}"
    if ssh.become != "none":
        yield f"become: {ssh.become}"
    yield "# The keys by which this machine is known; `ssh-keygen -lf` shows the same fingerprints on it."
    yield from _list("hostKeys", ssh.host_keys)
    if ssh.identity is not None:
        yield "# The private key to log in with: a file of the machine that runs llmgw."
        yield f"identity: {{fromFile: {scalar(ssh.identity.from_file)}}}"
    if ssh.agent:
        yield "# Keys of the ssh-agent of whoever runs llmgw. Where nobody is logged in, name a file in `identity`."
        yield "agent: true"
    if ssh.jump is not None:
        yield f"jump: {scalar(ssh.jump)}"
        yield from _list("jumpHostKeys", ssh.jump_host_keys)
    if ssh.config:
        yield "config: true"


def _list(key: str, items: Iterable[str]) -> Iterator[str]:
    yield f"{key}:"
    for item in items:
        yield f"  - {scalar(item)}"


def _address(spec: NodeSpec, ssh: Ssh, remark: str) -> Iterator[str]:
    yield f"# Engines listen on this address{f' ({remark})' if remark else ''}; other machines reach them there."
    if spec.address is not None:
        yield f"address: {scalar(spec.address)}"
    else:
        yield f"# address: {ssh.host}    # the default: ssh.host"


def _expect(expect: Expect) -> Iterator[str]:
    if not expect.gpus:
        yield "# No GPU was found. With some, write: expect: {gpus: 8, class: h100-80g}"
        return
    kind = f", class: {scalar(expect.gpu_class)}" if expect.gpu_class else ""
    yield "# What was found. Fewer is told by every plan; offline plans count on it."
    yield f"expect: {{gpus: {expect.gpus}{kind}}}"


def _later(spec: NodeSpec, fabric: Sequence[str]) -> Iterator[str]:
    yield f"# Engines use these ports: ports: {{from: {spec.ports.from_port}, to: {spec.ports.to_port}}}"
    yield "# Where large things lie: dirs: {weights: /data/weights, engines: /data/engines}"
    if fabric:
        yield f"# Adapters seen: {', '.join(fabric)}"
        # The order that they were found in says nothing of what they are cabled to.
        yield f"# Label those of one network, for models over several nodes: fabrics: [{{name: ib-a, hcas: [{_device(fabric[0])}]}}]"
    yield "# No new replicas here: cordon: true"


def _device(told: str) -> str:
    return told.partition(" ")[0]


def without_document(text: str, line: int) -> str:
    """The text of a file without the document that line (from 1) lies in; empty when there is no other."""
    lines = text.splitlines(keepends=True)
    begins = [number for number, content in enumerate(lines, 1) if content.rstrip() == "---"]
    start = max((number for number in begins if number <= line), default=0)
    end = min((number for number in begins if number > line), default=len(lines) + 1)
    before, after = lines[: max(start - 1, 0)], lines[end - 1 :]
    if not _says_anything(before) and not _says_anything(after):
        return ""
    if not _says_anything(before):
        return "".join([*_header(lines), *after[1:]])
    return "".join([*before, *after])


def _says_anything(lines: Iterable[str]) -> bool:
    return any(line.strip() and not line.lstrip().startswith(("#", "---", "...")) for line in lines)


def _header(lines: Sequence[str]) -> list[str]:
    """The line for editors, which is the file's and not the document's."""
    return [line for line in lines[:1] if line.startswith("# yaml-language-server:")]
