"""From manifests to Desired: references, defaults, digests, names, and what is not supported yet."""

import time
from typing import Any

import pytest

from llmgw.core.adapter import NOTHING_KNOWN, EngineAdapter, Known, Need, NodeContext, Placed
from llmgw.core.resolving.resolve import RENAMED_FROM, resolve
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.facts import Facts, Gpu
from llmgw.model.launch import FetchSpec, HelpSpec, InstallSpec, LaunchSpec, LoraOrder
from llmgw.model.manifest import (
    KINDS,
    Adapter,
    AgentSettings,
    Custom,
    Dirs,
    Duration,
    Engine,
    FleetSpec,
    Gpus,
    Local,
    Manifest,
    Manifests,
    Metadata,
    ModelSpec,
    NodeSpec,
    Pip,
    PlacementRules,
    PortRange,
    ProfileSpec,
    Restart,
    Rollout,
    Secret,
    Size,
    Source,
    Spec,
    Ssh,
    SyncWindow,
    Timeouts,
)
from llmgw.model.problems import InvalidError, Problem, Where
from llmgw.model.struct import Struct, fields, replace
from llmgw.wire.codec import dumps

WORKS_AT = Local(work_dir="/w")


class Pretended(Struct):
    """An engine that has an opinion on what it is told to have one on."""

    name: str
    complaints: tuple[Problem, ...] = ()
    lora_ranks: tuple[int, ...] = ()

    def lora(self, model: DesiredModel) -> LoraOrder | None:
        return None

    def lora_fetches(self, model: DesiredModel, pip: Pip) -> tuple[FetchSpec, ...]:
        return ()

    def warnings(self, model: DesiredModel) -> tuple[Problem, ...]:
        return ()

    def validate(self, model: DesiredModel) -> tuple[Problem, ...]:
        return self.complaints

    def weights(self, model: DesiredModel) -> str | None:
        return None

    def need(self, model: DesiredModel, known: Known = NOTHING_KNOWN) -> Need:
        return Need()

    def install(self, model: DesiredModel, node: NodeContext, pip: Pip) -> InstallSpec | None:
        return None

    def help(self, model: DesiredModel) -> HelpSpec | None:
        return None

    def fetch(self, model: DesiredModel, pip: Pip) -> FetchSpec | None:
        return None

    def launch(self, placed: Placed) -> tuple[LaunchSpec, ...]:
        return ()


def adapters(*complaints: Problem) -> dict[str, EngineAdapter]:
    return {"sim": Pretended(name="sim", complaints=complaints)}


def document(name: str, spec: Spec, *marks: str, **annotations: str) -> Manifest:
    """A manifest in a file of its own; each of ``marks`` stands on its own line from 10 on."""
    kind = next(kind for kind, of in KINDS.items() if isinstance(spec, of))
    return Manifest(
        kind=kind,
        metadata=Metadata(name=name, annotations=annotations),
        spec=spec,
        where=Where(file=f"{kind.lower()}-{name}.yaml", line=1, column=1),
        marks={mark: (10 + index, 3) for index, mark in enumerate(marks)},
    )


def local(name: str = "n", *marks: str, **changes: object) -> Manifest:
    spec = NodeSpec(transport="local", local=Local(work_dir=f"/w/{name}"))
    return document(name, replace(spec, **changes), *marks)  # type: ignore[arg-type] # fields by name


def model(name: str = "m", *marks: str, **changes: object) -> Manifest:
    spec = ModelSpec(source=Source(path="/x"), profile="p")
    return document(name, replace(spec, **changes), *marks)  # type: ignore[arg-type] # fields by name


def profile(name: str = "p", *marks: str, **changes: object) -> Manifest:
    return document(name, replace(ProfileSpec(engine=Engine(name="sim")), **changes), *marks)  # type: ignore[arg-type] # fields by name


