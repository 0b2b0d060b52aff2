"""In vLLM's place where its launch is tested: takes its command line, meets the other ranks by the replica's Ray as vLLM does,
and tells in its list of models where each rank has run. Packed into a wheel called vllm; runs on hosts, imported by nobody."""

import argparse
import base64
import hashlib
import importlib
import json
import os
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NAME, VERSION = "vllm", "0.33.0"


def packed(folder: Path) -> Path:
    """A wheel with this program as its ``vllm``."""
    info = f"{NAME}-{VERSION}.dist-info"
    files = {
        f"{NAME}_standin.py": Path(__file__).read_text(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\nvllm = {NAME}_standin:main\n",
    }
    record = [f"{name},sha256={_digest(text)},{len(text.encode())}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    made = folder / f"{NAME}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return made


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


# ---- on hosts --------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("weights")
    for flag in ("--served-model-name", "--host", "--distributed-executor-backend"):
        parser.add_argument(flag, required=True)
    for flag in ("--port", "--tensor-parallel-size", "--shutdown-timeout"):
        parser.add_argument(flag, type=int, required=True)
    parser.add_argument("--gpu-memory-utilization", type=float, required=True)
    told = parser.parse_args()
    assert told.distributed_executor_backend == "ray"
    told.ranks = ranks(told.tensor_parallel_size)
    server = ThreadingHTTPServer((told.host, told.port), Answers)
    server.told = told  # type: ignore[attr-defined] # what its answers need
    server.serve_forever()


def ranks(count: int) -> list[dict[str, str]]:
    """One task on a GPU each, as vLLM's workers are."""
    ray: Any = importlib.import_module("ray")  # only hosts have it
    util: Any = importlib.import_module("ray.util")
    strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
    group = util.placement_group([{"GPU": 1}] * count, strategy="PACK")
    ray.get(group.ready(), timeout=240)

    def where() -> dict[str, str]:
        return {name: os.environ.get(name, "") for name in ("VLLM_HOST_IP", "CUDA_VISIBLE_DEVICES", "HOME")}

    def rank(place: int) -> Any:
        """Ends soon: without a place of its own the next one might take the same GPU."""
        strategy = strategies.PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=place
        )
        return ray.remote(num_cpus=0, num_gpus=1, scheduling_strategy=strategy)(where).remote()

    found: list[dict[str, str]] = ray.get([rank(place) for place in range(count)], timeout=120)
    return found


class Answers(BaseHTTPRequestHandler):
    """As vLLM: only /v1 asks for the key."""

    def do_GET(self) -> None:
        told: Any = self.server.told  # type: ignore[attr-defined] # set by main
        if self.path == "/health":
            self._send(200, "")
        elif self.path == "/metrics":
            self._send(200, "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n")
        elif self._authorized():
            self._send(200, json.dumps({"data": [{"id": told.served_model_name}], "ranks": told.ranks}))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._authorized():
            self._send(200, json.dumps({"choices": [{"text": "x"}]}))

    def _authorized(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {os.environ['VLLM_API_KEY']}":
            return True
        self._send(401, '{"error":"Unauthorized"}')
        return False

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


if __name__ == "__main__":
    main()
