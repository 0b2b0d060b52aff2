"""The stand-in engine: speaks the OpenAI API, computes nothing, and misbehaves when told to.

Standard library only, Python 3.10, and one file whatever its length: it is laid onto nodes by itself, under the
name ``sim-engine``, and run by path.
The key comes in SIM_API_KEY. Answers are made of the prompt, so that the same question gets the same answer. A token
is a word.
"""

import argparse
import base64
import ctypes
import hashlib
import json
import os
import signal
import socket
import socketserver
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_BODY = 8 * 1024 * 1024
IDLE_SECONDS = 75  # a kept-alive connection that says nothing for so long is closed
PR_SET_NAME = 15
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
VECTOR = 16  # dimensions of an embedding: one for every two bytes of a SHA-256


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sim-engine", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--served-name", default="sim", help="the only model name that requests may use")
    add("--model", default="", help="what the weights are called; only shown")
    add("--weights", help="a file or directory that must be readable, as a real engine would need it")
    add("--pretend", action="append", default=[], metavar="SETTING=VALUE", help="shown in the list of models")
    add("--adapter", action="append", default=[], metavar="NAME=PATH", help="a LoRA adapter it starts with")
    add("--max-adapters", type=int, default=0, help="how many may be loaded while it runs")
    add("--max-adapter-rank", type=int, default=16, help="the highest rank of those")
    add("--drain-seconds", type=float, default=30, help="how long SIGTERM waits for running requests")
    add("--token-delay", type=float, default=0, help="seconds for each token")
    gang = parser.add_argument_group("ranks of a gang: rank 0 serves HTTP, the others hold on to it")
    gang.add_argument("--rank", type=int, default=0)
    gang.add_argument("--ranks", type=int, default=1)
    gang.add_argument("--rendezvous", metavar="HOST:PORT", help="where rank 0 waits for the others")
    gang.add_argument("--rendezvous-seconds", type=float, default=300)
    bad = parser.add_argument_group("misbehaviour").add_argument
    bad("--load-seconds", type=float, default=0, help="answer 503 for so long")
    bad("--bind-late", action="store_true", help="open the port only when loaded")
    bad("--never-ready", action="store_true", help="answer 503 for ever")
    bad("--exit-after", type=float, metavar="SECONDS")
    bad("--exit-code", type=int, default=1, help="of --exit-after and --exit-on-request")
    bad("--exit-on-request", action="store_true", help="exit at the first completion")
    bad("--ignore-sigterm", action="store_true")
    bad("--no-models", action="store_true", help="/health answers, /v1/models does not exist")
    bad("--refuse-adapter", action="append", default=[], metavar="NAME", help="400 to loading this one")
    bad("--fail-token", action="store_true", help="healthy, but 500 to every request for work")
    bad("--hang-health", action="store_true", help="accept /health and never answer")
    bad("--leave-children", type=int, default=0, metavar="N", help="children that outlive the engine")
    bad("--child-style", choices=("plain", "setsid", "double-fork"), default="plain")
    bad("--child-seconds", type=float, default=600, help="children end by themselves after so long")
    bad("--rename", metavar="NAME", help="overwrite the command line, as setproctitle does")
    bad("--wipe-environment", action="store_true", help="overwrite the environment block in /proc")
    bad("--traceback", action="store_true", help="fail while loading with a Python traceback")
    bad("--log-forever", type=int, default=0, metavar="BYTES_PER_SECOND")
    options = parser.parse_args(argv)
    if unclear := [setting for setting in options.pretend if "=" not in setting]:
        parser.error(f"--pretend {unclear[0]} is not SETTING=VALUE")
    if unclear := [adapter for adapter in options.adapter if "=" not in adapter]:
        parser.error(f"--adapter {unclear[0]} is not NAME=PATH")
    if options.ranks > 1 and not options.rendezvous:
        parser.error("--ranks above 1 needs --rendezvous HOST:PORT")
    if not 0 <= options.rank < options.ranks:
        parser.error(f"--rank {options.rank} is not one of {options.ranks} ranks, which count from 0")
    return options


# ---- How it misbehaves -------------------------------------------------------------------------------