def manifests(*documents: Manifest, texts: dict[str, str] | None = None) -> Manifests:
    """With the node n and the profile p unless there are others."""
    of = {kind: tuple(found for found in documents if found.kind == kind) for kind in KINDS}
    return Manifests(
        commit=None,
        fleet=of["Fleet"][0] if of["Fleet"] else None,
        nodes=of["Node"] or (local(),),
        profiles=of["Profile"] or (profile(),),
        models=of["Model"],
        texts=texts or {},
    )


def desired(*documents: Manifest, key_id: str = "k", texts: dict[str, str] | None = None) -> Desired:
    return resolve(manifests(*documents, texts=texts), key_id=key_id, adapters=adapters())


def problems(
    *documents: Manifest, complaints: tuple[Problem, ...] = (), texts: dict[str, str] | None = None
) -> list[str]:
    with pytest.raises(InvalidError) as invalid:
        resolve(manifests(*documents, texts=texts), key_id="k", adapters=adapters(*complaints))
    return [str(problem) for problem in invalid.value.problems]


# ---- defaults and references -------------------------------------------------------------------------


def test_everything_has_a_default_and_references_are_followed() -> None:
    found = desired(model())
    chosen = found.models["m"]
    assert (found.fleet_name, found.fleet, found.commit) == ("default", FleetSpec(), None)
    assert (chosen.served_name, chosen.profile_name) == ("m", "p")
    assert chosen.profile.engine.name == "sim"
    assert found.nodes["n"].address == "127.0.0.1"


def test_the_fleets_own_settings_are_taken() -> None:
    found = desired(document("lab", FleetSpec(pip=Pip(wheel_dir="/w"))))
    assert (found.fleet_name, found.fleet.pip.wheel_dir) == ("lab", "/w")


@pytest.mark.parametrize(
    ("changes", "mark", "told"),
    [
        (
            {"profile": "pp"},
            "spec.profile",
            "spec.profile names pp, and there is no such Profile: did you mean p?",
        ),
        ({"profile": "zzz"}, "spec.profile", "there is no such Profile: there are p"),
        (
            {"placement": PlacementRules(nodes=("n", "nn"))},
            "spec.placement.nodes[1]",
            "spec.placement.nodes[1] names nn, and there is no such Node: did you mean n?",
        ),
        (
            {"placement": PlacementRules(pool="defualt")},
            "spec.placement.pool",
            "spec.placement.pool names defualt, and there is no such pool of nodes: did you mean default?",
        ),
    ],
)
def test_a_reference_to_what_does_not_exist_is_refused_at_its_line(
    changes: dict[str, object], mark: str, told: str
) -> None:
    (problem,) = problems(model("m", mark, **changes))
    assert problem.startswith("model-m.yaml:10:3: ")
    assert told in problem


def test_a_default_pool_without_nodes_is_left_to_placement() -> None:
    assert desired(local(pool="other"), model()).models["m"].spec.placement.pool == "default"


def test_an_unknown_name_without_any_to_choose_from_says_what_to_write() -> None:
    with pytest.raises(InvalidError, match="there is none yet: write a Profile"):
        resolve(replace(manifests(model()), profiles=()), key_id="k", adapters=adapters())


# ---- the digest --------------------------------------------------------------------------------------


def digest_of(changed_model: dict[str, object], changed_profile: dict[str, object], key_id: str = "k") -> str:
    found = desired(model("m", **changed_model), profile("p", **changed_profile), key_id=key_id)
    return found.models["m"].spec_digest


