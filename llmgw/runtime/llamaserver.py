"""llama-server out of the wheel ``xllamacpp``: llama.cpp's own HTTP server, with its own flags.

Standard library and that wheel only, Python 3.10, one file: it is laid onto nodes under the name ``llama-server`` in
the engine's own environment. The key comes in LLAMA_API_KEY alone. A flag that is not known is refused: ignoring it
would start something else than was asked for. What llama.cpp logs goes where it goes, to stderr.

SIGTERM while loading ends the process at once, by the signal: the wheel holds Python still until it has loaded.
SIGTERM later stops in order (exit 0), cutting running requests; another one ends it at once.
"""

import argparse
import difflib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

MAGIC = b"GGUF"
AUTO, ALL = -1, -2  # layers on GPUs, in llama.cpp's own numbers
POOLINGS = ("none", "mean", "cls", "last", "rank")
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

# Flags that are one number or text of the same kind in CommonParams: names, attribute, type, help.
PLAIN: tuple[tuple[tuple[str, ...], str, Callable[[str], Any], str], ...] = (
    (("-c", "--ctx-size"), "n_ctx", int, "tokens of context for all slots; 0: the model's own"),
    (("-np", "--parallel"), "n_parallel", int, "slots, which share the context"),
    (("-b", "--batch-size"), "n_batch", int, "logical batch"),
    (("-ub", "--ubatch-size"), "n_ubatch", int, "physical batch"),
    (("-n", "--predict", "--n-predict"), "n_predict", int, "default limit of new tokens"),
    (("-t", "--threads"), "cpuparams.n_threads", int, "CPU threads"),
    (("-tb", "--threads-batch"), "cpuparams_batch.n_threads", int, "CPU threads for prompts"),
    (("--threads-http",), "n_threads_http", int, "threads that answer HTTP"),
    (("-to", "--timeout"), "timeout_read", int, "seconds a client may be silent"),
    (("-mg", "--main-gpu"), "main_gpu", int, "the GPU for what isn't split"),
    (("--cache-ram",), "cache_ram_mib", int, "MiB of prompt cache in host memory"),
    (("--cache-reuse",), "n_cache_reuse", int, "smallest piece reused from the cache"),
    (("--sleep-idle-seconds",), "sleep_idle_seconds", int, "unload after so long"),
    (("--slot-save-path",), "slot_save_path", str, "where slots can be saved"),
    (("--chat-template",), "chat_template", str, "a template in place of the model's"),
    (("--rope-freq-base",), "rope_freq_base", float, ""),
    (("--rope-freq-scale",), "rope_freq_scale", float, ""),
    (("-lv", "--verbosity", "--log-verbosity"), "verbosity", int, "0 to 5; 3: info"),
    (("-s", "--seed"), "sampling.seed", int, "default of requests"),
    (("--temp", "--temperature"), "sampling.temp", float, "default of requests"),
    (("--top-k",), "sampling.top_k", int, "default of requests"),
    (("--top-p",), "sampling.top_p", float, "default of requests"),
    (("--min-p",), "sampling.min_p", float, "default of requests"),
    (("--repeat-penalty",), "sampling.penalty_repeat", float, "default of requests"),
)
# Flags without a value: names, attribute, what it becomes.
SWITCHES: tuple[tuple[tuple[str, ...], str, bool], ...] = (
    (("--metrics",), "endpoint_metrics", True),
    (("--slots",), "endpoint_slots", True),
    (("--no-slots",), "endpoint_slots", False),
    (("--props",), "endpoint_props", True),
    (("--webui", "--ui"), "ui", True),
    (("--no-webui", "--no-ui"), "ui", False),
    (("--embedding", "--embeddings"), "embedding", True),
    (("--jinja",), "use_jinja", True),
    (("--no-jinja",), "use_jinja", False),
    (("-kvu", "--kv-unified"), "kv_unified", True),
    (("--no-cont-batching",), "cont_batching", False),
    (("--no-cache-prompt",), "cache_prompt", False),
    (("--no-warmup",), "warmup", False),
    (("--context-shift",), "ctx_shift", True),
    (("--swa-full",), "swa_full", True),
    (("--no-kv-offload", "-nkvo"), "no_kv_offload", True),
    (("--check-tensors",), "check_tensors", True),
)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, and the nearest flag there is: a page of usage would bury it in the log."""
        hint = ""
        flag = message.rpartition("unrecognized arguments: ")[2].split()[0]
        near = difflib.get_close_matches(flag, self._option_string_actions, 1)
        if "unrecognized" in message and near:
            hint = f" (did you mean {near[0]}?)"
        self.exit(2, f"llama-server: error: {message}{hint}; --help lists what this launcher knows\n")


def no_key_here(_: str) -> NoReturn:
    raise argparse.ArgumentTypeError("put the key into LLAMA_API_KEY: here every user of the machine sees it")


def layers(text: str) -> int:
    return {"auto": AUTO, "all": ALL}.get(text) or int(text)


def scaled(text: str) -> tuple[str, float]:
    path, _, scale = text.rpartition(":")
    return path, float(scale)


def listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def split(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",") if part]

    split.__name__ = f"comma list of {getattr(kind, '__name__', 'values')}"
    return split


def parser() -> Parser:
    made = Parser(prog="llama-server", description=__doc__, allow_abbrev=False)
    add = made.add_argument
    add("-m", "--model", metavar="FILE", help="the GGUF file")
    add("-a", "--alias", type=listed(str), default=[], help="names in /v1/models, separated by commas")
    add("--host", type=listed(str), default=["127.0.0.1"], help="addresses to listen on")
    add("--port", type=int, default=8080)
    add("-ngl", "--gpu-layers", "--n-gpu-layers", type=layers, metavar="N|auto|all", default=AUTO)
    add("-fa", "--flash-attn", choices=("on", "off", "auto"), default="auto")
    add("-sm", "--split-mode", choices=("none", "layer", "row", "tensor"), default="layer")
    add("-ts", "--tensor-split", type=listed(float), default=[], help="share of each GPU")
    add("-ctk", "--cache-type-k", choices=CACHE_TYPES, default="f16")
    add("-ctv", "--cache-type-v", choices=CACHE_TYPES, default="f16")
    add("--pooling", choices=POOLINGS, help="how embeddings are made of tokens")
    add("--rerank", "--reranking", action="store_true", help="serve /v1/rerank")
    add("--lora", type=listed(str), default=[], help="adapters for every request, separated by commas")
    add("--lora-scaled", type=listed(scaled), default=[], metavar="FILE:SCALE,…")
    add("--mmproj", metavar="FILE", help="projector of a multimodal model")
    add("--mlock", action="store_true", help="keep the weights in memory")
    add("--no-mmap", action="store_true", help="read the weights instead of mapping them")
    add("--api-key", "--api-key-file", type=no_key_here, help=argparse.SUPPRESS)
    add("--list-devices", action="store_true", help="what this build computes on, and exit")
    add("--version", action="store_true")
    for names, attribute, kind, text in PLAIN:
        add(*names, dest=attribute, type=kind, default=None, help=text or None)
    for names, attribute, value in SWITCHES:
        add(*names, dest=attribute, action="store_const", const=value, default=None)
    return made


# ---- From flags to llama.cpp's parameters ------------------------------------------------------------


def fail(why: str) -> NoReturn:
    print(f"llama-server: error: {why}", file=sys.stderr, flush=True)
    sys.exit(1)


def put(params: Any, attribute: str, value: Any) -> None:
    """Sets ``a`` or ``a.b``. A wheel too old or too new to know it is told by name."""
    owner, _, name = attribute.rpartition(".")
    holder = getattr(params, owner) if owner else params
    if not hasattr(holder, name):
        fail(
            f"this version of xllamacpp has no {attribute}: leave the flag out, or change the engine's version"
        )
    setattr(holder, name, value)


def parameters(x: Any, options: argparse.Namespace, key: str) -> Any:
    params = x.CommonParams()
    params.model.path = options.model
    params.hostnames, params.port = options.host, options.port
    params.n_gpu_layers = options.gpu_layers
    if options.alias:
        params.model_alias = set(options.alias)
    if key:
        params.api_keys = key.split(",")
    for names in (PLAIN, SWITCHES):
        for flag in names:
            value = getattr(options, flag[1])
            if value is not None:
                put(params, flag[1], value)
    choices(x, params, options)
    adapters = [(path, 1.0) for path in options.lora] + options.lora_scaled
    params.lora_adapters = [x.CommonAdapterLoraInfo(path, scale) for path, scale in adapters]
    return params


def choices(x: Any, params: Any, options: argparse.Namespace) -> None:
    """Flags whose values are words."""
    attention = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[options.flash_attn]
    params.flash_attn_type = x.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{attention}"]
    params.split_mode = x.llama_split_mode[f"LLAMA_SPLIT_MODE_{options.split_mode.upper()}"]
    params.cache_type_k = x.ggml_type[f"GGML_TYPE_{options.cache_type_k.upper()}"]
    params.cache_type_v = x.ggml_type[f"GGML_TYPE_{options.cache_type_v.upper()}"]
    if options.tensor_split:
        room = len(params.tensor_split)
        params.tensor_split = (options.tensor_split + [0.0] * room)[:room]
    pooling = "rank" if options.rerank else options.pooling
    if pooling is not None:
        params.pooling_type = x.llama_pooling_type[f"LLAMA_POOLING_TYPE_{pooling.upper()}"]
    if options.rerank:
        params.embedding = True
    if options.mmproj:
        params.mmproj.path = options.mmproj
    mode = {(True, False): "MMAP_MLOCK", (True, True): "MLOCK", (False, True): "NONE"}
    loading = mode.get((options.mlock, options.no_mmap))
    if loading is not None:
        put(params, "load_mode", x.llama_load_mode[f"LLAMA_LOAD_MODE_{loading}"])


# ---- What can be told before llama.cpp is asked ------------------------------------------------------


def check_file(path: str, what: str) -> None:
    try:
        with open(path, "rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as refused:
        fail(f"can't load {what} {path}: {refused.strerror}")
    if magic != MAGIC:
        fail(f"can't load {what} {path}: it is no GGUF file (it begins with {magic!r})")


def check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family):
            pass
    except OSError as refused:
        fail(
            f"can't listen on {host} port {port}: {os.strerror(refused.errno) if refused.errno else refused}"
        )


def check_devices(x: Any, gpu_layers: int) -> None:
    """llama.cpp offloads to a GPU that isn't there without a word, and computes on the CPU instead."""
    if gpu_layers > 0 or gpu_layers == ALL:
        found = [device for device in x.get_device_info() if device["type"].name.endswith("GPU")]
        if not found:
            fail(
                "-ngl asks for a GPU, and this build of llama.cpp finds none: xllamacpp's default wheel computes on "
                "the CPU only. Install its CUDA build (the fleet's pip.indexUrl or pip.wheelDir), check that the "
                "driver works (nvidia-smi), or run on the CPU with -ngl 0"
            )


