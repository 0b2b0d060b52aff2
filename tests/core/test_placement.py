"""Where replicas go, why not elsewhere, and that a machine's GPUs are only counted when they are really free."""

from collections import Counter
from typing import Any

from llmgw.core.adapter import Need
from llmgw.core.place.candidates import Request
from llmgw.core.place.claims import ledgers
from llmgw.core.place.placement import Placer
from llmgw.core.seen.survey import survey
from llmgw.model.desired import DesiredNode
from llmgw.model.facts import Gpu, WeightsFact
from llmgw.model.manifest import GIB, Gpus, PlacementRules, PortRange, Reserve, Size
from llmgw.model.plan import Decision, Rejection
from llmgw.model.struct import replace
from tests.core.builders import NodeState, desired, empty_record, facts, gpu, node, observed, stranger

ONE = Gpus(per_node=1)


def with_gpus(name: str, *gpus: Gpu) -> NodeState:
    return NodeState(name, replace(facts(name), gpus=gpus))


def placer(*states: NodeState, nodes: list[DesiredNode] | None = None) -> Placer:
    wanted = desired(nodes or [node(state.name) for state in states])
    seen = survey(wanted, empty_record(), observed(*states).nodes, offline=False)
    return Placer(ledgers(seen, ()))


def request(
    gpus: Gpus = ONE, *, memory: int = 0, rules: PlacementRules | None = None, nodes: int = 1, **more: Any
) -> Request:
    need = Need(ports=1, gpu_memory=gpus.share or 0, memory=memory)
    return Request(model="chat", gpus=gpus, need=need, nodes=nodes, rules=rules or PlacementRules(), **more)


def place(finder: Placer, wanted: Request, copies: Counter[str] | None = None) -> Decision:
    return finder.place(wanted, copies or Counter())


def where(decision: Decision) -> list[str]:
    return [rank.node for rank in decision.ranks]


def only(decision: Decision) -> Rejection:
    (rejection,) = decision.rejections
    return rejection


def test_packs_onto_the_fullest_node_that_fits() -> None:
    finder = placer(NodeState("gpu01", facts("gpu01", gpus=8)), NodeState("gpu02", facts("gpu02", gpus=2)))
    assert where(place(finder, request())) == ["gpu02"]
    assert where(place(finder, request(Gpus(per_node=4)))) == ["gpu01"]


def test_among_equals_the_node_that_has_the_weights_comes_first_then_the_name() -> None:
    having = NodeState(
        "gpu02", replace(facts("gpu02"), weights=(WeightsFact(digest="w", path="/w", size=1),))
    )
    finder = placer(NodeState("gpu01", facts("gpu01")), having)
    assert where(place(finder, request(weights="w"))) == ["gpu02"]
    assert where(place(finder, request())) == ["gpu01"]


def test_spread_takes_another_node_while_there_is_one() -> None:
    finder = placer(NodeState("gpu01", facts("gpu01", gpus=2)), NodeState("gpu02", facts("gpu02", gpus=4)))
    apart = request(rules=PlacementRules(spread="node"))
    assert where(place(finder, apart)) == ["gpu01"]
    assert where(place(finder, apart, Counter(gpu01=1))) == ["gpu02"]
    assert where(place(finder, apart, Counter(gpu01=2, gpu02=1))) == ["gpu02"]


def test_every_replica_gets_ports_of_its_own_outside_those_listened_on() -> None:
    state = NodeState("gpu01", facts("gpu01", gpus=3, listening=(18000, 18002)))
    finder = placer(state)
    first = place(finder, request())
    finder.claim("chat-00000000-0.1", first.ranks)
    second = place(finder, request())
    assert [rank.ports for rank in (*first.ranks, *second.ranks)] == [(18001,), (18003,)]


def test_a_used_up_port_range_is_told_with_numbers() -> None:
    state = NodeState("gpu01", facts("gpu01", listening=(18000,)))
    finder = placer(state, nodes=[node("gpu01", ports=PortRange(from_port=18000, to_port=18000))])
    refused = only(place(finder, request()))
    assert (refused.reason, refused.have) == ("not enough ports", "0 free of 18000 to 18000")


def test_a_gpu_held_by_somebody_else_is_not_free_and_named() -> None:
    finder = placer(with_gpus("gpu01", gpu("gpu01", 0, processes=(stranger(30 * GIB),))))
    refused = only(place(finder, request()))
    assert refused.need == "1 whole GPU"
    assert "pid 4711 of user ann holds 30.0 GiB" in refused.have
    assert "50.0 GiB free" in refused.have


