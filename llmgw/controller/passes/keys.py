"""What a start or a fetch sends beside its spec: the replica's API key and the values that manifests only point to.

They are looked up when they are sent and go nowhere else.
"""

from collections.abc import Callable, Mapping

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.keyring import Keyring
from llmgw.controller.secrets import resolve
from llmgw.model.desired import Desired
from llmgw.model.ids import ReplicaId
from llmgw.model.launch import TOKEN, FetchSpec
from llmgw.model.manifest import Secret, Value
from llmgw.model.plan import Step
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


def _token(spec: FetchSpec, fleet: Fleet) -> Mapping[str, str]:
    """Of the hub that the weights come from."""
    if spec.token is None:
        return {}
    value = resolve(spec.token, fleet.environment)
    fleet.learn(value)
    return {TOKEN: value}


def _reference(name: str, step: Step, record: Record, desired: Desired) -> Secret | None:
    """Where a value comes from: the model's word goes before the profile's, and that before the node's."""
    places: list[Mapping[str, Value]] = []
    replica = record.replicas.get(step.replica or "")
    if replica is not None:
        places += [replica.spec.model.env, replica.spec.profile.env]
    node = desired.nodes.get(step.node or "")
    if node is not None:
        places.append(node.spec.env)
    for env in places:
        value = env.get(name)
        if isinstance(value, Secret):
            return value
    return None
