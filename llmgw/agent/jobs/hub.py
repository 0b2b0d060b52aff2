"""Weights of a Hugging Face hub: runs ``runtime/hubfetch.py`` in huggingface_hub's environment and says in plain words what
it tells. Whatever hub ``HF_ENDPOINT`` of the node's environment names.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from llmgw.agent.jobs.commands import Ended, run_command
from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.environments import measured
from llmgw.agent.jobs.files import NoSpaceError, require_space
from llmgw.agent.jobs.pip import without_credentials
from llmgw.model.launch import TOKEN, FetchSpec
from llmgw.model.manifest import Secret
from llmgw.model.problems import LlmgwError, RetryError, StalledError
from llmgw.redaction import MASK

PROGRAM = "hubfetch.py"
AGAIN_AFTER = timedelta(seconds=20)
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Of the node's environment; the model's own token goes before them."""
SETTINGS: Mapping[str, str] = {
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",  # whoever runs the agent may be logged in to the hub
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_XET": "1",  # no mirror speaks it, it can't go on from half a file, and its cache fills the disk
    "HF_HUB_DOWNLOAD_TIMEOUT": "60",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(slots=True, kw_only=True)
class _Heard:
    """What the program told last."""

    error: tuple[str, str] | None = None
    done: bool = False
    others: list[str] = field(default_factory=list)


async def fetch_from_hub(
    spec: FetchSpec,
    part: Path,
    *,
    python: Path,
    runtime: Path,
    env: Mapping[str, str],
    secrets: Mapping[str, str],
    reserve: int,
    progress: Progress,
) -> None:
    """Into ``part``. Raises RetryError when trying again may help, StalledError otherwise; neither names the token."""
    token = secrets.get(TOKEN) or next((env[name] for name in TOKENS if env.get(name)), None)
    order = {"repo": spec.hugging_face, "revision": spec.revision, "folder": str(part), "token": token}
    plain = {name: value for name, value in env.items() if name not in TOKENS}
    heard = _Heard()

    def told(line: str) -> None:
        _take(line, heard, spec, part, reserve, progress)

    progress.say(f"asking {env.get('HF_ENDPOINT', 'the hub')} for {spec.description}")
    with measured((part,), progress):
        ended = await run_command(
            [str(python), "-I", str(runtime / PROGRAM)],
            env={**plain, **SETTINGS, "HF_HOME": str(part / ".hub" / "home")},
            directory=part,
            told=told,
            given=json.dumps(order).encode(),
        )
    if not heard.done:
        raise _failure(spec, heard, ended, token)


def _take(line: str, heard: _Heard, spec: FetchSpec, part: Path, reserve: int, progress: Progress) -> None:
    """One line of the program. Raises NoSpaceError as soon as it is known that it will not fit, which ends it."""
    try:
        event: dict[str, Any] = json.loads(line)
        what = event["event"]
    except (ValueError, KeyError, TypeError):
        heard.others = [*heard.others, line][-3:]
        return
    if what == "plan":
        need = event["bytes"] - event["have"]
        require_space(part, need, reserve=reserve, what=f"fetching {spec.description}")
        progress.bytes(event["have"], event["bytes"])
        progress.say(f"fetching {event['files']} files of {spec.description} at {event['commit'][:12]}")
    elif what == "file":
        progress.say(
            f"{event['done']} of {event['files']} files are here and proved, the last {event['path']}"
        )
    elif what == "error":
        heard.error = (str(event["kind"]), str(event["text"]))
    elif what == "done":
        heard.done = True


def _failure(spec: FetchSpec, heard: _Heard, ended: Ended, token: str | None) -> LlmgwError:
    kind, text = heard.error or (
        "bad",
        f"{PROGRAM} ended with {ended.code}: {'; '.join(heard.others or ended.last_lines[-3:])}",
    )
    if token:
        text = text.replace(token, MASK)
    doing = f"fetching {spec.description}"
    text = without_credentials(text)
    match kind:
        case "retry":
            return RetryError(f"{doing}: {text}: what is here already is kept", after=AGAIN_AFTER)
        case "full":
            return NoSpaceError(f"{doing}: {text}: free space on that disk")
        case "gated" | "auth" | "missing":
            return StalledError(
                f"{doing}: {_access(kind)} ({text}): {_what_token(spec, given=token is not None)}"
            )
        case "revision":
            return StalledError(
                f"{doing}: the repository has no revision {spec.revision} ({text}): correct source.revision"
            )
        case _:
            return StalledError(f"{doing}: {text}")


def _access(kind: str) -> str:
    """The hub answers 401 for what does not exist, too, so that nobody can find out by asking."""
    if kind == "gated":
        return "the repository is gated"
    if kind == "auth":
        return "the hub refuses access, or there is no such repository"
    return "there is no such repository, or this token may not see it"


def _what_token(spec: FetchSpec, *, given: bool) -> str:
    """Which secret to see to."""
    match spec.token:
        case Secret(from_env=str(name)):
            return f"see that the token in the controller's variable {name} belongs to an account with access"
        case Secret(from_file=str(path)):
            return (
                f"see that the token in {path} on the controller's machine belongs to an account with access"
            )
        case _ if given:
            return "see that the token HF_TOKEN in the node's spec.env belongs to an account with access"
        case _:
            return "correct the name, or give a token: source.token: {fromEnv: HF_TOKEN}, of an account with access"