BASE = digest_of({}, {})
RUNS_OTHERWISE_MODEL: dict[str, object] = {
    "source": Source(path="/y"),
    "task": "embed",
    "served_name": "other",
    "args": ("-x",),
    "env": {"A": "b"},
    "adapters": (Adapter(name="sql", source=Source(path="/sql")),),
    "max_loaded_adapters": 2,
}
SAME_MODEL: dict[str, object] = {
    "aliases": ("a",),
    "replicas": 7,
    "placement": PlacementRules(labels={"a": "b"}),
    "priority": 3,
    "rollout": Rollout(max_surge=4),
    "protect": True,
}
RUNS_OTHERWISE_PROFILE: dict[str, object] = {
    "engine": Engine(name="sim", version="2"),
    "gpus": Gpus(per_node=2),
    "custom": Custom(command=("server",)),
    "dtype": "bfloat16",
    "quantization": "fp8",
    "max_model_len": 5,
    "gpu_memory_utilization": 0.8,
    "memory": Size(5),
    "args": ("-x",),
    "env": {"A": "b"},
    "startup_timeout": 5.0,
    "timeouts": Timeouts(stop=5.0),  # type: ignore[arg-type] # seconds
    "restart": Restart(give_up_after=2),
    "token_probe": False,
}
LATER_PROFILE = {"nodes", "parallel", "launch", "fabric"}


def test_every_field_of_model_and_profile_is_told_to_change_the_digest_or_not() -> None:
    assert {"profile", *RUNS_OTHERWISE_MODEL, *SAME_MODEL} == {field.name for field in fields(ModelSpec)}
    assert {*RUNS_OTHERWISE_PROFILE, *LATER_PROFILE} == {field.name for field in fields(ProfileSpec)}


@pytest.mark.parametrize("field", RUNS_OTHERWISE_MODEL)
def test_what_decides_how_a_shard_runs_changes_the_digest(field: str) -> None:
    assert digest_of({field: RUNS_OTHERWISE_MODEL[field]}, {}) != BASE


@pytest.mark.parametrize("field", RUNS_OTHERWISE_PROFILE)
def test_every_field_of_the_profile_changes_the_digest(field: str) -> None:
    assert digest_of({}, {field: RUNS_OTHERWISE_PROFILE[field]}) != BASE


@pytest.mark.parametrize("field", SAME_MODEL)
def test_how_often_where_and_under_which_aliases_leaves_the_digest_alone(field: str) -> None:
    assert digest_of({field: SAME_MODEL[field]}, {}) == BASE


def test_another_key_changes_the_digest() -> None:
    assert digest_of({}, {}, key_id="other") != BASE


def test_the_same_field_of_model_and_profile_gives_different_digests() -> None:
    assert digest_of({"args": ("-x",)}, {}) != digest_of({}, {"args": ("-x",)})


def test_of_a_secret_only_the_reference_is_digested() -> None:
    by_env = digest_of({"env": {"A": Secret(from_env="X")}}, {})
    assert by_env != digest_of({"env": {"A": Secret(from_env="Y")}}, {})
    assert by_env != digest_of({"env": {"A": Secret(from_file="X")}}, {})
    assert by_env == digest_of({"env": {"A": Secret(from_env="X")}}, {})


def test_a_default_that_is_written_out_is_the_same_as_one_left_out() -> None:
    assert (
        digest_of({"served_name": "m", "args": ()}, {"restart": Restart(), "gpus": Gpus(per_node=1)}) == BASE
    )


def test_the_name_of_a_profile_is_not_what_it_says() -> None:
    renamed = desired(model("m", profile="q"), profile("q")).models["m"]
    assert renamed.spec_digest == BASE


def test_the_digest_does_not_change_by_accident() -> None:
    """A changed digest replaces every replica of every fleet on upgrade: change this only on purpose."""
    assert BASE == "65efcb8c9d612c2012ed2e97e4f81b6bda4071f75da67102cb28b0bd2dac3ccd"


# ---- names -------------------------------------------------------------------------------------------


def test_two_models_with_one_name_in_requests_are_refused() -> None:
    (problem,) = problems(
        model("a", "spec.servedName", served_name="x"), model("b", "spec.servedName", served_name="x")
    )
    assert problem == (
        'model-b.yaml:10:3: the name "x" is taken by the model a at model-a.yaml:10:3: give each model names of its own '
        "(spec.servedName, spec.aliases)"
    )


