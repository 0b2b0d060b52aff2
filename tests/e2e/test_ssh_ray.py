"""A replica over two machines whose ranks meet by Ray: the real Ray, from the package index, with a stand-in for vLLM."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.gpus import add_gpus
from tests.e2e import vllm_standin
from tests.e2e.sshroad import SshRoad, processes
from tests.engines import wheels
from tests.rig.host import Host
from tests.rig.options import Options
from tests.rig.rig import Rig, require_rig
from tests.wire.headers import safetensors

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.long(
        "installs Ray on two machines; not proved: the ranks of a replica meet by a Ray of their own"
    ),
]
WHEELS = "/srv/wheels"
WEIGHTS = "/srv/weights"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "hidden_size": 8,
    "vocab_size": 64,
    "max_position_embeddings": 128,
}
"""Enough to tell what it takes, which plans refuse not to know."""


@pytest.fixture
def road(tmp_path: Path) -> Iterator[SshRoad]:
    require_rig("that a replica's ranks meet by Ray over SSH")
    share = tmp_path / "wheels"
    shutil.copytree(wheels.ray_wheels(), share)
    vllm_standin.packed(share)
    options = Options(shares=((share, WHEELS), (weights(tmp_path / "weights"), WEIGHTS)))
    with Rig(tmp_path, hosts=[options, options]) as rig:
        for host in rig.hosts:
            add_gpus(host, 1)
        made = SshRoad(rig, tmp_path / "road")
        made.write("Fleet", "lab", {"pip": {"wheelDir": WHEELS}})
        made.write_profile(
            engine={"name": "vllm", "version": vllm_standin.VERSION},
            gpus={"perNode": 1},
            nodes=2,
            parallel={"tensor": 2},
            launch="ray",
            timeouts={"stop": "60s"},
            restart={"backoff": "1s", "maxBackoff": "2s", "giveUpAfter": 6},
        )
        yield made
        made.close()


def weights(folder: Path) -> Path:
    """A model's directory as far as plans look at it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(safetensors({"a": ("BF16", 100)}))
    return folder


def of_ray(host: Host) -> dict[int, tuple[str, ...]]:
    return {
        pid: words
        for pid, words in processes(host).items()
        if any("/ray/" in word or word.endswith("/bin/ray") for word in words[:2])
    }


def links(host: Host) -> str:
    return host.exec("/bin/sh", "-c", "ls -d /tmp/llmgw-* 2>/dev/null; true").out


def test_ranks_meet_by_a_ray_of_their_own_which_ends_with_them(road: SshRoad) -> None:
    hosts = road.rig.hosts
    road.write_model("chat", replicas=1, source={"path": WEIGHTS})
    road.commit("Serve chat on two machines, by Ray")
    road.llmgw("apply", "--yes", within=600)
    (endpoint,) = road.endpoints()
    told: dict[str, Any] = json.loads(road.ask(endpoint))
    assert {rank["VLLM_HOST_IP"] for rank in told["ranks"]} == {host.address for host in hosts}
    assert len({rank["HOME"] for rank in told["ranks"]}) == 2, "each rank has its own shard's home"

    for host in hosts:
        assert of_ray(host)
        assert not any(endpoint["key"] in word for words in processes(host).values() for word in words)
        assert len(links(host).split()) == 1
        # Without the replica's key nobody may use what would run anybody's code.
        leader = endpoint["address"]
        refused = host.exec(
            *("/bin/sh", "-c", 'timeout 60 /var/lib/llmgw-agent/engines/vllm-*/bin/python -c "$0"'),
            f"import ray; ray.init(address='{leader}:18001')",
        )
        assert refused.code != 0, refused.out

    other = next(host for host in hosts if host.address != endpoint["address"])
    raylet = next(pid for pid, words in of_ray(other).items() if words[0].endswith("/raylet"))
    os.kill(raylet, signal.SIGKILL)
    road.llmgw("apply", "--yes", within=300)
    (again,) = road.endpoints()
    assert again["replica"] != endpoint["replica"], "a replica that has lost a rank is gone as a whole"
    assert '"chat"' in road.ask(again)

    road.remove_models()
    road.commit("Serve nothing")
    road.llmgw("apply", "--yes", "--allow-prune", within=300)
    for host in hosts:
        assert of_ray(host) == {}
        assert links(host) == ""
