"""What a machine that was looked at becomes: name, address, expectations, file, and every refusal."""

from pathlib import Path

import pytest

from llmgw.controller.nodes import adding, joining
from llmgw.controller.nodes.adding import Door, door
from llmgw.controller.nodes.joining import Words, draft
from llmgw.controller.nodes.ssh.hostkeys import HostKey, parse
from llmgw.controller.nodes.ssh.login import Surroundings
from llmgw.model.facts import Facts, Gpu, HcaPort, Interface
from llmgw.model.manifest import Expect, FromFile, Manifest, Manifests, Metadata, NodeSpec, Ssh
from llmgw.model.problems import StalledError, Where

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFqKzSDEpTiYmhtPcACf4pM2zqRk32aRIwTbUzZSMBcf"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICGjVTpQSVbm/g6KPRMXdlrt69jXGenBBOFiGaa9B5gn"
ETH = Interface(name="eth0", addresses=("10.0.0.11", "fe80::1"))


def fleet(**nodes: NodeSpec) -> Manifests:
    made = tuple(
        Manifest(
            kind="Node",
            metadata=Metadata(name=name),
            spec=spec,
            where=Where(file=f"manifests/nodes/{name}.yaml", line=3),
        )
        for name, spec in nodes.items()
    )
    return Manifests(commit=None, fleet=None, nodes=made, profiles=(), models=())


def ssh_node(host: str, **spec: object) -> NodeSpec:
    return NodeSpec(ssh=Ssh(host=host, host_keys=(KEY,)), **spec)  # type: ignore[arg-type] # a test's fields


def gpu(index: int, gpu_class: str = "h100-80g") -> Gpu:
    return Gpu(uuid=f"GPU-{index}", index=index, name="H100", gpu_class=gpu_class, memory_total=80 << 30)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("gpu01", Door(host="gpu01")),
        ("ops@gpu01:2222", Door(host="gpu01", user="ops", port=2222)),
        ("10.0.0.11", Door(host="10.0.0.11")),
        ("fd00::11", Door(host="fd00::11")),
        ("ops@[fd00::11]:22", Door(host="fd00::11", user="ops", port=22)),
    ],
)
def test_a_host_is_taken_apart_as_ssh_has_it(written: str, meant: Door) -> None:
    assert door(written) == meant


@pytest.mark.parametrize("written", ["", "a b", "host:0", "host:70000", "@host", "ssh://host", "a@b@c"])
def test_what_is_no_host_is_refused(written: str) -> None:
    with pytest.raises(StalledError, match=r"user@\]host"):
        door(written)


def test_a_node_is_called_as_its_host_is() -> None:
    assert adding.name_of("GPU01.lab.example.org", Facts(hostname="x")) == "gpu01"
    assert adding.name_of("10.0.0.11", Facts(hostname="Big_Box.lab")) == "big-box"


@pytest.mark.parametrize("hostname", ["localhost", "", "-x-"])
def test_a_machine_without_a_name_needs_one(hostname: str) -> None:
    with pytest.raises(StalledError, match="--name"):
        adding.name_of("10.0.0.11", Facts(hostname=hostname))


# ---- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "host", "address", "said"),
    [
        ("gpu01", "10.0.0.99", "10.0.0.99", "--name"),
        ("gpu02", "10.0.0.11", "10.0.0.11", "one machine is one node"),
        ("gpu02", "10.0.0.99", "10.1.0.11", "--address"),
    ],
)
def test_a_name_a_way_or_an_address_that_is_taken_names_the_manifest(
    name: str, host: str, address: str, said: str
) -> None:
    there = fleet(gpu01=ssh_node("10.0.0.11", address="10.1.0.11"))
    with pytest.raises(StalledError, match=said) as refused:
        adding.refuse_taken(there, name=name, host=host, port=22, address=address)
    assert "manifests/nodes/gpu01.yaml:3" in str(refused.value)
    adding.refuse_taken(there, name="gpu02", host="10.0.0.12", port=22, address="10.0.0.12")
    adding.refuse_taken(there, name="gpu02", host="10.0.0.11", port=2222, address="10.0.0.12")


def test_a_host_key_of_another_node_is_the_same_machine_or_a_copied_disk() -> None:
    there = fleet(gpu01=ssh_node("10.0.0.11"))
    with pytest.raises(StalledError, match="node gpu01") as refused:
        adding.refuse_known_keys(there, [parse(OTHER), parse(KEY)], host="10.0.0.12")
    assert parse(KEY).fingerprint in str(refused.value)
    adding.refuse_known_keys(there, [parse(OTHER)], host="10.0.0.12")


def test_only_the_keys_that_somebody_vouches_for_are_pinned() -> None:
    keys: tuple[HostKey, ...] = (parse(KEY), parse(OTHER))
    assert adding.chosen(keys, [keys[1].fingerprint], host="h") == (keys[1],)
    with pytest.raises(StalledError, match="somebody else answers"):
        adding.chosen(keys[:1], [keys[1].fingerprint], host="h")
    with pytest.raises(StalledError, match="no fingerprint"):
        adding.chosen(keys, ["aa:bb:cc"], host="h")