def test_gpus_in_the_same_hands_are_told_together() -> None:
    """A full node of eight filled a screen with one name."""
    finder = placer(with_gpus("gpu01", *(gpu("gpu01", index) for index in range(8))))
    finder.claim("chat-00000000-0.1", place(finder, request(Gpus(per_node=7))).ranks)
    assert only(place(finder, request(Gpus(per_node=2)))).have == (
        "1 of 8 GPUs free; each of GPUs 0-6 is held by chat-00000000-0.1-r0"
    )


def test_what_is_not_told_by_name_is_counted() -> None:
    finder = placer(with_gpus("gpu01", *(gpu("gpu01", index) for index in range(5))))
    for ordinal in range(5):
        finder.claim(f"chat-00000000-{ordinal}.1", place(finder, request()).ranks)
    assert only(place(finder, request())).have.endswith(
        "GPU 3 is held by chat-00000000-3.1-r0; 1 more is held"
    )


def test_a_share_still_fits_beside_somebody_else() -> None:
    finder = placer(with_gpus("gpu01", gpu("gpu01", 0, processes=(stranger(30 * GIB),))))
    assert where(place(finder, request(Gpus(share=Size(40 * GIB))))) == ["gpu01"]
    assert not place(finder, request(Gpus(share=Size(60 * GIB)))).ranks


def test_a_stranger_of_unknown_size_leaves_nothing_to_count_on() -> None:
    finder = placer(with_gpus("gpu01", gpu("gpu01", 0, processes=(stranger(None),))))
    assert "an unknown amount" in only(place(finder, request(Gpus(share=Size(GIB))))).have


