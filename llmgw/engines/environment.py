"""The environment of an engine's process: what the adapter sets, then what people set, nearest to the model wins.

Precedence, lowest first: adapter, network between nodes, node, profile, model. What keeps the engine where the plan put
it (its key, its GPUs) is set last and can't be overridden. Text that people wrote is escaped, so that their ``$`` stays
a ``$``.
"""

from collections.abc import Mapping

from llmgw.core.adapter import Placed, RankNetwork
from llmgw.model.desired import DesiredModel
from llmgw.model.manifest import NodeSpec, Value
from llmgw.model.record import RankPlacement

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def escape(text: str) -> str:
    """People's text as a launch spec holds it: a dollar sign never starts a late value."""
    return text.replace("$", "$$")


def merged(model: DesiredModel, node: NodeSpec) -> Mapping[str, Value]:
    """What people set for a shard of ``model`` on ``node``, the winner of each name."""
    return {**node.env, **model.profile.env, **model.spec.env}


def environment(
    placed: Placed,
    rank: RankPlacement,
    *,
    search: str = "",
    defaults: Mapping[str, str] | None = None,
    fixed: Mapping[str, str] | None = None,
) -> Mapping[str, str]:
    """The exact environment, sorted by name. ``search`` is a directory put first on PATH; ``defaults`` are the adapter's
    own and lose against everything that people set, ``fixed`` wins over everything; all three may hold late values."""
    values = {
        "HOME": "${home}",
        "LANG": "C.UTF-8",
        "PATH": f"{search}:{SYSTEM_PATH}" if search else SYSTEM_PATH,
        "XDG_CACHE_HOME": "${home}/.cache",
    }
    values |= defaults or {}
    network = placed.network.get(rank.rank, RankNetwork())
    values |= {name: escape(variable.value) for name, variable in network.environment.items()}
    for name, value in merged(placed.model, placed.nodes[rank.node].spec).items():
        values[name] = escape(value) if isinstance(value, str) else f"${{secret:{name}}}"
    values |= {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # Empty hides every GPU: a replica planned for the CPU never touches one.
        "CUDA_VISIBLE_DEVICES": "${gpu.indices}" if rank.gpus else "",
    }
    values |= fixed or {}
    return dict(sorted(values.items()))
