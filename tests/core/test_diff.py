"""Every field that differs is named, and whether it forces a replacement."""

from llmgw.core.moves.diff import change, differences, spec_changes
from llmgw.model.manifest import (
    GIB,
    Duration,
    Engine,
    Gpus,
    ModelSpec,
    ProfileSpec,
    Rollout,
    Size,
    Source,
    Timeouts,
)
from llmgw.model.record import ReplicaSpec
from llmgw.model.struct import replace

OLD = ReplicaSpec(
    model=ModelSpec(source=Source(path="/m"), profile="p"),
    profile_name="p",
    profile=ProfileSpec(engine=Engine(name="sim", version="1")),
    served_name="chat",
    key_id="k",
)


def test_equal_values_have_no_differences() -> None:
    assert spec_changes(OLD, replace(OLD), replaces=False) == ()


def test_every_leaf_that_differs_is_named_with_both_values() -> None:
    new = replace(
        OLD,
        model=replace(OLD.model, args=("--x",), replicas=3, rollout=Rollout(max_surge=2)),
        profile=replace(OLD.profile, max_model_len=4096),
        key_id="l",
    )
    changes = spec_changes(OLD, new, replaces=True)
    assert [(each.path, each.old, each.new, each.forces_replacement) for each in changes] == [
        ("keyId", '"k"', '"l"', True),
        ("profile.maxModelLen", None, "4096", True),
        ("spec.args", "[]", '["--x"]', True),
        ("spec.replicas", "1", "3", False),
        ("spec.rollout.maxSurge", "1", "2", False),
    ]


def test_in_place_nothing_forces_a_replacement() -> None:
    new = replace(OLD, model=replace(OLD.model, args=("--x",)))
    assert [each.forces_replacement for each in spec_changes(OLD, new, replaces=False)] == [False]


def test_a_value_that_becomes_an_object_is_one_difference() -> None:
    assert list(differences({"a": "x"}, {"a": {"fromEnv": "X"}})) == [("a", "x", {"fromEnv": "X"})]


def test_absent_and_null_are_the_same() -> None:
    assert list(differences({"a": None}, {})) == []
    assert list(differences(None, {"a": {"b": 1}})) == [("a.b", None, 1)]


def test_durations_and_sizes_are_written_as_in_manifests() -> None:
    new = replace(
        OLD,
        model=replace(OLD.model, rollout=Rollout(drain_timeout=Duration(5400.0))),
        profile=replace(
            OLD.profile,
            gpu_memory_utilization=1.0,
            gpus=Gpus(share=Size(10 * 10**9)),
            memory=Size(400 * GIB),
            startup_timeout=Duration(20.0),
            timeouts=Timeouts(health=Duration(0.5)),
        ),
    )
    changes = spec_changes(OLD, new, replaces=True)
    assert [(each.path, each.old, each.new) for each in changes] == [
        ("profile.gpuMemoryUtilization", "0.9", "1"),
        ("profile.gpus.share", None, "10GB"),
        ("profile.memory", None, "400GiB"),
        ("profile.startupTimeout", "30m", "20s"),
        ("profile.timeouts.health", "2s", "500ms"),
        ("spec.rollout.drainTimeout", "2m", "1h30m"),
    ]


def test_what_a_node_keeps_for_people_is_written_as_in_its_manifest() -> None:
    told = change("spec.reserve.memory", 0, 3 * GIB // 2)
    assert (told.old, told.new) == ("0B", "1536MiB")