# ---- what its manifest says ----------------------------------------------------------------------------------


def test_the_address_is_the_one_that_was_given_if_the_machine_has_it() -> None:
    assert adding.address_of(Ssh(host="10.0.0.11"), Facts(interfaces=(ETH,)))[0] is None


def test_for_a_name_the_address_is_one_that_others_can_reach() -> None:
    interfaces = (
        Interface(name="lo", addresses=("127.0.0.1", "::1")),
        Interface(name="docker0", addresses=("172.17.0.1",)),
        Interface(name="eth1", addresses=("10.9.0.1",), up=False),
        ETH,
        Interface(name="ib0", addresses=("10.1.0.11",)),
    )
    address, why = adding.address_of(Ssh(host="gpu01.example.org"), Facts(interfaces=interfaces))
    assert address == "10.0.0.11"
    assert "eth0" in why
    assert "10.1.0.11" in why


def test_a_name_without_any_address_needs_one() -> None:
    with pytest.raises(StalledError, match="--address"):
        adding.address_of(
            Ssh(host="gpu01"), Facts(interfaces=(Interface(name="lo", addresses=("127.0.0.1",)),))
        )


def test_whole_gpus_are_expected_and_their_class_only_if_it_is_one() -> None:
    part = Gpu(uuid="MIG-1", index=9, name="x", gpu_class="h100-10g", memory_total=10 << 30, parent="GPU-0")
    assert adding.expect_of(Facts(gpus=(gpu(0), gpu(1), part))) == Expect(gpus=2, gpu_class="h100-80g")
    assert adding.expect_of(Facts(gpus=(gpu(0), gpu(1, "l40s-45g")))) == Expect(gpus=2)
    assert adding.expect_of(Facts()) == Expect()


def test_a_person_is_told_what_the_machine_is() -> None:
    port = HcaPort(device="mlx5_0", port=1, link_layer="InfiniBand", state="ACTIVE", rate=400)
    facts = Facts(hostname="n", gpus=(gpu(0), gpu(1)), hca_ports=(port,), problems=("nvidia-smi: slow",))
    told = "\n".join(f"{key}: {value}" for key, value in adding.described(facts))
    assert "2 x H100 (h100-80g, 80.0 GiB each)" in told
    assert "mlx5_0 port 1: InfiniBand, ACTIVE, 400 Gb/s" in told
    assert "problem: nvidia-smi: slow" in told
    assert "none found" in "".join(value for _, value in adding.described(Facts()))


def test_a_new_file_lies_beside_the_others() -> None:
    assert adding.file_of(fleet(), "gpu01", folder="manifests") == "manifests/nodes/gpu01.yaml"
    assert adding.file_of(fleet(), "gpu01", folder=".") == "nodes/gpu01.yaml"
    at_top = Manifest(
        kind="Node", metadata=Metadata(name="a"), spec=NodeSpec(), where=Where(file="manifests/a.yaml")
    )
    there = Manifests(commit=None, fleet=None, nodes=(at_top,), profiles=(), models=())
    assert adding.file_of(there, "b", folder="manifests") == "manifests/b.yaml"
    assert adding.file_of(fleet(a=NodeSpec()), "b", folder="manifests") == "manifests/nodes/b.yaml"


# ---- how it is logged in to ----------------------------------------------------------------------------------


def around(home: Path, **given: object) -> Surroundings:
    return Surroundings(home=home, **{"environ": {}, **given})  # type: ignore[arg-type] # a test's fields


def test_without_a_word_about_keys_those_of_this_machine_are_written(tmp_path: Path) -> None:
    at, cwd = Door(host="h", user="ops", port=2222), tmp_path
    nothing = draft(at, Words(), around=around(tmp_path), cwd=cwd).ssh
    assert nothing == Ssh(host="h", user="ops", port=2222)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ecdsa").write_text("")
    usual = draft(at, Words(), around=around(tmp_path), cwd=cwd).ssh
    assert usual is not None
    assert usual.identity == FromFile(from_file="~/.ssh/id_ecdsa")
    agent = draft(at, Words(), around=around(tmp_path, environ={"SSH_AUTH_SOCK": "/s"}), cwd=cwd).ssh
    assert agent is not None
    assert agent.agent
    assert agent.identity is None
    settings = draft(at, Words(), around=around(tmp_path, identity=Path("/k")), cwd=cwd).ssh
    assert settings == Ssh(host="h", user="ops", port=2222)


def test_a_key_file_is_written_as_manifests_have_it() -> None:
    home, cwd = Path("/home/ann"), Path("/home/ann/fleet")
    assert joining.written_path("../.ssh/k", home=home, cwd=cwd) == "~/.ssh/k"
    assert joining.written_path("~/.ssh/k", home=home, cwd=cwd) == "~/.ssh/k"
    assert joining.written_path("/srv/k", home=home, cwd=cwd) == "/srv/k"
    assert joining.written_path("k", home=Path("/"), cwd=Path("/srv")) == "/srv/k"
