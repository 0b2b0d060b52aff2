"""What settings say of Git hosts and of who must have signed, as values. Secrets stay references until they are used."""

from collections.abc import Mapping
from typing import Any

from llmgw.controller.nodes.ssh import hostkeys
from llmgw.controller.repo.verifying import Mode
from llmgw.manifests import decode, schema, yamltext
from llmgw.manifests.yamltext import Document
from llmgw.model.manifest import Secret
from llmgw.model.problems import InvalidError, Problem, Where
from llmgw.model.struct import Struct, field, replace

NAMES = ("token", "stateToken", "hostKeys", "verify")
"""Settings that are no plain word. In a variable they are written as in llmgw.yaml: ``LLMGW_TOKEN='{fromFile: /etc/llmgw/token}'``."""


class Verify(Struct):
    """Which commits must be signed, and by whom: a path, or the content itself."""

    mode: Mode = Mode.HEAD
    allowed_signers: str | None = None
    pgp_keyring: str | None = None


class GitHosts(Struct):
    """``places`` says where each of them was written, for messages."""

    token: Secret | None = None
    state_token: Secret | None = None
    host_keys: tuple[str, ...] = ()
    verify: Verify | None = None
    places: Mapping[str, Where] = field(default_factory=dict)


def in_variable(name: str, variable: str, text: str) -> tuple[Any, list[Problem]]:
    """A value of the environment, read as YAML. What is wrong with it never shows what it holds."""
    where = Where(file=variable)
    inside = text if "\n" not in text else "\n  " + text.replace("\n", "\n  ")
    documents, wrong = yamltext.read(variable, f"{name}: {inside}".encode())
    if wrong or len(documents) != 1 or not isinstance(documents[0].data, dict):
        what = f"the variable {variable} can't be read as YAML"
        return None, [Problem(what=what, instead=f"write it as {name} in llmgw.yaml", where=where)]
    found = problems(variable, documents[0])
    return documents[0].data.get(name), [replace(problem, where=where) for problem in found]


def problems(file: str, document: Document) -> list[Problem]:
    """What is wrong with these settings as they are written."""
    found = schema.check_settings(file, document)
    return found or [*_no_keys(file, document), *_no_keys_to_check_with(file, document)]


def _no_keys(file: str, document: Document) -> list[Problem]:
    found = []
    for number, line in enumerate(document.data.get("hostKeys", [])):
        if wrong := _wrong_key(line):
            row, column = document.marks.get(f"hostKeys[{number}]", document.mark)
            found.append(
                Problem(
                    what=f"hostKeys[{number}] is no key: {wrong}",
                    instead='write what ssh-keyscan prints after the host: "ssh-ed25519 AAAA…"',
                    where=Where(file=file, line=row, column=column),
                )
            )
    return found


def _wrong_key(line: str) -> str:
    try:
        hostkeys.parse(line)
    except ValueError as wrong:
        return str(wrong)
    return ""


def _no_keys_to_check_with(file: str, document: Document) -> list[Problem]:
    asked = document.data.get("verify")
    if asked is None or asked.get("mode") == Mode.NONE.value or set(asked) & {"allowedSigners", "pgpKeyring"}:
        return []
    row, column = document.keys.get("verify", document.mark)
    return [
        Problem(
            what="verify names nobody whose signature would count",
            instead="add allowedSigners (SSH) or pgpKeyring (PGP): a path, or the content itself",
            where=Where(file=file, line=row, column=column),
        )
    ]


def verify_in(file: str, data: bytes) -> Verify | None:
    """What a whole llmgw.yaml says of signatures; its other settings are not looked at. InvalidError when that is not right."""
    documents, wrong = yamltext.read(file, data)
    if not wrong and not (
        documents and isinstance(documents[0].data, dict) and "verify" in documents[0].data
    ):
        return None
    if not wrong:
        only = replace(documents[0], data={"verify": documents[0].data["verify"]})
        wrong = problems(file, only)
    if wrong:
        raise InvalidError(tuple(wrong))
    return git_hosts(only.data, {}).verify


def git_hosts(written: Mapping[str, Any], places: Mapping[str, Where]) -> GitHosts:
    """Out of values that had no :func:`problems`. Raises ValueError where they had."""
    try:
        made = decode.value(GitHosts, {name: written[name] for name in NAMES if name in written})
    except ValueError as wrong:
        raise ValueError(f"these settings can't be read: {wrong}") from wrong
    return replace(made, places=places)
