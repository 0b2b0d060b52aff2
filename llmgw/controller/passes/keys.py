"""What a start or a fetch sends beside its spec: the replica's API key and the values that manifests only point to.

They are looked up when they are sent and go nowhere else. Whether they are there can be asked before.
"""

from collections.abc import Callable, Iterator, Mapping

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.keyring import Keyring
from llmgw.controller.secrets import resolve
from llmgw.model.desired import Desired
from llmgw.model.ids import ReplicaId
from llmgw.model.launch import TOKEN, FetchSpec
from llmgw.model.manifest import Secret, Value
from llmgw.model.plan import Plan, Step, StepKind
from llmgw.model.problems import StalledError
from llmgw.model.record import Record


def secrets_for(
    fleet: Fleet, record: Record, desired: Desired, keys: Keyring
) -> Callable[[Step], Mapping[str, str]]:
    """``record`` is the intent: it holds the spec that each replica is started with, and which secret its key is made from."""

    def of(step: Step) -> Mapping[str, str]:
        if step.fetch is not None:
            return _token(step.fetch, fleet)
        assert step.launch is not None
        replica = ReplicaId(step.launch.replica)
        values: dict[str, str] = {"key": keys.key(replica, record.replicas[replica].spec.key_id)}
        for name in step.launch.secrets:
            reference = _reference(name, step, record, desired)
            if reference is None:
                raise StalledError(
                    f"step {step.id} needs the secret {name}, which neither the model, its profile nor the node names: "
                    "plan again"
                )
            values[name] = resolve(reference, fleet.environment)
        for value in values.values():
            fleet.learn(value)
        return values

    return of


def missing(plan: Plan, record: Record, desired: Desired, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Of the values that the plan's steps will send: those that aren't found here, by who needs them and why they aren't. This
    is no part of the plan, which is the same wherever it is made. ``record`` is what the plan was made from."""
    told: dict[str, None] = {}  # in order, of several replicas once
    for step in plan.steps:
        whose = f"model/{step.model}" if step.model else f"node/{step.node}"
        for name, reference in _references(step, record, desired):
            if why := _not_found(reference, environment):
                text = f"{whose} needs the secret {name} where apply runs, and it is not found here: {why}"
                told[text] = None
    return tuple(told)


def _not_found(reference: Secret, environment: Mapping[str, str]) -> str:
    try:
        resolve(reference, environment)
    except StalledError as wrong:
        return str(wrong)
    return ""


def _references(step: Step, record: Record, desired: Desired) -> Iterator[tuple[str, Secret]]:
    if step.fetch is not None and step.fetch.token is not None:
        yield TOKEN, step.fetch.token
    for name in step.launch.secrets if step.launch is not None else ():
        if (reference := _reference(name, step, record, desired)) is not None:
            yield name, reference
    node = desired.nodes.get(step.node or "")
    if step.kind is StepKind.BOOTSTRAP and node is not None:
        for name, value in node.spec.env.items():
            if isinstance(value, Secret):
                yield name, value


def _token(spec: FetchSpec, fleet: Fleet) -> Mapping[str, str]:
    """Of the hub that the weights come from."""
    if spec.token is None:
        return {}
    value = resolve(spec.token, fleet.environment)
    fleet.learn(value)
    return {TOKEN: value}


def _reference(name: str, step: Step, record: Record, desired: Desired) -> Secret | None:
    """Where a value comes from: the model's word goes before the profile's, and that before the node's. What is planned and not
    recorded yet is started as it is desired."""
    places: list[Mapping[str, Value]] = []
    replica = record.replicas.get(step.replica or "")
    model = desired.models.get(step.model or "")
    if replica is not None:
        places += [replica.spec.model.env, replica.spec.profile.env]
    elif model is not None:
        places += [model.spec.env, model.profile.env]
    node = desired.nodes.get(step.node or "")
    if node is not None:
        places.append(node.spec.env)
    for env in places:
        value = env.get(name)
        if isinstance(value, Secret):
            return value
    return None
