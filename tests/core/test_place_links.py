"""Several GPUs of one node: those that NVLink connects go together."""

from llmgw.model.manifest import Gpus
from llmgw.model.struct import replace
from tests.core.builders import NodeState, facts, gpu
from tests.core.test_placement import place, placer, request


def islands(name: str, *groups: tuple[int, ...]) -> NodeState:
    """GPUs by index; those of one group reach each other."""
    gpus = []
    for group in groups:
        for index in group:
            peers = tuple(f"GPU-{name}-{other}" for other in group if other != index)
            gpus.append(gpu(name, index, nvlink_peers=peers))
    return NodeState(name, replace(facts(name), gpus=tuple(gpus)))


def taken(decision_of: NodeState, count: int, *, held: tuple[int, ...] = ()) -> list[int]:
    finder = placer(decision_of)
    for index in held:
        one = place(finder, request(Gpus(per_node=1))).ranks
        assert one[0].gpus[0].uuid == f"GPU-{decision_of.name}-{index}"
        finder.claim(f"held-00000000-{index}.1", one)
    decision = place(finder, request(Gpus(per_node=count)))
    return [int(claim.uuid.rpartition("-")[2]) for claim in decision.ranks[0].gpus]


def test_two_connected_ones_are_taken_before_two_that_come_first() -> None:
    assert taken(islands("gpu01", (0,), (1,), (2, 3)), 2) == [2, 3]
    assert taken(islands("gpu01", (0, 1), (2, 3)), 2) == [0, 1]
    assert taken(islands("gpu01", (0, 1), (2, 3)), 2, held=(0,)) == [2, 3]


def test_as_many_connections_as_there_can_be_where_not_all_are_connected() -> None:
    assert taken(islands("gpu01", (0, 1), (2, 3, 4)), 3) == [2, 3, 4]
    assert taken(islands("gpu01", (0,), (1, 2), (3,)), 3) == [0, 1, 2]


def test_without_nvlink_the_first_ones_are_taken_and_nothing_is_said() -> None:
    state = islands("gpu01", (0,), (1,), (2,))
    assert taken(state, 2) == [0, 1]
    assert not any("NVLink" in reason for reason in place(placer(state), request(Gpus(per_node=2))).reasons)


def test_the_plan_says_that_they_are_connected() -> None:
    decision = place(placer(islands("gpu01", (0,), (1, 2))), request(Gpus(per_node=2)))
    assert "its GPUs on gpu01 are connected by NVLink" in decision.reasons


def test_in_whatever_order_they_are_reported_the_same_ones_are_taken() -> None:
    state = islands("gpu01", (3, 2), (1, 0))
    assert taken(state, 2) == [0, 1]
    assert taken(islands("gpu01", (2,), (1,), (0,)), 1) == [0]
