import pytest

from llmgw.agent.shards import late
from llmgw.model.claims import Claims, GpuClaim
from llmgw.model.problems import StalledError
from llmgw.model.struct import replace
from tests.agent.shards.rig import gpu, spec


def test_values_are_put_in_once_and_a_doubled_dollar_is_one() -> None:
    known = {"home": "/h", "key": "${home}$$"}
    assert late.expand("a ${home} $$5 ${key} $HOME", known) == "a /h $5 ${home}$$ $HOME"


def test_a_value_that_is_not_there_is_named_and_no_other_is_shown() -> None:
    with pytest.raises(StalledError, match=r"\$\{weights\} has no value") as missing:
        late.expand("${key} ${weights}", {"key": "s3cret"})
    assert "s3cret" not in str(missing.value)


def test_names_outside_the_list_are_found_wherever_they_stand() -> None:
    launch = spec(
        argv=("x", "${gpu.indices}", "${nope}"), env={"A": "${secret:T}", "B": "${PATH}", "C": "$${fine}"}
    )
    assert late.unknown(launch) == ("PATH", "nope")
    assert late.secrets_used(launch) == {"T"}


def test_a_mig_instance_is_made_visible_by_its_uuid_and_a_whole_gpu_by_its_number() -> None:
    """An instance has no number of its own: by its GPU's, CUDA would take the first instance of it."""
    whole = gpu(1)
    instance = replace(gpu(2), uuid="MIG-7", parent=gpu(2).uuid)
    launch = spec(claims=Claims(gpus=(GpuClaim(uuid=whole.uuid), GpuClaim(uuid="MIG-7"))))
    known = late.values(
        launch, gpus=(whole, gpu(2), instance), engine=None, weights=None, home="/h", secrets={}
    )
    assert known["gpu.indices"] == "1,MIG-7"
    assert known["gpu.uuids"] == f"{whole.uuid},MIG-7"
