"""The checks of pull requests in examples/ci: what they may do, and their commands, run against real repositories and a forge's
answers."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from ruamel.yaml import YAML

from tests.stories.stage import Stage, model, node, stage_in

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples" / "ci"
FILES = {
    "github": EXAMPLES / "github/.github/workflows/llmgw.yml",
    "gitea": EXAMPLES / "gitea/.gitea/workflows/llmgw.yml",
    "gitlab": EXAMPLES / "gitlab/.gitlab-ci.yml",
}
FORGES = tuple(FILES)
MARKER = "<!-- llmgw plan -->"
LONG = 120


def read(forge: str) -> Any:
    return YAML(typ="safe", pure=True).load(FILES[forge].read_text(encoding="utf-8"))


def steps(forge: str) -> Mapping[str, str]:
    """The commands by the name of their step."""
    if forge == "gitlab":
        job = read(forge)["llmgw:plan"]
        *plan, validate = job["script"]
        return {"Plan": "\n".join(plan), "Validate": validate, "Comment": "\n".join(job["after_script"])}
    return {step["name"]: step["run"] for step in read(forge)["jobs"]["plan"]["steps"] if "run" in step}


def environment(forge: str) -> Mapping[str, str]:
    return read(forge)["llmgw:plan"]["variables"] if forge == "gitlab" else read(forge)["env"]  # type: ignore[no-any-return]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with stage_in(tmp_path) as ready:
        yield ready


class Runner:
    """A forge's machine: a fresh clone, detached at the request's commit, and the tools that are there."""

    def __init__(self, forge: str, folder: Path, origin: Path, request: str) -> None:
        self.forge = forge
        self.clone = folder / "clone"
        self._tools = folder / "tools"
        self._tools.mkdir(parents=True)
        self.tool("llmgw", f'#!/bin/sh\nexec "{sys.executable}" -m llmgw.cli.main "$@"\n')
        self.tool("python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        self._home = folder / "home"
        self._home.mkdir()
        self._git("clone", "--quiet", str(origin), str(self.clone), at=folder)
        self._git("switch", "--quiet", "--detach", f"origin/{request}", at=self.clone)

    def tool(self, name: str, text: str) -> None:
        (self._tools / name).write_text(text)
        (self._tools / name).chmod(0o755)

    def run(self, name: str, **given: str) -> "subprocess.CompletedProcess[str]":
        """As the forges do: bash that stops at the first failure."""
        command = steps(self.forge)[name]
        variables = {
            "GITHUB_STEP_SUMMARY": str(self._home / "summary.md"),
            **environment(self.forge),
            **given,
        }
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command],
            cwd=self.clone,
            env={**self._environment(), **{name: str(value) for name, value in variables.items()}},
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )

    @property
    def plan(self) -> str:
        return (self.clone / "plan.md").read_text(encoding="utf-8")

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self._tools}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self._home),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }

    def _git(self, *words: str, at: Path) -> None:
        subprocess.run(
            ["git", *words], cwd=at, env=self._environment(), check=True, capture_output=True, timeout=LONG
        )


# ---- what they may do --------------------------------------------------------------------------------


@pytest.mark.parametrize("forge", ["github", "gitea"])
def test_a_check_may_read_the_repository_and_comment_and_no_more(forge: str) -> None:
    workflow = read(forge)
    allowed = {"contents": "read", "pull-requests": "write"}
    assert workflow["permissions"] == (allowed if forge == "github" else {**allowed, "issues": "write"})
    assert workflow["on"] in ("pull_request", ["pull_request"]), (
        "never the target's rights for the request's text"
    )
    job = workflow["jobs"]["plan"]
    assert "permissions" not in job
    assert job["timeout-minutes"] <= 15
    for step in job["steps"]:
        assert "${{" not in step.get("run", ""), "what others wrote must not become a command"
        secret = [name for name, value in step.get("env", {}).items() if "token" in str(value)]
        assert not secret or step["name"] == "Comment"
    checkout = next(step for step in job["steps"] if "checkout" in step.get("uses", ""))
    assert checkout["with"] == {"fetch-depth": 0, "persist-credentials": False}


def test_gitlabs_check_keeps_its_token_from_what_reads_the_request() -> None:
    job = read("gitlab")["llmgw:plan"]
    assert job["rules"] == [{"if": '$CI_PIPELINE_SOURCE == "merge_request_event"'}]
    plan = next(line for line in job["script"] if "llmgw plan" in line)
    assert plan.startswith("env --unset=LLMGW_COMMENT_TOKEN ")
    assert "LLMGW_COMMENT_TOKEN" not in "".join(set(job["script"]) - {plan})


@pytest.mark.parametrize("forge", FORGES)
def test_no_setting_of_a_request_counts(forge: str) -> None:
    assert environment(forge)["LLMGW_CONFIG"] == "/dev/null"


# ---- their commands ----------------------------------------------------------------------------------


def test_a_request_is_planned_against_the_record_of_what_runs(stage: Stage, tmp_path: Path) -> None:
    stage.commit("Serve chat", node=node(stage), chat=model())
    assert stage.llmgw("apply", "--yes", golden=False).code == 0
    stage.git("switch", "--quiet", "-c", "request")
    stage.commit("Serve embed", embed=model("embed"))
    (stage.fleet / "llmgw.yaml").write_text("repo: https://evil.example/x.git\ntoken: {fromEnv: TOKEN}\n")
    stage.git("add", "--all")
    stage.git("commit", "--quiet", "--message", "Try to lead the check elsewhere")
    stage.git("switch", "--quiet", "-c", "wrong")
    stage.commit("Make a mistake", embed="apiVersion: llmgw/v1\nkind: Modle\nmetadata: {name: embed}\n")
    stage.git("switch", "--quiet", "main")
    for forge in ("github", "gitlab"):
        good = Runner(forge, tmp_path / forge, stage.fleet, "request")
        ran = good.run("Plan", TOKEN="c4n4ry", LLMGW_COMMENT_TOKEN="c4n4ry")
        assert ran.returncode == 0, ran.stderr
        assert good.plan.startswith(f"{MARKER}\n")
        assert "| create | `model/embed/0` |" in good.plan
        assert "model/chat" not in good.plan.partition("<details>")[0], "it runs already"
        assert "offline: as of serial" in good.plan
    assert good.run("Validate").returncode == 0
    bad = Runner("gitlab", tmp_path / "bad", stage.fleet, "wrong")
    assert bad.run("Plan").returncode != 0
    assert "manifests/embed.yaml:2:7" in bad.plan, "the comment says what is wrong"
    assert bad.run("Validate").returncode != 0
    assert [steps("gitea")[name] for name in ("Plan", "Validate")] == [
        steps("github")[name] for name in ("Plan", "Validate")
    ]
    assert environment("gitea").items() <= environment("github").items()


def test_before_anything_was_applied_everything_is_new(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    shutil.copytree(EXAMPLES / "manifests", origin / "manifests")
    quiet = {"GIT_AUTHOR_NAME": "ann", "GIT_AUTHOR_EMAIL": "ann@example.org"}
    who = {
        **os.environ,
        **quiet,
        **{name.replace("AUTHOR", "COMMITTER"): value for name, value in quiet.items()},
    }
    for words in (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "--all"),
        ("commit", "--quiet", "--message", "x"),
    ):
        subprocess.run(["git", *words], cwd=origin, env=who, check=True, timeout=LONG)
    runner = Runner("github", tmp_path / "runner", origin, "main")
    ran = runner.run("Plan")
    assert ran.returncode == 0, ran.stderr
    assert "nothing was applied yet" in ran.stdout
    assert "| create | `node/here` |" in runner.plan
    assert "`model/smollm2-135m/0`" in runner.plan
    assert runner.run("Show").returncode == 0
    assert runner.plan in (tmp_path / "runner/home/summary.md").read_text()


# ---- the comment -------------------------------------------------------------------------------------

STRANGERS = {"id": 5, "body": f"{MARKER} not the check's", "user": {"id": 9, "login": "ben"}}


class Forge:
    """Comments of one request, over HTTP."""

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = [
            {"id": 4, "body": "hello", "user": {"id": 9, "login": "ann"}},
            STRANGERS,
        ]
        self.did: list[tuple[str, str]] = []
        self.me: dict[str, Any] = {"id": 7, "login": "gitea-actions"}

    def answer(self, method: str, path: str, body: str) -> Any:
        self.did.append((method, path))
        if path.endswith("/user"):
            return self.me
        if method == "GET":
            return [{**it, "author": it["user"]} for it in self.comments]
        text = parse_qs(body)["body"][0] if body.startswith("body=") else json.loads(body)["body"]
        if method == "POST":
            self.comments.append({"id": 6, "body": text, "user": self.me})
        else:
            number = int(path.rpartition("/")[2])
            next(it for it in self.comments if it["id"] == number)["body"] = text
        return {}


@contextmanager
def forge_at(forge: Forge) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            allowed = "a-token" in (
                self.headers.get("PRIVATE-TOKEN") or self.headers.get("Authorization") or ""
            )
            answer = json.dumps(
                forge.answer(self.command, self.path.partition("?")[0], body) if allowed else {}
            ).encode()
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = do_PATCH = _answer  # noqa: N815 - the standard library's names

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


GH = """#!/bin/bash
# `gh api` as far as the check uses it: what it is asked for goes to a real server by curl, --jq to a real jq.
set -eo pipefail
[ "$1" = api ]; shift
method=GET; field=(); filter=.
while [ $# -gt 0 ]; do
  case "$1" in
    --paginate|--silent) ;;
    --method) method=$2; shift ;;
    --jq) filter=$2; shift ;;
    --field) [[ $2 == body=@* ]]; field=(--data-urlencode "body@${2#body=@}"); shift ;;
    *) path=$1 ;;
  esac
  shift
