"""The engines there are. To add one: a module beside this with a class that answers
:class:`llmgw.core.adapter.EngineAdapter`, a line here, and its cases in tests/golden/launch/."""

from collections.abc import Mapping
from types import MappingProxyType

from llmgw.core.adapter import EngineAdapter
from llmgw.engines.custom import Custom
from llmgw.engines.llamacpp import LlamaCpp
from llmgw.engines.sglang import Sglang
from llmgw.engines.sim import Sim
from llmgw.engines.vllm import Vllm

ADAPTERS: Mapping[str, EngineAdapter] = MappingProxyType(
    {adapter.name: adapter for adapter in (Custom(), LlamaCpp(), Sglang(), Sim(), Vllm())}
)
"""By the name in ``Profile.spec.engine.name``. A name that is missing here is not supported yet."""
