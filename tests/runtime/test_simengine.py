"""The stand-in engine as users and the agent meet it: a real process, asked by the openai client and by hand."""

import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest

from tests.runtime.engineprocess import KEY, EngineProcess, chat, metric, openai_client, until


class Sims:
    """Starts sim engines on free ports and ends them all."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack

    def start(self, *flags: str, key: str | None = KEY) -> EngineProcess:
        env = {"SIM_API_KEY": key} if key else {}
        argv = ("--port", "0", "--served-name", "chat", *flags)
        return self.stack.enter_context(EngineProcess("simengine", *argv, folder=self.folder, env=env))

    def listening(self, *flags: str, key: str | None = KEY) -> tuple[EngineProcess, int]:
        engine = self.start(*flags, key=key)
        return engine, int(engine.wait_for(r"listening on \S+ port (\d+)")[1])

    def serving(self, *flags: str, key: str | None = KEY) -> tuple[EngineProcess, int]:
        engine, port = self.listening(*flags, key=key)
        engine.wait_for("serving chat")
        return engine, port


@pytest.fixture
def sims(tmp_path: Path) -> Iterator[Sims]:
    with ExitStack() as stack:
        yield Sims(tmp_path, stack)


def test_it_shows_what_it_only_pretends(sims: Sims) -> None:
    _, port = sims.serving("--pretend", "dtype=bfloat16", "--pretend", "parallel.tensor=8")
    with openai_client(port) as client:
        (entry,) = client.models.list()
    assert entry.model_dump()["pretends"] == {"dtype": "bfloat16", "parallel.tensor": "8"}


# ---- Adapters ----------------------------------------------------------------------------------------


def call(port: int, route: str, **body: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx.post(f"http://127.0.0.1:{port}/v1/{route}_lora_adapter", json=body, headers=headers)


def adapters(port: int) -> dict[str, str]:
    with openai_client(port) as client:
        listed = [entry.model_dump() for entry in client.models.list()]
    return {entry["id"]: entry["root"] for entry in listed if entry.get("parent") == "chat"}


def test_adapters_are_loaded_listed_asked_and_unloaded_as_in_vllm(sims: Sims) -> None:
    _, port = sims.serving("--max-adapters", "2", "--refuse-adapter", "bad")
    assert call(port, "load", lora_name="sql", lora_path="/a").status_code == 200
    assert call(port, "load", lora_name="sql", lora_path="/a").status_code == 400
    assert call(port, "load", lora_name="sql", lora_path="/b", load_inplace=True).status_code == 200
    assert call(port, "load", lora_name="team/legal", lora_path="/c").status_code == 200
    assert "no more fit" in call(port, "load", lora_name="third", lora_path="/d").text
    assert "told to" in call(port, "load", lora_name="bad", lora_path="/d").text
    assert adapters(port) == {"sql": "/b", "team/legal": "/c"}
    with openai_client(port) as client:
        answer = client.completions.create(model="team/legal", prompt="hello")
        assert (answer.model, answer.choices[0].text) == ("team/legal", "You said: hello")
    assert call(port, "unload", lora_name="team/legal").status_code == 200
    assert call(port, "unload", lora_name="team/legal").status_code == 404
    assert call(port, "load", lora_name=1, lora_path="/a").status_code == 400
    assert call(port, "unload").status_code == 404
    with openai_client(port) as client, pytest.raises(openai.NotFoundError):
        client.completions.create(model="team/legal", prompt="hello")


def test_adapters_of_its_start_are_there_and_none_can_be_added(sims: Sims, tmp_path: Path) -> None:
    _, port = sims.serving("--adapter", "sql=/a")
    assert adapters(port) == {"sql": "/a"}
    assert call(port, "load", lora_name="more", lora_path="/b").status_code == 404
    (tmp_path / "adapter_config.json").write_text('{"r": 32}')
    _, port = sims.serving("--max-adapters", "2")
    refused = call(port, "load", lora_name="big", lora_path=str(tmp_path))
    assert (refused.status_code, "rank 32" in refused.text) == (400, True)


# ---- The API -----------------------------------------------------------------------------------------


def test_an_openai_client_gets_the_same_answer_whole_and_streamed(sims: Sims) -> None:
    _, port = sims.serving()
    with openai_client(port) as client:
        assert [entry.id for entry in client.models.list()] == ["chat"]
        whole = client.chat.completions.create(model="chat", messages=chat("good morning"))
        assert whole.choices[0].message.content == "You said: good morning"
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (2, 4)
        stream = client.chat.completions.create(
            model="chat",
            messages=chat("good morning"),
            stream=True,
            stream_options={"include_usage": True},
        )
        pieces = list(stream)
        text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        assert text == "You said: good morning"
        assert pieces[-1].usage == whole.usage
        assert pieces[-2].choices[0].finish_reason == "stop"


def test_completions_are_cut_at_max_tokens(sims: Sims) -> None:
    _, port = sims.serving()
    with openai_client(port) as client:
        cut = client.completions.create(model="chat", prompt="a b c", max_tokens=3)
        assert (cut.choices[0].text, cut.choices[0].finish_reason) == ("You said: a", "length")
        pieces = list(client.completions.create(model="chat", prompt="a", max_tokens=9, stream=True))
        assert "".join(piece.choices[0].text for piece in pieces) == "You said: a"


def test_embeddings_and_ranks_follow_from_the_text(sims: Sims) -> None:
    _, port = sims.serving()
    with openai_client(port) as client:
        # The client asks for base64 by itself; plain numbers must say the same.
        coded = client.embeddings.create(model="chat", input=["one", "two"])
        plain = client.embeddings.create(model="chat", input="one", encoding_format="float")
        assert coded.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
        assert coded.data[0].embedding != coded.data[1].embedding
        assert sum(x * x for x in plain.data[0].embedding) == pytest.approx(1)
    engine, port = sims.serving()
    with engine.client(port) as http:
        answer = http.post("/v1/rerank", json={"query": "b", "documents": ["a", "b"]}).json()
        assert answer["results"][0] == {"index": 1, "relevance_score": pytest.approx(1)}


@pytest.mark.parametrize("key", [None, "wrong", f"{KEY}x"])
def test_only_health_answers_without_the_right_key(sims: Sims, key: str | None) -> None:
    engine, port = sims.serving()
    with engine.client(port, key) as http:
        assert http.get("/health").status_code == 200
        for path in ("/v1/models", "/metrics", "/nothing"):
            assert http.get(path).status_code == 401
        refused = http.post("/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
    with openai_client(port, "wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    assert KEY not in engine.text()


def test_without_a_key_of_its_own_everything_is_open(sims: Sims) -> None:
    engine, port = sims.serving(key=None)
    with engine.client(port, None) as http:
        assert http.get("/v1/models").status_code == 200


def test_bad_requests_get_an_error_and_the_engine_lives_on(sims: Sims) -> None:
    engine, port = sims.serving()
    with engine.client(port) as http:
        cases = [
            (404, http.post("/v1/completions", json={"model": "other", "prompt": "a"})),
            (400, http.post("/v1/completions", content=b"{")),
            (400, http.post("/v1/completions", content=b"[1]")),
            (400, http.post("/v1/completions", content=b"[" * 100_000)),
            (400, http.post("/v1/completions", json={"prompt": "a", "max_tokens": -1})),
            (400, http.post("/v1/chat/completions", json={"messages": []})),
            (404, http.get("/v1/nothing")),
            (413, http.post("/v1/completions", content=iter([b"{}"]))),
        ]
        assert [status for status, _ in cases] == [answer.status_code for _, answer in cases]
        assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 200
        assert metric(http, "sim:requests_running") == 0


def test_several_clients_stream_at_once_and_are_counted(sims: Sims) -> None:
    engine, port = sims.serving("--token-delay", "0.02")
    body = {"prompt": "a", "max_tokens": 10_000, "ignore_eos": True, "stream": True}
    with engine.client(port) as http, ExitStack() as streams:
        lines = []
        for _ in range(4):
            answer = streams.enter_context(http.stream("POST", "/v1/completions", json=body))
            lines.append(answer.iter_lines())
        assert all(next(each).startswith("data: ") for each in lines)
        assert metric(http, "sim:requests_running") == 4
        streams.close()
        until("clients that left are no longer counted", lambda: metric(http, "sim:requests_running") == 0)


def test_it_serves_on_ipv6(sims: Sims) -> None:
    _, port = sims.serving("--host", "::1")
    assert httpx.get(f"http://[::1]:{port}/health").status_code == 200


# ---- Loading and stopping ----------------------------------------------------------------------------


def test_while_loading_it_answers_503(sims: Sims) -> None:
    engine, port = sims.listening("--load-seconds", "3")
    with engine.client(port) as http:
        assert http.get("/health").status_code == 503
        assert http.get("/v1/models").status_code == 503
        until("loaded", lambda: http.get("/health").status_code == 200)
        assert http.get("/v1/models").status_code == 200


def test_bound_late_it_is_ready_the_moment_it_listens(sims: Sims) -> None:
    engine = sims.start("--load-seconds", "0.3", "--bind-late")
    port = int(engine.wait_for(r"listening on \S+ port (\d+)")[1])
    with engine.client(port) as http:
        assert http.get("/health").status_code == 200


def test_never_ready_stays_at_503(sims: Sims) -> None:
    engine, port = sims.serving("--never-ready")
    with engine.client(port) as http:
        assert http.get("/health").status_code == 503


def test_weights_that_are_not_there_stop_it(sims: Sims, tmp_path: Path) -> None:
    engine = sims.start("--weights", str(tmp_path / "none.gguf"))
    assert engine.exit_code() == 1
    assert "none.gguf is not there" in engine.text()
    (tmp_path / "some.gguf").write_bytes(b"x")
    sims.serving("--weights", str(tmp_path / "some.gguf"))


def test_a_taken_port_is_said(sims: Sims) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        engine = sims.start("--port", str(port))
        assert engine.exit_code() == 1
        assert f"can't open 127.0.0.1 port {port}" in engine.text()


def test_sigterm_finishes_what_runs_and_exits_0(sims: Sims) -> None:
    engine, port = sims.serving("--token-delay", "0.05")
    answers: list[httpx.Response] = []
    with engine.client(port) as http:
        body = {"prompt": "a", "max_tokens": 20, "ignore_eos": True}
        asking = threading.Thread(target=lambda: answers.append(http.post("/v1/completions", json=body)))
        asking.start()
        with engine.client(port) as other:
            until("the request runs", lambda: metric(other, "sim:requests_running") == 1)
        engine.process.send_signal(signal.SIGTERM)
        assert engine.exit_code() == 0
        asking.join()
    assert answers[0].json()["usage"]["completion_tokens"] == 20


def test_sigterm_waits_no_longer_than_told_and_a_second_one_not_at_all(sims: Sims) -> None:
    body = {"prompt": "a", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    for seconds, code in (("0.2", 0), ("600", 1)):
        engine, port = sims.serving("--token-delay", "0.05", "--drain-seconds", seconds)
        with engine.client(port) as http, http.stream("POST", "/v1/completions", json=body):
            engine.process.send_signal(signal.SIGTERM)
            engine.wait_for("stopping")
            if code:
                engine.process.send_signal(signal.SIGTERM)
            assert engine.exit_code() == code


# ---- Misbehaving -------------------------------------------------------------------------------------


def test_told_to_it_exits_by_itself_with_the_code(sims: Sims) -> None:
    engine = sims.start("--exit-after", "0.2", "--exit-code", "7")
    assert engine.exit_code() == 7


def test_told_to_it_exits_at_the_first_request(sims: Sims) -> None:
    engine, port = sims.serving("--exit-on-request", "--exit-code", "134")
    with engine.client(port) as http, pytest.raises(httpx.RemoteProtocolError):
        http.post("/v1/completions", json={"prompt": "a"})
    assert engine.exit_code() == 134


def test_told_to_it_ignores_sigterm(sims: Sims) -> None:
    engine, port = sims.serving("--ignore-sigterm")
    engine.process.send_signal(signal.SIGTERM)
    with engine.client(port) as http:
        assert http.get("/health").status_code == 200
    assert engine.process.poll() is None


def test_told_to_it_is_healthy_without_a_list_of_models(sims: Sims) -> None:
    engine, port = sims.serving("--no-models")
    with engine.client(port) as http:
        assert (http.get("/health").status_code, http.get("/v1/models").status_code) == (200, 404)


def test_told_to_it_is_healthy_but_gives_no_token(sims: Sims) -> None:
    engine, port = sims.serving("--fail-token")
    with engine.client(port) as http:
        assert (http.get("/health").status_code, http.get("/v1/models").status_code) == (200, 200)
        assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 500


def test_told_to_it_takes_health_questions_and_never_answers(sims: Sims) -> None:
    engine, port = sims.serving("--hang-health")
    with engine.client(port) as http:
        with pytest.raises(httpx.ReadTimeout):
            http.get("/health", timeout=0.3)
        assert http.get("/v1/models").status_code == 200


def test_told_to_it_fails_loading_with_a_traceback(sims: Sims) -> None:
    engine = sims.start("--traceback")
    assert engine.exit_code() == 1
    assert "Traceback (most recent call last):" in engine.text()
    assert "RuntimeError: sim out of memory" in engine.text()


def test_told_to_it_logs_without_end(sims: Sims) -> None:
    engine, _ = sims.serving("--log-forever", "200000")
    until("200 kB of log", lambda: engine.log.stat().st_size > 200_000)
    engine.process.send_signal(signal.SIGTERM)
    assert engine.exit_code() == 0


def command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def children_of(engine: EngineProcess) -> set[int]:
    """By the command line, which children share with their parent and no other process has."""
    mine = command_line(str(engine.pid))
    pids = {entry.name for entry in Path("/proc").glob("[0-9]*")} - {str(engine.pid)}
    return {int(pid) for pid in pids if command_line(pid) == mine}


def ignores_sigterm(pid: int) -> bool:
    (ignored,) = re.findall(r"SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(ignored, 16) & 1 << (signal.SIGTERM - 1))


@pytest.mark.parametrize("style", ["plain", "setsid", "double-fork"])
def test_told_to_it_leaves_children_that_outlive_it(sims: Sims, tmp_path: Path, style: str) -> None:
    # The folder's name makes the command line this test's own.
    flags = ("--model", str(tmp_path), "--leave-children", "2", "--child-style", style)
    engine, _ = sims.serving(*flags, "--child-seconds", "60")
    children = children_of(engine)
    try:
        assert len(children) == 2
        engine.process.send_signal(signal.SIGTERM)
        assert engine.exit_code() == 0
        for child in children:
            assert command_line(str(child)), "a child died with its parent"
            assert ignores_sigterm(child)
            assert (os.getsid(child) == engine.pid) == (style == "plain")
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


def test_told_to_it_changes_its_name_and_wipes_its_environment(sims: Sims) -> None:
    engine, port = sims.serving("--rename", "SIM::Core", "--wipe-environment")
    proc = Path(f"/proc/{engine.pid}")
    assert proc.joinpath("cmdline").read_bytes().rstrip(b"\0") == b"SIM::Core"
    assert proc.joinpath("comm").read_text().strip() == "SIM::Core"
    assert proc.joinpath("environ").read_bytes().strip(b"\0") == b""
    with engine.client(port) as http:
        assert http.get("/v1/models").status_code == 200  # the key was read before


def test_an_unknown_flag_is_refused(sims: Sims) -> None:
    engine = sims.start("--load-second", "1")
    assert engine.exit_code() == 2
    assert "unrecognized arguments: --load-second 1" in engine.text()


# ---- Gangs -------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def test_a_gang_is_ready_when_all_its_ranks_have_met(sims: Sims) -> None:
    meeting = ("--ranks", "3", "--rendezvous", f"127.0.0.1:{free_port()}")
    leader, port = sims.serving(*meeting, "--rank", "0")
    sims.start(*meeting, "--rank", "1")
    leader.wait_for("rank 1 joined")
    with leader.client(port) as http:
        assert http.get("/health").status_code == 503
        sims.start(*meeting, "--rank", "2")
        until("ready together", lambda: http.get("/health").status_code == 200)


def test_who_only_looks_whether_the_leader_is_there_is_not_taken_for_a_rank(sims: Sims) -> None:
    """As agents do before they start a worker."""
    meet = free_port()
    meeting = ("--ranks", "2", "--rendezvous", f"127.0.0.1:{meet}")
    leader, port = sims.serving(*meeting, "--rank", "0")
    for _ in range(3):
        socket.create_connection(("127.0.0.1", meet), timeout=5).close()
    sims.start(*meeting, "--rank", "1")
    leader.wait_for("rank 1 joined")
    assert leader.text().count(" joined") == 1
    with leader.client(port) as http:
        until("ready together", lambda: http.get("/health").status_code == 200)
        assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_a_rank_ends_with_its_leader(sims: Sims) -> None:
    meeting = ("--ranks", "2", "--rendezvous", f"127.0.0.1:{free_port()}")
    worker = sims.start(*meeting, "--rank", "1")  # earlier than the leader: it waits
    leader, _ = sims.serving(*meeting, "--rank", "0")
    worker.wait_for("joined")
    assert "listening" not in worker.text()
    leader.process.kill()
    assert worker.exit_code() == 1
    assert "rank 0 went away" in worker.text()


def test_a_leader_that_lost_a_rank_looks_healthy_until_it_is_asked(sims: Sims) -> None:
    meeting = ("--ranks", "2", "--rendezvous", f"127.0.0.1:{free_port()}")
    leader, port = sims.serving(*meeting, "--rank", "0")
    worker = sims.start(*meeting, "--rank", "1")
    with leader.client(port) as http:
        until("ready together", lambda: http.get("/health").status_code == 200)
        worker.process.kill()
        leader.wait_for("rank 1 went away")
        assert http.get("/health").status_code == 200
        assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 500
    assert leader.exit_code() == 1
