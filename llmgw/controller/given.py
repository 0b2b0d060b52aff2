"""Settings as they were written: by a flag, in the environment or in ``llmgw.yaml``, each with its place for messages."""

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from llmgw.controller import githosts
from llmgw.controller.serving import configuration
from llmgw.manifests import yamltext
from llmgw.model.problems import InvalidError, Problem, Where
from llmgw.model.struct import Struct

FILE = "llmgw.yaml"
_MAX_FILE = 2 * 1024 * 1024  # bytes; keys of those who sign may stand in it

NAMES = (
    "repo",
    "branch",
    "path",
    "stateRepo",
    "stateRef",
    "stateDir",
    "secretFile",
    "sshIdentity",
    "gitIdentity",
    "tokenUser",
    "stateTokenUser",
    "caFile",
    "fetchTimeout",
    "partialClone",
    "holder",
    "endpointsFile",
    "lockTimeout",
    "lease",
    "listen",
    "pollInterval",
    "resyncInterval",
    "jitter",
)
"""As written in llmgw.yaml. The flag is ``--state-ref``, the variable ``LLMGW_STATE_REF``."""

KNOWN = (*NAMES, *githosts.NAMES, *configuration.NAMES)


class Given(Struct):
    """A setting as it was written: ``base`` is what relative paths count from, ``source`` is for messages."""

    value: Any
    base: Path
    source: str
    where: Where | None = None


def variable(name: str) -> str:
    """``stateRef`` -> ``LLMGW_STATE_REF``."""
    return "LLMGW_" + re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()


def flag(name: str) -> str:
    """``stateRef`` -> ``--state-ref``."""
    return "--" + re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def given(
    *,
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    written: Mapping[str, Given],
    cwd: Path,
) -> dict[str, Given]:
    """By their names, those of :data:`NAMES` that were given at all."""
    found = {name: _given(name, flags, environ, written, cwd=cwd) for name in NAMES}
    return {name: each for name, each in found.items() if each is not None}


def _given(
    name: str,
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    written: Mapping[str, Given],
    *,
    cwd: Path,
) -> Given | None:
    """A flag goes before a variable, and that before the file."""
    if (value := flags.get(name)) is not None:
        return Given(value=value, base=cwd, source=flag(name))
    if value := environ.get(variable(name)):
        return Given(value=value, base=cwd, source=variable(name))
    return written.get(name)


def with_home(text: str, environ: Mapping[str, str]) -> str:
    home = environ.get("HOME")
    return f"{home}{text[1:]}" if home and (text == "~" or text.startswith("~/")) else text


def absolute(text: str, base: Path, environ: Mapping[str, str]) -> Path:
    return Path(os.path.normpath(base / with_home(text, environ)))


# ---- llmgw.yaml ----------------------------------------------------------------------------------------------


def beside(cwd: Path, top: Path | None) -> Path | None:
    """The nearest one above, within the repository. Outside of any only the folder itself is looked at."""
    for folder in (cwd, *cwd.parents):
        if (folder / FILE).is_file():
            return folder / FILE
        if folder == top or top is None:
            return None
    return None


def read_file(file: Path, *, must: bool) -> dict[str, Given]:
    """``must``: somebody named it, so it has to be there. InvalidError with every problem."""
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_FILE + 1)
    except OSError as wrong:
        if not must and isinstance(wrong, FileNotFoundError):
            return {}
        raise InvalidError(
            (
                Problem(
                    where=Where(file=str(file)),
                    what=f"the settings can't be read: {wrong.strerror or wrong}",
                    instead="give the right path with --config",
                ),
            )
        ) from wrong
    if len(data) > _MAX_FILE:
        raise InvalidError(
            (Problem(where=Where(file=str(file)), what=f"more than {_MAX_FILE} bytes", instead="shorten it"),)
        )
    return _parsed(file, data)


def _parsed(file: Path, data: bytes) -> dict[str, Given]:
    """``key: value`` lines; everything that is wrong at once."""
    documents, problems = yamltext.read(str(file), data)
    if len(documents) > 1 or (documents and not isinstance(documents[0].data, dict)):
        problems.append(
            Problem(where=Where(file=str(file)), what="no settings", instead="write key: value lines")
        )
    if problems:
        raise InvalidError(tuple(problems))
    if not documents:
        return {}
    document = documents[0]
    found: dict[str, Given] = {}
    for key, value in document.data.items():
        line, column = document.keys.get(key, (0, 0))
        where = Where(file=str(file), line=line, column=column)
        if problem := _key_problem(key, where):
            problems.append(problem)
        else:
            found[key] = Given(value=value, base=file.parent, source=str(file), where=where)
    problems += configuration.problems(str(file), document) or githosts.problems(str(file), document)
    if problems:
        raise InvalidError(tuple(problems))
    return found


def _key_problem(key: Any, where: Where) -> Problem | None:
    if key in KNOWN:
        return None
    near = get_close_matches(str(key), KNOWN, n=1, cutoff=0.5)
    instead = f"did you mean {near[0]}?" if near else f"known are {', '.join(KNOWN)}"
    return Problem(where=where, what=f"unknown setting {key!r:.80}", instead=instead)
