"""Desired: what a commit asks for, validated and resolved. References are followed, defaults filled in,
every model carries the digest of what decides how its shards run."""

from collections.abc import Mapping

from llmgw.model.facts import Facts
from llmgw.model.ids import Commit, Digest
from llmgw.model.manifest import FleetSpec, ModelSpec, NodeSpec, Pip, ProfileSpec
from llmgw.model.problems import Problem, Where
from llmgw.model.struct import Struct, field


class DesiredNode(Struct):
    """A node with its address settled. ``pretended`` holds the facts of ``local.facts``; ``pip`` the fleet's packages, which
    its agent is made from too. ``leaving``: Git does not name it any more; as recorded, until nothing of ours runs there.
    ``formerly``: names that its agent may still have, after a rename that it has not been seen to know."""

    name: str
    labels: Mapping[str, str]
    spec: NodeSpec
    address: str
    where: Where
    renamed_from: str | None = None
    formerly: tuple[str, ...] = ()
    pretended: Facts | None = None
    pip: Pip = Pip()
    leaving: bool = False


class DesiredModel(Struct):
    """A model with its profile beside it: all that placement and engine adapters need.

    ``spec_digest`` covers everything that decides how a shard runs (engine, version, weights, flags, GPUs per
    node, parallelism, key id), after defaults; not replicas, priority, aliases, labels or placement. LoRA adapters that are
    loaded while it runs count only by the rank that it must be started for; ``also_runs_as`` are the digests for the higher
    ones, which are as good.
    """

    name: str
    labels: Mapping[str, str]
    spec: ModelSpec
    profile_name: str
    profile: ProfileSpec
    served_name: str
    spec_digest: Digest
    where: Where
    renamed_from: str | None = None
    also_runs_as: tuple[Digest, ...] = ()

    def runs_as(self, digest: str) -> bool:
        """Whether what was started under that digest is what it asks for."""
        return digest == self.spec_digest or digest in self.also_runs_as


class Desired(Struct):
    """``commit`` is None for a work tree, which can be planned but never applied. ``warnings`` hold back nothing."""

    commit: Commit | None
    fleet_name: str
    fleet: FleetSpec
    nodes: Mapping[str, DesiredNode] = field(default_factory=dict)
    models: Mapping[str, DesiredModel] = field(default_factory=dict)
    warnings: tuple[Problem, ...] = ()
    suspended_at: Where | None = None  # where ``suspend: true`` stands
    author: str = ""  # of the commit, as Git writes it; empty: not known
    signer: str = ""  # of the commit, and the key; empty: nobody had to sign
