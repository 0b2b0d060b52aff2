"""Values in manifests that look like secrets written in plain text: told as warnings, by their place and never by what they
hold. It judges by names and by the beginnings of well-known tokens; it can't know, so it never refuses."""

import re
from collections.abc import Iterator, Mapping

from llmgw.model.manifest import Manifest, Manifests, ModelSpec, NodeSpec, ProfileSpec, Value
from llmgw.model.problems import Problem

_VARIABLE = re.compile(r"(?i)(?:.*_)?(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS)")
_FLAG = re.compile(r"(?i)--?(?:.*-)?(?:api-key|hf-token|secret|password|passwd|credentials)")
"""Fewer words than of variables: engines have flags for tokens of text and for keys of tables."""

_KNOWN = re.compile(r"(?:hf_|ghp_|glpat-)[\w-]{16,}|github_pat_\w{20,}|sk-[\w-]{16,}|AKIA[0-9A-Z]{16}")
"""Tokens of Hugging Face, GitHub, GitLab, OpenAI and those who do like it, and AWS. Real ones have at least so many characters."""

_PATH = ("/", "~", "./")
_NO_SECRET = frozenset({"", "true", "false", "yes", "no", "on", "off", "none", "null", "empty"})
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def warnings(manifests: Manifests) -> Iterator[Problem]:
    for manifest in (*manifests.nodes, *manifests.profiles, *manifests.models):
        spec = manifest.spec
        if isinstance(spec, NodeSpec | ProfileSpec | ModelSpec):
            yield from _variables(manifest, "spec.env", spec.env)
        if isinstance(spec, ProfileSpec | ModelSpec):
            yield from _words(manifest, "spec.args", spec.args)
        if isinstance(spec, ProfileSpec) and (custom := spec.custom) is not None:
            yield from _variables(manifest, "spec.custom.env", custom.env, reference_in="spec.env")
            yield from _words(manifest, "spec.custom.command", custom.command)
            yield from _words(manifest, "spec.custom.worker", custom.worker)


def _variables(
    manifest: Manifest, path: str, env: Mapping[str, Value], *, reference_in: str = ""
) -> Iterator[Problem]:
    """``reference_in``: where a reference is written instead, as this place takes none."""
    for name, value in env.items():
        if isinstance(value, str) and (_KNOWN.match(value) or (_VARIABLE.fullmatch(name) and _may_be(value))):
            place = f"in {reference_in}, where references are taken, " if reference_in else ""
            yield Problem(
                what=f"{path}.{name} looks like a secret written in plain text into Git",
                instead=f"write {place}{{fromEnv: NAME}} or {{fromFile: /path}}, and make the secret anew",
                where=manifest.at(f"{path}.{name}"),
            )


def _words(manifest: Manifest, path: str, words: tuple[str, ...]) -> Iterator[Problem]:
    """Arguments: a value stands behind its flag, with ``=`` or as the next word."""
    before = ""
    for index, word in enumerate(words):
        flag, equals, value = word.partition("=") if word.startswith("-") else (before, "=", word)
        before = "" if equals else flag
        if equals and (_KNOWN.match(value) or (_FLAG.fullmatch(flag.replace("_", "-")) and _may_be(value))):
            of = f", the value of {flag}," if flag else ""
            yield Problem(
                what=f"{path}[{index}]{of} looks like a secret written in plain text into Git",
                instead="give it in spec.env by {fromEnv: NAME} or {fromFile: /path}, and make the secret anew; in a "
                "command line every user of the node can read it, too",
                where=manifest.at(f"{path}[{index}]"),
            )


def _may_be(value: str) -> bool:
    """Whether a value of such a name can be a secret at all. ``${…}`` is filled in later."""
    plain = value.strip()
    return not (
        plain.casefold() in _NO_SECRET or plain.startswith(_PATH) or _NUMBER.fullmatch(plain) or "${" in plain
    )