def disguise(name: str | None, *, wipe: bool) -> None:
    """Overwrites what /proc shows of this process, in place, as programs that set their title do."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    arg_start, arg_end, env_start, env_end = (int(fields[number - 3]) for number in range(48, 52))
    if wipe:
        ctypes.memset(env_start, 0, env_end - env_start)
    if name is not None:
        title = name.encode()
        ctypes.memset(arg_start, 0, arg_end - arg_start)
        ctypes.memmove(arg_start, title, min(len(title), arg_end - arg_start - 1))
        ctypes.CDLL(None).prctl(PR_SET_NAME, title[:15], 0, 0, 0)


def leave_children(count: int, style: str, seconds: float) -> None:
    """Processes that ignore polite signals, in this session, in one of their own, or handed to init."""
    for _ in range(count):
        pid = os.fork()
        if pid:
            if style == "double-fork":
                os.waitpid(pid, 0)
            continue
        if style != "plain":
            os.setsid()
        if style == "double-fork" and os.fork():
            os._exit(0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(seconds)
        os._exit(0)


def log_forever(rate: int) -> None:
    line = "x" * 99 + "\n"
    while True:
        sys.stdout.write(line * max(1, rate // 1000))
        sys.stdout.flush()
        time.sleep(max(0.1, 100 / rate))


def die(code: int, why: str) -> None:
    print(f"sim-engine: exiting with {code}: {why}", flush=True)
    os._exit(code)


# ---- The engine --------------------------------------------------------------------------------------


class Engine:
    """What all requests share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.key = os.environ.get("SIM_API_KEY", "")  # noqa: TID251 - a program by itself; a key has no place in argv
        self.loaded = False
        self.stop = threading.Event()
        self.quiet = threading.Condition()
        self.running = 0
        self.requests = 0
        self.tokens = 0
        self.adapters = dict(adapter.split("=", 1) for adapter in options.adapter)
        self.joined: set[str] = set()
        self.lost = ""

    def load_adapter(self, name: str, path: str, *, again: bool) -> None:
        """By what a real one would refuse: that it was not started for it, has no room, or can't read it."""
        with self.quiet:
            if not self.options.max_adapters:
                raise Wrong(404, "no adapters can be loaded: --max-adapters is 0", "not_found_error")
            if name in self.options.refuse_adapter:
                raise Wrong(400, f"adapter {name!r} can't be loaded (told to by --refuse-adapter)")
            if name in self.adapters and not again:
                raise Wrong(400, f"The adapter {name!r} has already been loaded")
            if name not in self.adapters and len(self.adapters) >= self.options.max_adapters:
                raise Wrong(400, f"{len(self.adapters)} adapters are loaded, no more fit")
            if (rank := adapter_rank(path)) > self.options.max_adapter_rank:
                raise Wrong(400, f"rank {rank} of {path} is above {self.options.max_adapter_rank}")
            self.adapters[name] = path

    def unload_adapter(self, name: str) -> None:
        with self.quiet:
            if self.adapters.pop(name, None) is None:
                raise Wrong(404, f"no adapter {name!r} is loaded", "not_found_error")

    @property
    def ready(self) -> bool:
        together = len(self.joined) >= self.options.ranks - 1
        return self.loaded and together and not self.options.never_ready

    def load(self) -> None:
        weights = self.options.weights
        if weights is not None and not os.access(weights, os.R_OK):
            die(1, f"can't load weights: {weights} is not there or not readable")
        self.stop.wait(self.options.load_seconds)
        if self.options.traceback:
            self._allocate()
        self.loaded = True

    def _allocate(self) -> None:
        raise RuntimeError("sim out of memory: tried to allocate 2.00 GiB (told to by --traceback)")

    def on_signal(self, _number: int, _frame: object) -> None:
        if self.stop.is_set():
            os._exit(1)
        self.stop.set()

    def drain(self) -> None:
        with self.quiet:
            self.quiet.wait_for(lambda: self.running == 0, timeout=self.options.drain_seconds)

    def __enter__(self) -> None:
        with self.quiet:
            self.running += 1
            self.requests += 1

    def __exit__(self, *_: object) -> None:
        with self.quiet:
            self.running -= 1
            self.quiet.notify_all()

    def words(self, prompt: str, limit: int, *, endless: bool) -> Iterator[str]:
        """The answer, word by word, at the pace it was told."""
        answer = ["You", "said:", *prompt.split()]
        for index in range(limit if endless else min(limit, len(answer))):
            if self.options.token_delay:
                time.sleep(self.options.token_delay)
            with self.quiet:
                self.tokens += 1
            yield ("" if index == 0 else " ") + answer[index % len(answer)]

    def metrics(self) -> str:
        values = {"requests_running": self.running, "requests": self.requests, "tokens": self.tokens}
        kinds = {"requests_running": "gauge", "requests": "counter", "tokens": "counter"}
        return "".join(
            f"# TYPE sim:{name} {kinds[name]}\nsim:{name} {value}\n" for name, value in values.items()
        )


