"""Which quantizations which GPUs can compute with, by compute capability. One table for all of them.

fp8 and the four-bit floats are arithmetic of the GPU itself: tensor cores have it from that generation on. vLLM also runs some of
them on older GPUs, by unpacking each weight to 16 bits; that is slower than not quantizing, so it is not what anybody means by
asking for it, and is refused here. The others are unpacked everywhere, and the table holds what vLLM's own check asks for.
"""

from collections.abc import Mapping

from llmgw.model.desired import DesiredModel
from llmgw.model.weights import Weights

LEAST: Mapping[str, tuple[int, int]] = {
    "fp8": (8, 9),
    "fbgemm-fp8": (8, 9),
    "modelopt": (8, 9),
    "nvfp4": (10, 0),
    "modelopt-fp4": (10, 0),
    "mxfp4": (8, 0),  # vLLM has kernels that unpack it from 8.0 on, and gpt-oss exists in nothing else
    "awq": (7, 5),
    "awq-marlin": (8, 0),
    "gptq": (6, 0),
    "gptq-marlin": (8, 0),
    "int4": (8, 0),
    "int8": (7, 5),
    "bitsandbytes": (7, 0),
    "torchao": (7, 5),
    "hqq": (8, 0),
}
"""Compute capability from which on vLLM takes it (get_min_capability of its methods); fp8 and nvfp4 from where the GPU does."""

BFLOAT16 = (8, 0)
FP8_CACHE = (8, 9)


def method(model: DesiredModel, weights: Weights | None) -> str:
    """What the replica computes with: what the profile asks for, else what the files are."""
    asked = model.profile.quantization
    return (asked or (weights.quantization if weights is not None else "")).lower().replace("_", "-")


def why_not(quantization: str, capability: str) -> str:
    """Why a GPU can't compute with it; empty when it can, or when nothing is known of one of the two."""
    least, has = LEAST.get(quantization), number(capability)
    if least is None or has is None or has >= least:
        return ""
    return f"{quantization} needs compute capability {least[0]}.{least[1]}, it has {capability}"


def number(capability: str) -> tuple[int, int] | None:
    """``(8, 9)`` of ``8.9``; None: not told."""
    major, dot, minor = capability.partition(".")
    return (int(major), int(minor)) if dot and major.isdigit() and minor.isdigit() else None
