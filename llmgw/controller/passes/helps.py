"""Has agents read the help of engines that lie at a path, so that a later plan knows their flags: a pass never waits for an
engine's help, which may take half a minute.
"""

import asyncio

from llmgw.controller.fleet import Fleet
from llmgw.controller.passes.links import Links
from llmgw.core.enginecheck.verdict import engine_on
from llmgw.core.place.candidates import breaks_rules_of
from llmgw.model.desired import Desired, DesiredModel, DesiredNode
from llmgw.model.launch import HelpSpec
from llmgw.model.manifest import Engine
from llmgw.model.problems import LlmgwError
from llmgw.model.report import NodeObservation, Observed, Reach
from llmgw.wire.codec import CodecError
from llmgw.wire.messages import Helped, HelpParams

WITHIN = 10.0


async def have_read(fleet: Fleet, desired: Desired, observed: Observed, links: Links) -> None:
    """Never raises: an engine that nobody could ask is one whose flags are not known, and the plan says so."""
    await asyncio.gather(
        *(_on_node(fleet, desired, desired.nodes[name], seen, links) for name, seen in observed.nodes.items())
    )


async def _on_node(
    fleet: Fleet, desired: Desired, node: DesiredNode, seen: NodeObservation, links: Links
) -> None:
    here = (it for it in desired.models.values() if not breaks_rules_of(node, it.spec.placement))
    asked = {(it.profile.engine.name, it.profile.engine.path): it for it in here if _unknown(seen, it)}
    for model in asked.values():
        spec = fleet.adapters[model.profile.engine.name].help(model)
        if spec is not None:
            await _ask(model.profile.engine, spec, node, links)


def _unknown(seen: NodeObservation, model: DesiredModel) -> bool:
    """Whether it runs on an engine at a path of which nothing is known there yet."""
    path = model.profile.engine.path
    if path is None or seen.reach is not Reach.OK:
        return False
    return engine_on(seen.facts, digest=None, path=path) is None


async def _ask(engine: Engine, spec: HelpSpec, node: DesiredNode, links: Links) -> None:
    try:
        link = await links.to(node)
        if "help" in link.hello.methods:
            params = HelpParams(name=engine.name, spec=spec, path=engine.path)
            await link.request("help", params, Helped, timeout=WITHIN)
    except (LlmgwError, OSError, CodecError):
        return
