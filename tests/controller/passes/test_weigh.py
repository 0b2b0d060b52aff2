"""What a pass learns of weights: who is asked what, who isn't, and what becomes of bad answers."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.links import Links
from llmgw.controller.passes.weigh import weigh
from llmgw.controller.weights.remote import Wanted
from llmgw.engines.registry import ADAPTERS
from llmgw.engines.weights import weights_digest
from llmgw.model.desired import Desired, DesiredModel
from llmgw.model.facts import Facts, WeightsFact
from llmgw.model.manifest import Engine, FleetSpec, Gpus, ModelSpec, PlacementRules, ProfileSpec, Source
from llmgw.model.problems import AgentError, RetryError
from llmgw.model.record import Held, ModelRecord, Record, ReplicaSpec
from llmgw.model.report import NodeObservation, Observed, Reach
from llmgw.model.struct import replace
from llmgw.model.weights import Inspection, Weights
from llmgw.wire.messages import METHOD_NOT_FOUND, Inspected
from tests.controller.passes.doubles import FLEET, NOW, Script, ScriptedTransport, node, transports
from tests.controller.passes.pretend import World
from tests.core.builders import model as built
from tests.engines.memory.configs import LLAMA_8B

VLLM = ProfileSpec(engine=Engine(name="vllm", version="0.33.0"), gpus=Gpus())
ON_NODE = Source(path="/models/llama")
ON_HUB = Source(hugging_face="lab/llama", revision="a" * 40)


def good(path: str = "/models/llama", size: int = 16) -> Inspection:
    return Inspection(
        path=path, format="safetensors", size=size, config=json.dumps(LLAMA_8B), tensors={"BF16": size}
    )


class Remote:
    """Answers as written down, and remembers the questions."""

    def __init__(self, *answers: Inspection) -> None:
        self.answers = list(answers)
        self.asked: list[Wanted] = []

    async def look(self, wanted: Wanted) -> Inspection | None:
        self.asked.append(wanted)
        return self.answers.pop(0) if self.answers else None


def asking(name: str, source: Source, profile: ProfileSpec = VLLM, **spec: Any) -> DesiredModel:
    of = built(name)
    return replace(of, profile=profile, spec=ModelSpec(source=source, profile="p", **spec))


def learnt(
    *models: DesiredModel,
    scripts: tuple[Script, ...] = (),
    remote: Remote | None = None,
    record: Record | None = None,
    fetched: Mapping[str, tuple[str, ...]] | None = None,
    reach: Reach = Reach.OK,
    environment: Mapping[str, str] | None = None,
    nodes: Mapping[str, Any] | None = None,
) -> Observed:
    wanted = Desired(
        commit=None,
        fleet_name="lab",
        fleet=FleetSpec(),
        nodes=nodes or {script.name: node(script.name) for script in scripts},
        models={model.name: model for model in models},
    )
    seen = Observed(
        nodes={
            script.name: NodeObservation(
                node=script.name, reach=reach, facts=there(fetched or {}, script.name)
            )
            for script in scripts
        }
    )

    async def main() -> Observed:
        fleet: Fleet = replace(
            World().fleet(), adapters=ADAPTERS, remote_weights=remote, environment=environment or {}
        )
        links = Links(transports(ScriptedTransport(*scripts)))
        return await weigh(fleet, wanted, record or Record(fleet=FLEET), seen, links)

    return asyncio.run(main())


def there(fetched: Mapping[str, tuple[str, ...]], name: str) -> Facts:
    return Facts(
        weights=tuple(WeightsFact(digest=digest, path="/w", size=1) for digest in fetched.get(name, ()))
    )


def says(name: str, *answers: Any) -> Script:
    return Script(name, inspect=answers)


def told(source: Source, seen: Inspection) -> Inspected:
    return Inspected(inspections={weights_digest(source): seen})


def known(found: Observed, source: Source) -> Weights:
    assert found.weights is not None
    return found.weights[weights_digest(source)]


def test_a_path_is_asked_of_every_node_that_may_run_the_model() -> None:
    a, b, c = (says(name, told(ON_NODE, good())) for name in ("a", "b", "c"))
    found = learnt(asking("chat", ON_NODE, placement=PlacementRules(nodes=("a", "b"))), scripts=(a, b, c))
    assert known(found, ON_NODE).architecture == "LlamaForCausalLM"
    assert [script.methods() for script in (a, b, c)] == [["inspect"], ["inspect"], []]
    assert a.asked[0][1].paths == {weights_digest(ON_NODE): "/models/llama"}


def test_a_node_that_lacks_them_is_bad_and_the_others_word_counts() -> None:
    a = says("a", told(ON_NODE, Inspection(path="/models/llama", problem="nothing is at /models/llama")))
    b = says("b", told(ON_NODE, good()))
    found = learnt(asking("chat", ON_NODE), scripts=(a, b))
    assert known(found, ON_NODE).usable
    assert found.nodes["a"].bad_weights == {weights_digest(ON_NODE): "nothing is at /models/llama"}
    assert found.nodes["b"].bad_weights == {}


def test_what_no_node_can_use_is_known_as_such() -> None:
    seen = Inspection(path="/models/llama", format="safetensors", size=9)
    found = learnt(asking("chat", ON_NODE), scripts=(says("a", told(ON_NODE, seen)),))
    assert "no config.json" in known(found, ON_NODE).problem


def test_an_agent_too_old_to_look_says_what_to_do() -> None:
    old = says("a", AgentError("no method", code=METHOD_NOT_FOUND))
    found = learnt(asking("chat", ON_NODE), scripts=(old,))
    assert known(found, ON_NODE).problem == "a can't look at weights: upgrade its agent"
    assert found.nodes["a"].bad_weights == {}


def test_a_line_that_breaks_hides_no_other_node() -> None:
    a, b = says("a", RetryError("the line was cut")), says("b", told(ON_NODE, good()))
    found = learnt(asking("chat", ON_NODE), scripts=(a, b))
    assert known(found, ON_NODE).usable
    assert found.nodes["a"].bad_weights == {}, "nobody has said that they are bad"


def test_an_answer_in_parts_is_asked_for_until_it_is_whole() -> None:
    other = Source(path="/models/other")
    a = says("a", told(ON_NODE, good()), told(other, good("/models/other")))
    found = learnt(asking("chat", ON_NODE), asking("code", other), scripts=(a,))
    assert known(found, ON_NODE).usable
    assert known(found, other).usable
    assert [len(params.paths) for _, params in a.asked] == [2, 1]


def test_an_agent_that_answers_nothing_is_not_asked_for_ever() -> None:
    a = says("a", Inspected())
    assert learnt(asking("chat", ON_NODE), scripts=(a,)).weights == {}
    assert len(a.asked) == 1


def test_what_was_fetched_is_looked_at_once_and_then_known_from_the_record() -> None:
    digest = weights_digest(ON_HUB)
    a = says("a", told(ON_HUB, good("/w")))
    found = learnt(asking("chat", ON_HUB), scripts=(a,), fetched={"a": (digest,)})
    weights = known(found, ON_HUB)
    assert weights.usable
    assert a.asked[0][1].paths == {digest: ""}
    again = says("a")
    record = Record(fleet=FLEET, weights={digest: weights})
    assert (
        known(
            learnt(asking("chat", ON_HUB), scripts=(again,), fetched={"a": (digest,)}, record=record), ON_HUB
        )
        == weights
    )
    assert again.asked == []


def test_what_no_node_has_is_looked_at_from_afar() -> None:
    remote = Remote(good("lab/llama"))
    found = learnt(asking("chat", ON_HUB), scripts=(says("a"),), remote=remote)
    assert known(found, ON_HUB).usable
    assert [wanted.source for wanted in remote.asked] == [ON_HUB]


def test_a_mirror_that_the_nodes_use_is_asked_instead_of_the_hub() -> None:
    behind = replace(node("a"), spec=replace(node("a").spec, env={"HF_ENDPOINT": "http://mirror"}))
    remote = Remote()
    learnt(asking("chat", ON_HUB), scripts=(says("a"),), remote=remote, nodes={"a": behind})
    learnt(asking("chat", ON_HUB), remote=remote, environment={"HF_ENDPOINT": "http://own"})
    assert [wanted.hub for wanted in remote.asked] == ["http://mirror", "http://own"]


def test_the_record_counts_where_nobody_answers() -> None:
    weights = Weights(digest=weights_digest(ON_HUB), description="x", size=7)
    record = Record(fleet=FLEET, weights={weights.digest: weights})
    bad = Remote(Inspection(path="x", problem="the hub is down"))
    assert known(learnt(asking("chat", ON_HUB), remote=bad, record=record), ON_HUB) == weights
    assert bad.asked == []
    found = learnt(asking("chat", ON_NODE), scripts=(says("a"),), reach=Reach.UNREACHABLE)
    assert found.weights == {}


def test_a_hub_that_is_down_is_why_nothing_is_known() -> None:
    found = learnt(asking("chat", ON_HUB), remote=Remote(Inspection(path="x", problem="the hub is down")))
    assert known(found, ON_HUB).problem == "the hub is down"


def test_engines_that_reckon_with_nothing_ask_nobody() -> None:
    sim = ProfileSpec(engine=Engine(name="sim"))
    a, remote = says("a"), Remote()
    assert learnt(asking("chat", ON_NODE, sim), scripts=(a,), remote=remote).weights == {}
    assert (a.asked, remote.asked) == ([], [])


def test_what_a_held_model_runs_instead_is_asked_for_as_well() -> None:
    model = asking("chat", ON_HUB)
    spec = ReplicaSpec(
        model=ModelSpec(source=ON_NODE, profile="p"),
        profile_name="p",
        profile=VLLM,
        served_name="chat",
        key_id="",
    )
    held = Held(spec_digest=model.spec_digest, commit=World().branch.tip, reason="it failed", at=NOW)
    of = ModelRecord(
        name="chat", id_prefix="chat", served_name="chat", held=held, last_good="g", last_good_spec=spec
    )
    a = says("a", told(ON_NODE, good()))
    found = learnt(model, scripts=(a,), record=Record(fleet=FLEET, models={"chat": of}))
    assert known(found, ON_NODE).usable