def test_an_alias_may_be_nobodys_other_name() -> None:
    assert "taken by the model a" in problems(model("a"), model("b", aliases=("a",)))[0]
    assert "taken by the model a" in problems(model("a", aliases=("d",)), model("b", aliases=("d",)))[0]
    assert "taken by the same model" in problems(model("a", "spec.aliases[0]", aliases=("a",)))[0]


def test_a_rename_is_carried_and_keeps_what_runs() -> None:
    new = document(
        "new", ModelSpec(source=Source(path="/x"), profile="p", served_name="m"), **{RENAMED_FROM: "m"}
    )
    found = desired(new).models["new"]
    assert found.renamed_from == "m"
    assert found.spec_digest == BASE


def test_a_rename_that_would_change_the_name_in_requests_is_refused() -> None:
    new = document("new", ModelSpec(source=Source(path="/x"), profile="p"), **{RENAMED_FROM: "old"})
    (problem,) = problems(new)
    assert "write spec.servedName: old" in problem


def test_a_rename_from_what_is_still_there_or_taken_twice_is_refused() -> None:
    spec = ModelSpec(source=Source(path="/x"), profile="p", served_name="s")
    one = document("one", spec, **{RENAMED_FROM: "m"})
    other = document("two", replace(spec, served_name="t"), **{RENAMED_FROM: "m"})
    assert "which is still there" in problems(model(), one)[0]
    assert "so does another Model" in problems(one, other)[0]


def test_a_renamed_node_is_carried_and_refused_as_a_model_is() -> None:
    local = NodeSpec(transport="local", local=Local(work_dir="/w/new"))
    other = NodeSpec(transport="local", local=Local(work_dir="/w/other"))
    new = document("new", local, **{RENAMED_FROM: "old"})
    assert desired(new).nodes["new"].renamed_from == "old"
    assert "which is still there" in problems(new, document("old", other))[0]
    assert "so does another Node" in problems(new, document("newer", other, **{RENAMED_FROM: "old"}))[0]
    assert "which is still there" in problems(new, document("newer", other, **{RENAMED_FROM: "new"}))[0]


def test_an_annotation_of_ours_that_means_nothing_is_refused() -> None:
    spec = ModelSpec(source=Source(path="/x"), profile="p")
    (problem,) = problems(document("m", spec, **{"llmgw/renamed-form": "x"}))
    assert problem.endswith(f"did you mean {RENAMED_FROM}?")
    assert desired(document("m", spec, **{"example.org/note": "x"})).models


# ---- nodes -------------------------------------------------------------------------------------------


def test_local_nodes_may_share_an_address_when_their_ports_do_not_overlap() -> None:
    far = PortRange(from_port=19000, to_port=19099)
    assert len(desired(local("a"), local("b", ports=far)).nodes) == 2
    (problem,) = problems(
        local("a"), local("b", "spec.ports", ports=PortRange(from_port=18500, to_port=19500))
    )
    assert problem.startswith(
        "node-b.yaml:10:3: ports 18500-19500 at 127.0.0.1 overlap with the node a's 18000-18999"
    )


def test_a_range_inside_another_is_found_behind_one_in_between() -> None:
    wide, one, two = (
        PortRange(),
        PortRange(from_port=18100, to_port=18110),
        PortRange(from_port=18200, to_port=18210),
    )
    assert len(problems(local("a", ports=wide), local("b", ports=one), local("c", ports=two))) == 2


def test_two_local_nodes_in_one_directory_are_refused() -> None:
    near, far = (
        local("a", local=WORKS_AT),
        local("b", local=Local(work_dir="/w/"), ports=PortRange(from_port=1, to_port=2)),
    )
    assert "the work directory /w is also the node a's" in problems(near, far)[0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ports": PortRange(from_port=9, to_port=3)}, "spec.ports goes from 9 down to 3"),
        ({"address": "0.0.0.0"}, "engines would listen on every interface"),
        ({"address": "189"}, "189 is neither an IP address nor a name"),
        ({"address": "10.0.0.300"}, "10.0.0.300 is neither an IP address nor a name"),
        ({"env": {"A": "x\ny"}}, "spec.env.A holds the control character U+000A"),
    ],
)
def test_what_no_node_can_be_is_refused(changes: dict[str, object], told: str) -> None:
    assert told in problems(local("n", **changes))[0]