def test_memory_used_by_processes_nobody_names_is_held_too() -> None:
    finder = placer(with_gpus("gpu01", replace(gpu("gpu01", 0), memory_used=20 * GIB)))
    assert "processes the driver does not name" in only(place(finder, request())).have
    idle = placer(with_gpus("gpu01", replace(gpu("gpu01", 0), memory_used=GIB // 2)))
    assert place(idle, request()).ranks


def test_unhealthy_kept_and_split_gpus_are_not_used() -> None:
    whole = gpu("gpu01", 2)
    finder = placer(
        with_gpus(
            "gpu01",
            gpu("gpu01", 0, health=("Xid 79: fell off the bus",)),
            gpu("gpu01", 1),
            whole,
            replace(gpu("gpu01", 3), uuid="MIG-1", parent=whole.uuid),
        ),
        nodes=[node("gpu01", reserve=Reserve(gpus=("GPU-gpu01-1",)))],
    )
    first = place(finder, request())
    assert [claim.uuid for claim in first.ranks[0].gpus] == ["MIG-1"]
    finder.claim("chat-00000000-0.1", first.ranks)
    refused = only(place(finder, request()))
    assert "Xid 79" in refused.have
    assert "kept for people" in refused.have
    assert "MIG" in refused.have


def test_mig_instances_are_never_put_together() -> None:
    """An engine that is given two sees one, and would compute on that alone."""
    whole = gpu("gpu01", 0)
    parts = tuple(replace(whole, uuid=f"MIG-{number}", parent=whole.uuid) for number in range(2))
    finder = placer(with_gpus("gpu01", whole, *parts, gpu("gpu01", 1)))
    refused = only(place(finder, request(Gpus(per_node=2))))
    assert refused.have == "1 of 2 GPUs free; GPU 0 is split into MIG instances"
    assert [claim.uuid for claim in place(finder, request()).ranks[0].gpus] == ["MIG-0"]


def test_class_and_size_are_asked_for_and_told() -> None:
    finder = placer(with_gpus("gpu01", gpu("gpu01", 0, memory=45 * GIB)))
    big = only(place(finder, request(Gpus(min_memory=Size(70 * GIB)))))
    assert (big.need, big.have) == ("1 whole GPU with 70.0 GiB on each", "h100-45g of 45.0 GiB")
    assert not place(finder, request(Gpus(gpu_class="l40s-45g"))).ranks
    assert place(finder, request(Gpus(gpu_class="h100-45g"))).ranks


def test_reserved_memory_is_kept() -> None:
    state = NodeState("gpu01", facts("gpu01", memory=16 * GIB))
    finder = placer(state, nodes=[node("gpu01", reserve=Reserve(memory=Size(8 * GIB)))])
    refused = only(place(finder, request(Gpus(per_node=0), memory=10 * GIB)))
    assert refused.have == "8.0 GiB free of 8.0 GiB"


def test_unknown_memory_is_a_reason_to_refuse_never_zero_or_plenty() -> None:
    finder = placer(NodeState("gpu01", facts("gpu01", memory=0)))
    assert only(place(finder, request(Gpus(per_node=0), memory=GIB))).reason == "its memory is not known"


def test_labels_and_pools_are_told_by_name() -> None:
    rules = PlacementRules(labels={"rack": "a1"})
    labelled = replace(node("gpu02"), labels={"rack": "b2"})
    finder = placer(
        NodeState("gpu01", facts("gpu01")),
        NodeState("gpu02", facts("gpu02")),
        nodes=[node("gpu01"), labelled],
    )
    assert [each.reason for each in place(finder, request(rules=rules)).rejections] == [
        "has no label rack=a1",
        "label rack is b2, not a1",
    ]


def test_a_gang_needs_all_its_nodes() -> None:
    states = [NodeState(name, facts(name, gpus=2)) for name in ("gpu01", "gpu02")]
    finder = placer(*states)
    both = request(Gpus(per_node=2), nodes=2)
    assert where(place(finder, both)) == ["gpu01", "gpu02"]
    assert not place(finder, request(Gpus(per_node=2), nodes=3)).ranks


def test_in_place_of_another_only_its_own_claims_are_left_out() -> None:
    finder = placer(NodeState("gpu01", facts("gpu01", gpus=2)))
    for name in ("chat-00000000-0.1", "chat-00000000-1.1"):
        finder.claim(name, place(finder, request()).ranks)
    held = finder.ledgers["gpu01"].gpus[1].holdings[0].holder
    assert held == "chat-00000000-1.1-r0"
    other = Placer(finder.ledgers)
    ranks = place(placer(NodeState("gpu01", facts("gpu01", gpus=2))), request()).ranks
    instead = other.place_instead(request(), ranks, "chat-00000000-0.1")
    assert [claim.uuid for claim in instead.ranks[0].gpus] == ["GPU-gpu01-0"]


def test_what_leaves_is_room_soon_and_not_before() -> None:
    finder = placer(NodeState("gpu01", facts("gpu01")))
    ranks = place(finder, request()).ranks
    finder.claim("chat-00000000-0.1", ranks)
    assert not finder.place_soon(request()).ranks
    finder.leave("chat-00000000-0.1", ranks)
    assert not place(finder, request()).ranks
    assert where(finder.place_soon(request())) == ["gpu01"]


def test_a_large_fleet_is_told_in_few_words() -> None:
    names = [f"gpu{number:03d}" for number in range(200)]
    finder = placer(*(NodeState(name, facts(name, gpus=2)) for name in names))
    (refused,) = place(finder, request(Gpus(per_node=4))).rejections
    assert refused.node == "gpu000, gpu001, gpu002 and 197 more"
    assert (refused.need, refused.have) == ("4 whole GPUs", "2 free on each")


def test_what_computes_on_the_cpu_goes_where_its_weights_are() -> None:
    having = NodeState(
        "gpu02", replace(facts("gpu02", gpus=0), weights=(WeightsFact(digest="w", path="/w", size=1),))
    )
    finder = placer(NodeState("gpu01", facts("gpu01", gpus=0)), having)
    cpu = Gpus(per_node=0)
    assert where(place(finder, request(cpu, memory=GIB, weights="w"))) == ["gpu02"]
    assert where(place(finder, request(cpu, memory=GIB))) == ["gpu01"]


def test_a_spread_says_how_many_of_the_replicas_are_there() -> None:
    finder = placer(NodeState("gpu01", facts("gpu01", gpus=2)), NodeState("gpu02", facts("gpu02", gpus=2)))
    apart = request(rules=PlacementRules(spread="node"))
    assert place(finder, apart, Counter(gpu01=1)).reasons == (
        "gpu02 has 2 of 2 GPUs free, and none of its replicas (spread: node)",
    )
    assert place(finder, apart, Counter(gpu01=1, gpu02=2)).reasons == (
        "gpu01 has 2 of 2 GPUs free, and 1 of its replicas, the fewest (spread: node)",
    )
