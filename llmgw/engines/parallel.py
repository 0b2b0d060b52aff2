"""How many GPUs the parallel sizes of a profile stand for, and whether its nodes have as many."""

from collections.abc import Iterator

from llmgw.model.desired import DesiredModel
from llmgw.model.problems import Problem


def world_problems(model: DesiredModel, *, data: int, context: int = 1) -> Iterator[Problem]:
    """``data`` counts copies of the model that have GPUs of their own; ``context`` multiplies them where an engine
    splits the prompt among GPUs too. On CPUs a rank of the world is a process, and nodes share them out evenly."""
    profile = model.profile
    tensor, pipeline = profile.parallel.tensor, profile.parallel.pipeline
    world = tensor * pipeline * data * context
    parts = [f"tensor {tensor}", f"pipeline {pipeline}"]
    parts += [f"data {data}"] if data > 1 else []
    parts += [f"context {context}"] if context > 1 else []
    asked = f"spec.parallel: {' x '.join(parts)} = {world}"
    if profile.gpus.per_node == 0:
        if world % profile.nodes:
            yield Problem(
                what=f"{asked} processes, which {profile.nodes} nodes can't share out evenly",
                instead="make the product a multiple of spec.nodes",
            )
        return
    gpus = profile.nodes * profile.gpus.per_node
    if world != gpus:
        yield Problem(
            what=f"{asked} GPUs, but nodes {profile.nodes} x gpus.perNode {profile.gpus.per_node} = {gpus}",
            instead=_nearest(world, gpus, profile.gpus.per_node),
        )


def _nearest(world: int, gpus: int, per_node: int) -> str:
    if world > gpus and world % per_node == 0:
        return f"write nodes: {world // per_node}, or make the product {gpus}"
    return f"make the product {gpus}: spec.parallel.tensor is usually the GPUs of one node"


def ray_problems(model: DesiredModel, engine: str) -> Iterator[Problem]:
    """For engines whose ranks find each other by themselves."""
    if model.profile.launch != "mp":
        yield Problem(
            what=f"spec.launch: {engine}'s ranks meet by themselves, not by {model.profile.launch}",
            instead="leave it out",
        )