def facts(*uuids: str) -> str:
    gpus = tuple(
        Gpu(uuid=uuid, index=at, name="x", gpu_class="x-1g", memory_total=1) for at, uuid in enumerate(uuids)
    )
    return dumps(Facts(hostname="h", gpus=gpus)).decode()


def test_pretended_facts_are_read_from_beside_the_manifest() -> None:
    found = desired(local("n", local=Local(facts="./f/x.json")), texts={"f/x.json": facts("GPU-1")})
    pretended = found.nodes["n"].pretended
    assert pretended is not None
    assert [gpu.uuid for gpu in pretended.gpus] == ["GPU-1"]


def test_pretended_facts_that_are_none_are_refused_by_the_name_of_their_file() -> None:
    (problem,) = problems(local("n", local=Local(facts="x.json")), texts={"x.json": '{"hostnam": "h"}'})
    assert problem.startswith("x.json: not a valid Facts")
    assert "hostnam" in problem


def test_a_pretended_gpu_exists_once() -> None:
    one = local("a", local=Local(work_dir="/a", facts="x.json"))
    two = local("b", local=Local(work_dir="/b", facts="x.json"), ports=PortRange(from_port=1, to_port=2))
    (problem,) = problems(one, two, texts={"x.json": facts("GPU-1", "GPU-2")})
    assert "the pretended GPU GPU-1 is also the node a's" in problem


# ---- engines and what is not supported yet -----------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "file"),
    [
        ("spec.gpus.perNode: too many", "profile-p.yaml:10:3"),
        ("spec.source.path: no", "model-m.yaml:10:3"),
        ("spec.task: no", "model-m.yaml:1:1"),
        ("spec.args[0]: llmgw decides about --a itself", "profile-p.yaml:11:3"),
        ("spec.args[0]: llmgw decides about --b itself", "model-m.yaml:11:3"),
        ("spec.env.X: no", "model-m.yaml:12:3"),
        ("spec.env.Y: no", "profile-p.yaml:12:3"),
    ],
)
def test_an_engines_problem_gets_the_place_it_is_about(what: str, file: str) -> None:
    asked = model("m", "spec.source.path", "spec.args[0]", "spec.env.X", args=("--b",), env={"X": "1"})
    shape = profile("p", "spec.gpus.perNode", "spec.args[0]", "spec.env.Y", args=("--a",), env={"Y": "1"})
    (problem,) = problems(asked, shape, complaints=(Problem(what=what, instead="x"),))
    assert problem == f"{file}: {what}: x"


def test_a_profiles_problem_is_told_once_however_many_models_share_it() -> None:
    complaint = Problem(what="spec.gpus: no", instead="x")
    assert len(problems(*(model(f"m{n}") for n in range(5)), complaints=(complaint,))) == 1


def test_an_engine_without_an_adapter_is_not_supported_yet() -> None:
    (problem,) = problems(profile("p", "spec.engine.name", engine=Engine(name="vllm", version="1")))
    assert problem == "profile-p.yaml:10:3: the engine vllm is not supported yet: write one of sim"


def over_ssh(**changes: object) -> Manifest:
    return local(**({"transport": "ssh", "local": None, "ssh": Ssh(host="box")} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (local("n", ssh=Ssh(host="box")), "spec.ssh is for a node that is reached over SSH"),
        (local("n", dirs=Dirs(work="/srv/x")), "spec.dirs is for a node that is reached over SSH"),
        (local("n", engine_user="x"), "spec.engineUser is for a node that is reached over SSH"),
        (over_ssh(local=Local()), "spec.local is for a node of this machine"),
        (over_ssh(ssh=None), "spec.ssh is missing"),
        (over_ssh(ssh=Ssh(host="box", jump="bastion")), "spec.ssh.jumpHostKeys is missing"),
    ],
)
def test_what_a_nodes_transport_needs_and_what_makes_no_sense_with_it_is_told(
    node: Manifest, told: str
) -> None:
    (problem,) = problems(node)
    assert told in problem