def list_devices(x: Any) -> None:
    for device in x.get_device_info():
        kind = device["type"].name.rpartition("_")[2]
        mib = device["memory_total"] // 2**20
        print(f"{device['name']}: {device['description']} ({kind}, {mib} MiB)", flush=True)


def serve(x: Any, options: argparse.Namespace, key: str) -> None:
    params = parameters(x, options, key)
    try:
        server = x.Server(params)
    except (RuntimeError, ValueError) as refused:
        fail(f"llama.cpp could not serve {options.model} ({refused}); its own lines above say why")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    print(f"llama-server: serving on {server.listening_address}", flush=True)
    stop.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    print("llama-server: stopping", flush=True)
    del server
    sys.stdout.flush()
    os._exit(0)  # nothing is left to do; the interpreter's own end could only hang


def main(argv: Sequence[str] | None = None) -> None:
    options = parser().parse_args(argv)
    key = os.environ.get("LLAMA_API_KEY", "")  # noqa: TID251 - a program by itself; a key has no place in argv
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    listing = options.version or options.list_devices
    if not listing:
        if options.model is None:
            parser().error("--model is missing")
        check_file(options.model, "the model")
        for host in options.host:
            check_port(host, options.port)
    try:
        import xllamacpp as x  # noqa: PLC0415 - a wrong flag is told without loading 100 MB, or where it is missing
    except ImportError as missing:
        fail(f"xllamacpp can't be imported by {sys.executable} ({missing}): install the engine again")
    if options.version:
        print(f"xllamacpp {x.__version__}")
    elif options.list_devices:
        list_devices(x)
    else:
        check_devices(x, options.gpu_layers)
        serve(x, options, key)


if __name__ == "__main__":
    main()