done
curl --silent --fail --request "$method" --header "Authorization: $GH_TOKEN" "${field[@]}" "$FORGE/$path" | jq -r "$filter"
"""


@pytest.mark.parametrize("forge", FORGES)
def test_one_comment_is_written_and_then_written_anew(forge: str, tmp_path: Path) -> None:
    needed = ["curl", *(["jq"] if forge == "github" else [])]
    if missing := [name for name in needed if shutil.which(name) is None]:
        pytest.skip(
            f"NOT PROVED that {forge}'s check finds its comment again: no {' and no '.join(missing)} here"
        )
    origin = tmp_path / "origin"
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(origin)], check=True, timeout=LONG)
    subprocess.run(
        ["git", "-c", "user.name=ann", "-c", "user.email=ann@x", "commit", "--quiet", "--allow-empty", "-m", "x"],
        cwd=origin, check=True, timeout=LONG,
    )  # fmt: skip
    runner = Runner(forge, tmp_path / "runner", origin, "main")
    runner.tool("gh", GH)
    there = Forge()
    if forge == "github":
        there.me = {"id": 7, "login": "github-actions[bot]"}
    with forge_at(there) as url:
        given = {
            "FORGE": url, "GH_TOKEN": "a-token", "REQUEST": "3", "GITHUB_REPOSITORY": "ann/fleet", "TOKEN": "a-token", "API": url,
            "LLMGW_COMMENT_TOKEN": "a-token", "CI_API_V4_URL": url, "CI_PROJECT_ID": "12", "CI_MERGE_REQUEST_IID": "3",
        }  # fmt: skip
        nasty = 'it\'s "quoted" & $HOME `id` ä %41 + = \\n'
        for text in (f"{MARKER}\nfirst {nasty}\n", f"{MARKER}\nsecond {nasty}\n"):
            (runner.clone / "plan.md").write_text(text)
            ran = runner.run("Comment", **given)
            assert ran.returncode == 0, ran.stderr
            assert there.comments[2:] == [{"id": 6, "body": text, "user": there.me}]
        assert there.comments[1] == STRANGERS
        changes = [(method, path) for method, path in there.did if method != "GET"]
        assert [method for method, _ in changes] == ["POST", "PUT" if forge == "gitlab" else "PATCH"]
        assert re.search(r"/(6)$", changes[1][1])
        refused = runner.run(
            "Comment", **{**given, "GH_TOKEN": "no", "TOKEN": "no", "LLMGW_COMMENT_TOKEN": "no"}
        )
        assert refused.returncode != 0, "a comment that was not written is no success"
