"""Weights of a Hugging Face hub, by the real huggingface_hub against a hub of the tests' own: whole, proved and gone on with,
and refusals that name the secret to see to."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from llmgw.agent.assembly import RUNTIME
from llmgw.agent.jobs.doer import Progress
from llmgw.agent.jobs.files import NoSpaceError, write_marker
from llmgw.agent.jobs.hub import fetch_from_hub
from llmgw.agent.jobs.targets import TOOLS
from llmgw.agent.jobs.tools import MARKER, Tool
from llmgw.engines.weights import HUB_CLIENT
from llmgw.model import ids
from llmgw.model.launch import FetchSpec
from llmgw.model.manifest import Secret
from llmgw.model.problems import RetryError, StalledError
from tests.agent.agents import DIGEST, fetch_spec
from tests.agent.jobs.hub import COMMIT, REPO, Hub, serving
from tests.agent.jobs.test_fetch import fetcher, left
from tests.agent.jobs.test_install import ENV, marked

BIG = bytes(range(256)) * 400
FILES = {
    "config.json": b"{}",
    "model-00001-of-00002.safetensors": BIG,
    "model-00002-of-00002.safetensors": BIG[::-1],
    "sub/tokenizer.json": b'{"a": 1}',
}
LEFT_OUT = {
    ".gitattributes": b"* lfs",
    "pytorch_model.bin": b"p" * 20_000,
    "original/consolidated.00.pth": b"o" * 20_000,
    "model.onnx": b"n" * 20_000,
}
CANARY = "hf_canary4711"


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, timeout=100))


def spec(**changes: Any) -> FetchSpec:
    given = {
        "description": f"{REPO}@{COMMIT[:8]}",
        "hugging_face": REPO,
        "revision": COMMIT,
        "tool": HUB_CLIENT,
        **changes,
    }
    return fetch_spec(**given)


async def fetch(
    hub: Hub,
    folder: Path,
    what: FetchSpec,
    *,
    token: str | None = None,
    progress: Progress | None = None,
    reserve: int = 0,
    **env: str,
) -> None:
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    await fetch_from_hub(
        what,
        folder,
        python=Path(sys.executable),
        runtime=RUNTIME,
        env={**ENV, "HF_ENDPOINT": hub.endpoint, **env},
        secrets={} if token is None else {"token": token},
        reserve=reserve,
        progress=progress or Progress(),
    )


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_the_tests_ask_with_the_client_that_nodes_install() -> None:
    assert f"huggingface_hub=={huggingface_hub.__version__}" == HUB_CLIENT


def test_a_repository_comes_whole_with_what_engines_read_and_without_the_rest(tmp_path: Path) -> None:
    progress = Progress()
    with serving(Hub(files={**FILES, **LEFT_OUT})) as hub:
        run(fetch(hub, tmp_path / "w", spec(), progress=progress))
        assert not any("pytorch_model" in path for _, path, _ in hub.seen)
    assert contents(tmp_path / "w") == FILES
    assert progress.total == sum(map(len, FILES.values()))
    assert "files are here and proved" in progress.line


def test_the_fetcher_makes_them_complete_with_one_marker_and_one_rename(tmp_path: Path) -> None:
    doer = fetcher(tmp_path, env={**ENV}, python=sys.executable)
    pretend_tool(tmp_path)
    with serving(Hub(files=FILES)) as hub:
        doer = fetcher(tmp_path, env={**ENV, "HF_ENDPOINT": hub.endpoint}, python=sys.executable)
        run(doer.run(spec(), Progress()))
        asked = len(hub.seen)
        run(doer.run(spec(), Progress()))
        assert len(hub.seen) == asked
    assert doer.complete(spec())
    assert left(tmp_path) == [DIGEST]
    assert {*contents(tmp_path / "weights" / DIGEST)} == {*FILES, "llmgw-weights.json"}


def pretend_tool(folder: Path) -> None:
    """The environment that runs the tests has huggingface_hub: it stands for the one that a node would make."""
    source = {"tool": HUB_CLIENT, "python": sys.executable, "indexUrl": None, "wheelDir": None}
    name = f"huggingface_hub-{huggingface_hub.__version__}-{ids.digest(source)[:8]}"
    place = folder / "engines" / TOOLS / name
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (place / "bin" / "python").chmod(0o755)
    write_marker(Tool(requirement=HUB_CLIENT), place / MARKER)


def test_a_token_opens_a_gated_repository_and_goes_to_the_hub_alone(tmp_path: Path) -> None:
    with serving(Hub(files=FILES, token=CANARY, refusal="GatedRepo")) as hub:
        run(fetch(hub, tmp_path / "w", spec(token=Secret(from_env="MY_TOKEN")), token=CANARY))
        assert hub.tokens == set()
        assert any(server == "store" for server, _, _ in hub.seen)
    assert contents(tmp_path / "w") == FILES


def test_a_token_of_the_nodes_environment_does_where_the_model_names_none(tmp_path: Path) -> None:
    with serving(Hub(files=FILES, token=CANARY)) as hub:
        run(fetch(hub, tmp_path / "w", spec(), HF_TOKEN=CANARY))
    assert contents(tmp_path / "w") == FILES


@pytest.mark.parametrize("refusal", ["GatedRepo", "RepoNotFound"])
@pytest.mark.parametrize(
    ("token", "given", "told"),
    [
        (None, None, "source.token: {fromEnv: HF_TOKEN}"),
        (Secret(from_env="MY_TOKEN"), "hf_wrong", "the controller's variable MY_TOKEN"),
        (Secret(from_file="/etc/hf"), "hf_wrong", "the token in /etc/hf on the controller's machine"),
    ],
)
def test_a_refusal_names_the_secret_to_see_to_and_never_shows_it(
    tmp_path: Path, refusal: str, token: Any, given: str | None, told: str
) -> None:
    hub = Hub(files=FILES, token=CANARY, refusal=refusal)
    with serving(hub), pytest.raises(StalledError) as caught:
        run(fetch(hub, tmp_path / "w", spec(token=token), token=given))
    assert told in str(caught.value)
    assert "hf_wrong" not in str(caught.value)
    assert contents(tmp_path / "w") == {}


def test_a_commit_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with serving(Hub(files=FILES)) as hub, pytest.raises(StalledError, match="has no revision deadbeef"):
        run(fetch(hub, tmp_path / "w", spec(revision="deadbeef")))


def test_a_hub_that_is_down_is_asked_again_later(tmp_path: Path) -> None:
    with serving(Hub(files=FILES, down=True)) as hub, pytest.raises(RetryError, match="503"):
        run(fetch(hub, tmp_path / "w", spec()))


HUGE = {"config.json": b"{}", "model.safetensors": BIG * 240, "b.safetensors": BIG}
KEPT = constants.DOWNLOAD_CHUNK_SIZE
"""Of a download that breaks half way: the client writes no less at a time."""


def test_a_download_that_breaks_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with serving(Hub(files=HUGE, once={"model.safetensors": ["drop"]})) as hub:
        run(fetch(hub, tmp_path / "w", spec()))
        asked = [ranges for _, path, ranges in hub.seen if path == "model.safetensors"]
    assert asked == ["", f"bytes={KEPT}-"]
    assert contents(tmp_path / "w") == HUGE


def test_the_next_try_goes_on_with_what_the_last_one_left(tmp_path: Path) -> None:
    with serving(Hub(files=HUGE, once={"model.safetensors": ["drop", *["busy"] * 9]})) as hub:
        with pytest.raises(RetryError, match="what is here already is kept"):
            run(fetch(hub, tmp_path / "w", spec()))
        hub.once.clear()
        hub.seen.clear()
        run(fetch(hub, tmp_path / "w", spec()))
        assert [(path, ranges) for server, path, ranges in hub.seen if server == "store"] == [
            ("model.safetensors", f"bytes={KEPT}-")
        ]
    assert contents(tmp_path / "w") == HUGE


@pytest.mark.parametrize("mode", ["other", "short"])
@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00002.safetensors"])
def test_what_is_not_what_the_repository_says_is_never_taken(tmp_path: Path, name: str, mode: str) -> None:
    with serving(Hub(files=FILES, once={name: [mode] * 8})) as hub:
        with pytest.raises(RetryError, match=name):
            run(fetch(hub, tmp_path / "w", spec()))
        assert not (tmp_path / "w" / name).exists()
        hub.once.clear()
        run(fetch(hub, tmp_path / "w", spec()))
    assert contents(tmp_path / "w") == FILES


def test_a_file_that_somebody_changed_meanwhile_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "model-00001-of-00002.safetensors").write_bytes(b"\0" * len(BIG))
    (tmp_path / "w" / "stray.txt").write_bytes(b"of an earlier revision")
    with serving(Hub(files=FILES)) as hub:
        run(fetch(hub, tmp_path / "w", spec()))
    assert contents(tmp_path / "w") == FILES


def test_what_will_not_fit_is_refused_before_anything_comes(tmp_path: Path) -> None:
    with serving(Hub(files=FILES)) as hub, pytest.raises(NoSpaceError, match="kept free"):
        run(fetch(hub, tmp_path / "w", spec(), reserve=2**60))


@pytest.mark.parametrize("path", ["../out.txt", "/etc/out.txt", "a/../../out.txt"])
def test_a_repository_cannot_write_elsewhere(tmp_path: Path, path: str) -> None:
    with serving(Hub(files={path: b"x"})) as hub, pytest.raises(StalledError, match="no plain path"):
        run(fetch(hub, tmp_path / "w", spec()))
    assert not (tmp_path / "out.txt").exists()


def test_a_token_stands_in_no_command_line_and_no_environment(tmp_path: Path) -> None:
    """While a file is under way, which is as long as it takes."""
    seen: list[bytes] = []

    async def main() -> None:
        task = asyncio.ensure_future(fetch(hub, tmp_path / "w", spec(), token=CANARY))
        while not task.done():
            seen.extend(told(tmp_path))
            await asyncio.sleep(0.02)
        await task

    with serving(Hub(files=FILES, token=CANARY)) as hub:
        run(main())
    assert any(b"hubfetch.py" in text for text in seen)
    assert not any(CANARY.encode() in text for text in seen)


def told(folder: Path) -> list[bytes]:
    """Command lines and environments of what works below the folder."""
    found = []
    for pid in marked(folder):
        with suppress(OSError):
            found += [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
    return found


def test_the_program_tells_an_order_that_is_none(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-I", str(RUNTIME / "hubfetch.py")],
        input=b"{",
        capture_output=True,
        check=False,
        cwd=tmp_path,
    )
    assert ended.returncode == 1
    assert json.loads(ended.stdout)["kind"] == "bad"