def test_a_node_over_ssh_is_reached_and_serves_at_its_host_unless_it_names_another_address() -> None:
    assert desired(over_ssh()).nodes["n"].address == "box"
    assert desired(over_ssh(address="10.0.0.1", dirs=Dirs(work="/srv/x"))).nodes["n"].address == "10.0.0.1"


@pytest.mark.parametrize(
    ("window", "told"),
    [
        ({"time_zone": "Europe/Istambul"}, "no time zone Europe/Istambul: did you mean Europe/Istanbul?"),
        ({"time_zone": "Europe"}, "no time zone Europe"),
        ({"time_zone": "../../etc/passwd"}, "no time zone ../../etc/passwd: write an IANA name"),
        ({"schedule": "0 25 * * *"}, '"0 25 * * *" is no cron schedule: bad hour'),
        ({"schedule": "0 0 30 2 *"}, '"0 0 30 2 *" is no cron schedule: bad day-of-month'),
        ({"duration": Duration(400 * 86400.0)}, "duration is longer than a year"),
    ],
)
def test_a_sync_window_that_can_not_be_is_refused(window: dict[str, Any], told: str) -> None:
    stated = {"kind": "deny", "schedule": "0 9 * * 1-5", "duration": Duration(3600.0), **window}
    (problem,) = problems(document("f", FleetSpec(sync_windows=(SyncWindow(**stated),))))
    assert told in problem


def test_a_version_of_agents_that_can_not_be_compared_is_refused() -> None:
    (problem,) = problems(document("f", FleetSpec(agent=AgentSettings(version="newest"))))
    assert "spec.agent.version newest is no version that can be compared" in problem


@pytest.mark.parametrize("text", ["a\0", "a\nb", "\x1b[0m", "\x7f", "a\tb"])
def test_control_characters_in_arguments_and_variables_are_refused(text: str) -> None:
    assert "spec.args[1] holds the control character" in problems(model("m", args=("x", text)))[0]
    assert "spec.env.A holds the control character" in problems(profile("p", env={"A": text}))[0]


@pytest.mark.parametrize(
    "gpus",
    [
        Gpus(per_node=0, share=Size(1)),
        Gpus(per_node=0, gpu_class="x-1g"),
        Gpus(per_node=0, min_memory=Size(1)),
    ],
)
def test_a_profile_for_the_cpu_asks_for_no_gpu(gpus: Gpus) -> None:
    assert "asks for a GPU, but spec.gpus.perNode is 0" in problems(profile("p", gpus=gpus))[0]


def test_a_wait_that_begins_beyond_its_longest_is_refused() -> None:
    assert "is longer than" in problems(profile("p", restart=Restart(backoff=600.0)))[0]  # type: ignore[arg-type] # seconds


def test_all_problems_are_told_in_order_of_place() -> None:
    found = problems(model("b", profile="x"), model("a", profile="y"), local("n", dirs=Dirs(work="/srv/x")))
    assert [problem.partition(":")[0] for problem in found] == ["model-a.yaml", "model-b.yaml", "node-n.yaml"]


def test_a_thousand_nodes_and_three_hundred_models_are_resolved_at_once() -> None:
    """0.3 s is the limit; it takes 0.02 s of CPU on an idle machine."""
    many = [local(f"n{n}", address=f"10.0.{n // 250}.{n % 250 + 1}") for n in range(1000)]
    many += [model(f"m{n}", env={"A": "b"}) for n in range(300)]
    started = time.process_time()
    assert len(desired(*many).models) == 300
    assert time.process_time() - started < 0.3