class Wrong(Exception):  # noqa: N818 - an answer, not a failure of the program
    """A request that gets an error as its answer."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "code": status}}


def adapter_rank(path: str) -> int:
    """A directory of PEFT says it; what else a path may name has none."""
    try:
        with open(os.path.join(path, "adapter_config.json"), encoding="utf-8") as file:
            rank = json.load(file).get("r", 0)
    except (OSError, ValueError, AttributeError):
        return 0
    return rank if isinstance(rank, int) else 0


def prompt_of(request: dict[str, Any]) -> tuple[str, int]:
    """What the answer is made of, and how many words came in."""
    if "messages" not in request:
        prompt = request.get("prompt", "")
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        if not isinstance(prompt, str):
            raise Wrong(400, "prompt must be text")
        return prompt, len(prompt.split())
    messages = request["messages"]
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise Wrong(400, "messages must be a list of at least one message")
    texts = [text_of(message.get("content")) for message in messages]
    return texts[-1], sum(len(text.split()) for text in texts)


def text_of(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def vector_of(text: str) -> list[float]:
    numbers = [n - 32767.5 for n in struct.unpack(f"<{VECTOR}H", hashlib.sha256(text.encode()).digest())]
    length = sum(n * n for n in numbers) ** 0.5
    return [n / length for n in numbers]


def usage(words_in: int, words_out: int) -> dict[str, int]:
    return {
        "prompt_tokens": words_in,
        "completion_tokens": words_out,
        "total_tokens": words_in + words_out,
    }


class Completion:
    """One answer, whole or in pieces."""

    def __init__(self, engine: Engine, request: dict[str, Any]) -> None:
        self.engine, self.chat = engine, "messages" in request
        self.prompt, self.words_in = prompt_of(request)
        self.limit = request.get("max_completion_tokens") or request.get("max_tokens") or 256
        if type(self.limit) is not int or self.limit < 1:
            raise Wrong(400, "max_tokens must be a number from 1")
        self.endless = bool(request.get("ignore_eos"))
        self.usage_too = bool((request.get("stream_options") or {}).get("include_usage"))
        self.frame = {
            "id": "sim-" + hashlib.sha256(self.prompt.encode()).hexdigest()[:12],
            "created": int(time.time()),
            "model": request.get("model", engine.options.served_name),
            "object": "chat.completion" if self.chat else "text_completion",
        }

    def words(self) -> Iterator[str]:
        return self.engine.words(self.prompt, self.limit, endless=self.endless)

    def finish(self, count: int) -> str:
        cut = self.endless or count < len(self.prompt.split()) + 2
        return "length" if cut else "stop"

    def whole(self) -> dict[str, Any]:
        words = list(self.words())
        text = "".join(words)
        content = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": self.finish(len(words))}
        return {**self.frame, "choices": [choice], "usage": usage(self.words_in, len(words))}

    def chunks(self) -> Iterator[dict[str, Any]]:
        if self.chat:
            self.frame["object"] = "chat.completion.chunk"
            yield self.piece({"delta": {"role": "assistant", "content": ""}})
        count = 0
        for count, word in enumerate(self.words(), start=1):  # noqa: B007 - counts what was said
            yield self.piece({"delta": {"content": word}} if self.chat else {"text": word})
        yield self.piece({"delta": {}} if self.chat else {"text": ""}, self.finish(count))
        if self.usage_too:
            yield {**self.frame, "choices": [], "usage": usage(self.words_in, count)}

    def piece(self, content: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        return {**self.frame, "choices": [choice]}


# ---- HTTP --------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "sim-engine"
    disable_nagle_algorithm = True
    timeout = IDLE_SECONDS
    server: "Server"

    def do_GET(self) -> None:
        self.answer({"/v1/models": self.models, "/metrics": self.metrics})

    def do_POST(self) -> None:
        work = {
            "/v1/completions": self.complete,
            "/v1/chat/completions": self.complete,
            "/v1/embeddings": self.embed,
            "/v1/rerank": self.rerank,
            LOAD: self.load_adapter,
            UNLOAD: self.unload_adapter,
        }
        self.answer(work)

    def answer(self, routes: dict[str, Any]) -> None:
        self.engine: Engine = self.server.engine
        path = self.path.partition("?")[0]
        try:
            body = self.read_body()
            if (self.command, path) == ("GET", "/health"):
                self.health()
            else:
                self.route(path, routes, body)
        except Wrong as wrong:
            self.send(wrong.status, wrong.body)
            if self.engine.lost and wrong.status == 500:
                die(1, f"lost {self.engine.lost}")

    def route(self, path: str, routes: dict[str, Any], body: bytes) -> None:
        self.check_key()
        if path not in routes:
            raise Wrong(404, f"no {self.command} {path}", "not_found_error")
        if not self.engine.ready:
            raise Wrong(503, "Loading model", "unavailable_error")
        if self.command == "GET":
            routes[path]()
        elif path in (LOAD, UNLOAD):
            routes[path](self.object_of(body))
        else:
            with self.engine:
                routes[path](self.work_of(body))

    def read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdigit() or int(length) > MAX_BODY:
            self.close_connection = True
            raise Wrong(413, f"a body needs a Content-Length of at most {MAX_BODY} bytes")
        return self.rfile.read(int(length))

    def check_key(self) -> None:
        given = self.headers.get("Authorization", "")
        if self.engine.key and given != f"Bearer {self.engine.key}":
            raise Wrong(401, "Invalid API Key", "authentication_error")

    def work_of(self, body: bytes) -> dict[str, Any]:
        options = self.engine.options
        if options.exit_on_request:
            die(options.exit_code, "a request came (told to by --exit-on-request)")
        if options.fail_token or self.engine.lost:
            raise Wrong(500, f"the engine is broken {self.engine.lost}".strip(), "server_error")
        request = self.object_of(body)
        names = (options.served_name, *self.engine.adapters)
        if request.get("model", options.served_name) not in names:
            raise Wrong(404, f"no model {request['model']!r} here: {', '.join(names)}", "not_found_error")
        return request

    def object_of(self, body: bytes) -> dict[str, Any]:
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            raise Wrong(400, "the body is not JSON") from None
        if not isinstance(request, dict):
            raise Wrong(400, "the body is no JSON object")
        return request

    def load_adapter(self, request: dict[str, Any]) -> None:
        name, path = request.get("lora_name"), request.get("lora_path")
        if not (isinstance(name, str) and name and isinstance(path, str) and path):
            raise Wrong(400, "lora_name and lora_path must be text")
        self.engine.load_adapter(name, path, again=request.get("load_inplace") is True)
        self.send(200, f"Success: adapter {name!r} is loaded.", kind="text/plain")

    def unload_adapter(self, request: dict[str, Any]) -> None:
        self.engine.unload_adapter(str(request.get("lora_name", "")))
        self.send(200, f"Success: adapter {request['lora_name']!r} is gone.", kind="text/plain")

    def health(self) -> None:
        if self.engine.options.hang_health:
            threading.Event().wait()
        if not self.engine.ready:
            raise Wrong(503, "Loading model", "unavailable_error")
        self.send(200, {"status": "ok"})

    def models(self) -> None:
        if self.engine.options.no_models:
            raise Wrong(404, "no GET /v1/models", "not_found_error")
        options = self.engine.options
        entry = {"id": options.served_name, "object": "model", "created": 0, "owned_by": "sim"}
        entry["pretends"] = dict(setting.split("=", 1) for setting in options.pretend)
        loaded = [
            {"id": name, "object": "model", "root": path, "parent": options.served_name}
            for name, path in self.engine.adapters.items()
        ]
        self.send(200, {"object": "list", "data": [entry, *loaded]})

    def metrics(self) -> None:
        self.send(200, self.engine.metrics(), kind="text/plain; version=0.0.4")

    def complete(self, request: dict[str, Any]) -> None:
        answer = Completion(self.engine, request)
        if request.get("stream"):
            self.stream(answer.chunks())
        else:
            self.send(200, answer.whole())

    def stream(self, events: Iterator[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in events:
                self.chunk(f"data: {json.dumps(event)}\n\n".encode())
            self.chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True  # the client went away

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def embed(self, request: dict[str, Any]) -> None:
        texts = request.get("input", "")
        texts = texts if isinstance(texts, list) else [texts]
        if not all(isinstance(text, str) for text in texts):
            raise Wrong(400, "input must be text, or a list of texts")
        data = []
        for index, text in enumerate(texts):
            vector: Any = vector_of(text)
            if request.get("encoding_format") == "base64":
                vector = base64.b64encode(struct.pack(f"<{VECTOR}f", *vector)).decode()
            data.append({"object": "embedding", "index": index, "embedding": vector})
        count = sum(len(text.split()) for text in texts)
        used = {"prompt_tokens": count, "total_tokens": count}
        name = self.engine.options.served_name
        self.send(200, {"object": "list", "model": name, "data": data, "usage": used})

    def rerank(self, request: dict[str, Any]) -> None:
        query, documents = vector_of(str(request.get("query", ""))), request.get("documents")
        if not isinstance(documents, list):
            raise Wrong(400, "documents must be a list of texts")
        scores = [sum(a * b for a, b in zip(query, vector_of(str(d)), strict=True)) for d in documents]
        results = [{"index": index, "relevance_score": score} for index, score in enumerate(scores)]
        results.sort(key=lambda result: -result["relevance_score"])
        self.send(200, {"model": self.engine.options.served_name, "results": results})

    def send(self, status: int, body: Any, kind: str = "application/json") -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        if self.path != "/health":  # asked every few seconds; it would bury what matters
            super().log_request(code, size)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        print(f"sim-engine: {format % args}", flush=True)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        if ":" in engine.options.host:
            self.address_family = socket.AF_INET6
        super().__init__((engine.options.host, engine.options.port), Handler)

    def server_bind(self) -> None:
        """Without HTTPServer's look-up of the machine's own name, which can hang where there is no DNS."""
        socketserver.TCPServer.server_bind(self)


# ---- Ranks -------------------------------------------------------------------------------------------


def split(rendezvous: str) -> tuple[str, int]:
    host, _, port = rendezvous.rpartition(":")
    return host.strip("[]"), int(port)


def lead(engine: Engine) -> None:
    """Rank 0's meeting point. Losing a rank shows at the next request only, as with real engines."""
    host, port = split(engine.options.rendezvous)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)

    def hold(peer: socket.socket) -> None:
        name = ""
        with suppress(OSError):
            name = peer.makefile().readline(64).strip()
        if not name:
            return  # somebody only looked whether this port is open
        engine.joined.add(name)
        print(f"sim-engine: {name} joined", flush=True)
        with suppress(OSError):
            while peer.recv(64):
                pass
        engine.lost = name
        print(f"sim-engine: {name} went away", flush=True)

    def accept() -> None:
        while True:
            threading.Thread(target=hold, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def follow(options: argparse.Namespace) -> None:
    """A rank without HTTP: meets rank 0 and ends with it."""
    address = split(options.rendezvous)
    deadline = time.monotonic() + options.rendezvous_seconds
    while True:
        try:
            leader = socket.create_connection(address, timeout=5)
            break
        except OSError as refused:
            if time.monotonic() > deadline:
                die(1, f"no rank 0 at {options.rendezvous}: {refused}")
            time.sleep(0.1)
    leader.settimeout(None)
    leader.sendall(f"rank {options.rank}\n".encode())
    print(f"sim-engine: rank {options.rank} joined {options.rendezvous}", flush=True)
    try:
        while leader.recv(64):
            pass
    except OSError:
        pass
    die(1, "rank 0 went away")


def serve(options: argparse.Namespace) -> None:
    engine = Engine(options)
    if not options.ignore_sigterm:
        signal.signal(signal.SIGTERM, engine.on_signal)
        signal.signal(signal.SIGINT, engine.on_signal)
    if options.ranks > 1:
        lead(engine)
    if options.bind_late:
        engine.load()
    server = Server(engine)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    print(f"sim-engine: listening on {options.host} port {server.server_address[1]}", flush=True)
    if not options.bind_late:
        engine.load()
    print(f"sim-engine: serving {options.served_name}", flush=True)
    engine.stop.wait()
    print("sim-engine: stopping", flush=True)
    server.shutdown()
    server.socket.close()
    engine.drain()
    print("sim-engine: stopped", flush=True)
    os._exit(0)  # connections kept alive, and a thread that logs for ever, must not hold it up


def main(argv: list[str] | None = None) -> None:
    options = parse(sys.argv[1:] if argv is None else argv)
    if options.rename is not None or options.wipe_environment:
        disguise(options.rename, wipe=options.wipe_environment)
    leave_children(options.leave_children, options.child_style, options.child_seconds)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.ignore_sigterm else lambda *_: os._exit(0))
    if options.exit_after is not None:
        timer = threading.Timer(options.exit_after, die, (options.exit_code, "told to by --exit-after"))
        timer.daemon = True
        timer.start()
    if options.log_forever:
        threading.Thread(target=log_forever, args=(options.log_forever,), daemon=True).start()
    try:
        follow(options) if options.rank else serve(options)
    except OSError as refused:
        die(1, f"can't open {options.host} port {options.port} or {options.rendezvous}: {refused}")


if __name__ == "__main__":
    main()
