"""Measures how long a commit takes to reach its node while `llmgw serve` runs: a real repository, a real agent, both on this
machine. From the moment in which the branch pointed to the commit, or the webhook was sent, to the one in which the agent had the
order on disk."""

import http.client
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psutil

from llmgw.model.struct import Struct
from tests.controller.serving.deliveries import SECRET, push
from tests.e2e.githosts import HttpsHost, https_host
from tests.ports import row_of_ports
from tests.stories.stage import LLMGW, Stage, model, node, stage_in, until

COMMITS: Final = 9
NANOSECONDS: Final = 1e9
TARGET: Final = "0.30 s"
TARGET_BY_WEBHOOK: Final = "1 s"
HOOK: Final = """\
webhooks:
  - {name: forge, provider: gitea, repository: ann/fleet, secrets: [{fromEnv: HOOK_SECRET}]}
"""


class Took(Struct):
    """Seconds of one commit. ``cpu``: of `serve` and the gits that it ran, until the pass had ended."""

    wall: float
    cpu: float


def measured(folder: Path) -> list[Took]:
    """One for each commit to a local repository."""
    with stage_in(folder) as stage:
        stage.commit("A fleet", here=node(stage), chat=model())

        def commit(replicas: int) -> int:
            stage.commit(f"{replicas} replicas", chat=model(replicas=replicas))
            return (stage.fleet / ".git/refs/heads/main").stat().st_ctime_ns

        return _all(stage, _begin(stage, "--listen", "none"), commit)


def measured_by_webhook(folder: Path) -> list[Took]:
    """One for each commit to a repository behind https, of which nothing but its webhook tells."""
    with stage_in(folder) as stage, https_host(folder) as host, row_of_ports() as (port, _):
        host.repositories.push(
            {"manifests/node.yaml": node(stage), "manifests/chat.yaml": model()}, "A fleet"
        )
        return _all(stage, _serving_over_https(stage, host, port), lambda it: _pushed(host, port, it))


def _serving_over_https(stage: Stage, host: HttpsHost, port: int) -> "subprocess.Popen[str]":
    config = stage.folder / "llmgw.yaml"
    config.write_text(HOOK)
    pace = ("--poll-interval", "1h", "--resync-interval", "1h")
    environment = {**host.settings(), "LLMGW_CONFIG": str(config), "HOOK_SECRET": SECRET.decode()}
    return _begin(stage, "--listen", f"127.0.0.1:{port}", *pace, **environment)


def _begin(stage: Stage, *words: str, **environment: str) -> "subprocess.Popen[str]":
    given = {"LLMGW_ENDPOINTS_FILE": str(_endpoints(stage)), **environment}
    return stage.begin("serve", *words, program=LLMGW, **given)


def _endpoints(stage: Stage) -> Path:
    return stage.folder / "endpoints.json"


def _pushed(host: HttpsHost, port: int, replicas: int) -> int:
    """When its webhook was sent, in nanoseconds of the clock that files have their times from."""
    host.repositories.push({"manifests/chat.yaml": model(replicas=replicas)}, f"{replicas} replicas")
    sent = push("gitea", delivery=f"of-{replicas}")
    now = time.time_ns()
    forge = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        forge.request("POST", "/hook/forge", sent.body, dict(sent.headers))
        answer = forge.getresponse()
        assert answer.status == 202, answer.read()
    finally:
        forge.close()
    return now


def _all(stage: Stage, serving: "subprocess.Popen[str]", commit: Callable[[int], int]) -> list[Took]:
    """``commit`` asks for so many replicas, and returns when."""
    told: list[str] = []
    reader = threading.Thread(target=lambda: told.extend(serving.stderr or ()), daemon=True)
    reader.start()
    try:
        process = psutil.Process(serving.pid)
        return [_one(stage, process, told, count, commit) for count in range(2, 2 + COMMITS)]
    finally:
        _end(serving)
        reader.join(timeout=10)


def _one(
    stage: Stage, process: psutil.Process, told: Sequence[str], replicas: int, commit: Callable[[int], int]
) -> Took:
    """The replicas so far serve, and nothing is going on."""
    until(lambda: _at_rest(stage, told, replicas - 1), f"{replicas - 1} replicas to serve", within=120)
    before, said, spent = _orders(stage), len(told), sum(process.cpu_times()[:4])
    moved = commit(replicas)
    new = until(lambda: set(_orders(stage)) - set(before), "the new order", within=60)
    wall = (_orders(stage)[new.pop()] - moved) / NANOSECONDS
    until(lambda: any("ended=accepted" in line for line in told[said:]), "the pass to end", within=60)
    return Took(wall=wall, cpu=sum(process.cpu_times()[:4]) - spent)


def _at_rest(stage: Stage, told: Sequence[str], replicas: int) -> bool:
    said = bool(told) and told[-1].rstrip().endswith(": nothing to do")
    return (
        said
        and _endpoints(stage).exists()
        and _endpoints(stage).read_text().count('"state": "ready"') == replicas
    )


def _orders(stage: Stage) -> dict[str, int]:
    return {file.name: file.stat().st_ctime_ns for file in (stage.work / "shards").glob("*.json")}


def _end(serving: "subprocess.Popen[str]") -> None:
    serving.terminate()
    serving.wait(timeout=60)


def table(local: Sequence[Took], by_webhook: Sequence[Took]) -> str:
    head = (
        "## From a commit to its node\n\n"
        "`llmgw serve` runs beside a local agent; a replica more is committed. In a local repository: from the branch pointing to "
        "the commit to the agent's order on disk, which is before the process starts. Behind https, `git http-backend` on this machine: "
        "from the webhook being sent, the push being done. Some twenty runs of git are on that way, four of which talk to the host: the "
        "branch is looked at while the record is read, the rest goes one after the other. So a busy machine shows here more than elsewhere: the CPU column, which has the outcome's commit in it as well, "
        "is what a quiet one needs at least.\n\n"
        "| what | median | slowest | CPU | load | target |\n|---|---|---|---|---|---|\n"
    )
    return (
        head + _row("a local repository", local, TARGET) + _row("by webhook", by_webhook, TARGET_BY_WEBHOOK)
    )


def _row(what: str, took: Sequence[Took], target: str) -> str:
    walls = [one.wall for one in took]
    cpu = statistics.median(one.cpu for one in took)
    return (
        f"| {what}: {len(took)} commits, one replica more each | {statistics.median(walls):.2f} s | {max(walls):.2f} s | {cpu:.2f} s "
        f"| {os.getloadavg()[0]:.1f} | {target} |\n"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as place:
        folders = [Path(place) / name for name in ("local", "webhook")]
        for folder in folders:
            folder.mkdir()
        print(table(measured(folders[0]), measured_by_webhook(folders[1])))
