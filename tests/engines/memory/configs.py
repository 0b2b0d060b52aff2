"""Configs of published models, cut down to what decides memory; written from their public facts."""

import json
from typing import Any

from llmgw.engines.memory.known import weights_of
from llmgw.model.weights import Inspection, Weights

GIB = 1024**3


def config(architecture: str, **fields: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "torch_dtype": "bfloat16", **fields}


QWEN3_32B = config(
    "Qwen3ForCausalLM",
    num_hidden_layers=64,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=128,
    hidden_size=5120,
    intermediate_size=25600,
    vocab_size=151936,
    max_position_embeddings=40960,
    sliding_window=None,
    use_sliding_window=False,
    max_window_layers=64,
)
QWEN25_7B = config(
    "Qwen2ForCausalLM",
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    hidden_size=3584,
    intermediate_size=18944,
    vocab_size=152064,
    max_position_embeddings=32768,
    sliding_window=131072,
    use_sliding_window=False,
    max_window_layers=28,
)
QWEN25_7B_AWQ = {**QWEN25_7B, "quantization_config": {"quant_method": "awq", "bits": 4}}
QWEN25_32B_AWQ = config(
    "Qwen2ForCausalLM",
    num_hidden_layers=64,
    num_attention_heads=40,
    num_key_value_heads=8,
    hidden_size=5120,
    intermediate_size=27648,
    vocab_size=152064,
    max_position_embeddings=32768,
    quantization_config={"quant_method": "awq", "bits": 4},
)
QWEN25_15B = config(
    "Qwen2ForCausalLM",
    num_hidden_layers=28,
    num_attention_heads=12,
    num_key_value_heads=2,
    hidden_size=1536,
    intermediate_size=8960,
    vocab_size=151936,
    max_position_embeddings=32768,
)
MISTRAL_SMALL_32 = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1024},
    "text_config": {
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 5120,
        "intermediate_size": 32768,
        "vocab_size": 131072,
        "max_position_embeddings": 131072,
        "sliding_window": None,
    },
}
LLAMA_8B = config(
    "LlamaForCausalLM",
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    hidden_size=4096,
    intermediate_size=14336,
    vocab_size=128256,
    max_position_embeddings=131072,
)
LLAMA_70B = config(
    "LlamaForCausalLM",
    num_hidden_layers=80,
    num_attention_heads=64,
    num_key_value_heads=8,
    hidden_size=8192,
    intermediate_size=28672,
    vocab_size=128256,
    max_position_embeddings=131072,
)
DEEPSEEK_V3 = config(
    "DeepseekV3ForCausalLM",
    num_hidden_layers=61,
    num_attention_heads=128,
    num_key_value_heads=128,
    hidden_size=7168,
    intermediate_size=18432,
    vocab_size=129280,
    max_position_embeddings=163840,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    v_head_dim=128,
    n_routed_experts=256,
    quantization_config={"quant_method": "fp8"},
)
GEMMA3_12B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "torch_dtype": "bfloat16",
    "vision_config": {},
    "text_config": {
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
    },
}
JAMBA = config(
    "JambaForCausalLM",
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    hidden_size=4096,
    mamba_d_state=16,
    vocab_size=65536,
    max_position_embeddings=262144,
)
BERT = config(
    "BertModel",
    num_hidden_layers=12,
    num_attention_heads=12,
    hidden_size=768,
    vocab_size=30522,
    max_position_embeddings=512,
)


def known(of: dict[str, Any], *, size: int = 15 * GIB, kind: str = "BF16") -> Weights:
    """As a node's inspection would have told it."""
    seen = Inspection(
        path="/models/x",
        format="safetensors",
        files=4,
        size=size,
        config=json.dumps(of),
        tensors={kind: size},
    )
    return weights_of("d" * 64, "x", seen)
