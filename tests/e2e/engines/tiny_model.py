"""A language model of 0.4 million numbers and two LoRA adapters for it, as Hugging Face and PEFT lay them out. It says nothing
sensible, and the same each time; an adapter makes it say something else.

    ENGINE/bin/python tests/e2e/engines/tiny_model.py FOLDER      # makes FOLDER/model, FOLDER/adapters/one, FOLDER/adapters/two

Run by an engine's own Python, which has the libraries for it and needs no torch here; imported by nobody."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

np: Any = importlib.import_module("numpy")
tokenizers: Any = importlib.import_module("tokenizers")
safetensors: Any = importlib.import_module("safetensors.numpy")

LAYERS, HIDDEN, HEADS, KV_HEADS, FORWARD, VOCABULARY, CONTEXT = 2, 128, 4, 2, 256, 512, 2048
WIDTH = HIDDEN // HEADS  # 32: the narrowest that vLLM's attention on CPUs computes with
RANK = 8
SPECIAL = ("<|bos|>", "<|eos|>", "<|pad|>")
SENTENCES = (
    "the quick brown fox jumps over the lazy dog",
    "hello world, how are you today?",
    "a small language model that says nonsense, quickly and each time the same",
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": FORWARD,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": WIDTH,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
PEFT = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": RANK,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "target_modules": ["q_proj", "v_proj"],
    "bias": "none",
    "inference_mode": True,
}


def main(folder: Path) -> None:
    words = write_tokenizer(folder / "model")
    write_model(folder / "model", words)
    for seed, name in enumerate(("one", "two")):
        write_adapter(folder / "adapters" / name, seed)
    for path in folder.rglob("*"):
        path.chmod(
            0o755 if path.is_dir() else 0o644
        )  # the engines' user reads it, and safetensors writes 0600


def write_tokenizer(folder: Path) -> dict[str, int]:
    """Bytes and a few pairs of them; the numbers of all tokens."""
    folder.mkdir(parents=True)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(SENTENCES, trainer)
    made.save(str(folder / "tokenizer.json"))
    bos, eos, pad = SPECIAL
    write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": bos,
            "eos_token": eos,
            "pad_token": pad,
            "model_max_length": CONTEXT,
        },
    )
    return dict(made.get_vocab())


def write_model(folder: Path, words: dict[str, int]) -> None:
    draw = np.random.default_rng(7)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Any:
        return (draw.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)

    ones = np.ones(HIDDEN, np.float32)
    head = matrix(VOCABULARY, HIDDEN, 3.0)
    head[len(words) :] = 0  # what stands for nothing is never said,
    head[[words[word] for word in SPECIAL]] = 0  # and nothing ends early
    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN, HIDDEN**0.5),
        "model.norm.weight": ones,
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        tensors |= {
            f"{prefix}input_layernorm.weight": ones,
            f"{prefix}post_attention_layernorm.weight": ones,
            f"{prefix}self_attn.q_proj.weight": matrix(HEADS * WIDTH, HIDDEN),
            f"{prefix}self_attn.k_proj.weight": matrix(KV_HEADS * WIDTH, HIDDEN),
            f"{prefix}self_attn.v_proj.weight": matrix(KV_HEADS * WIDTH, HIDDEN),
            f"{prefix}self_attn.o_proj.weight": matrix(HIDDEN, HEADS * WIDTH),
            f"{prefix}mlp.gate_proj.weight": matrix(FORWARD, HIDDEN),
            f"{prefix}mlp.up_proj.weight": matrix(FORWARD, HIDDEN),
            f"{prefix}mlp.down_proj.weight": matrix(HIDDEN, FORWARD),
        }
    safetensors.save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    bos, eos, pad = (words[word] for word in SPECIAL)
    ends = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}
    write(folder / "config.json", {**CONFIG, **ends})
    write(folder / "generation_config.json", ends)


def write_adapter(folder: Path, seed: int) -> None:
    """Strong enough that the likeliest word is another one."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(100 + seed)
    tensors = {}
    for layer in range(LAYERS):
        for module, rows in (("q_proj", HEADS * WIDTH), ("v_proj", KV_HEADS * WIDTH)):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            down = draw.standard_normal((RANK, HIDDEN)) / np.sqrt(HIDDEN)
            up = draw.standard_normal((rows, RANK)) * 4 / np.sqrt(RANK)
            tensors[f"{prefix}.lora_A.weight"] = down.astype(np.float32)
            tensors[f"{prefix}.lora_B.weight"] = up.astype(np.float32)
    safetensors.save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    write(folder / "adapter_config.json", {**PEFT, "base_model_name_or_path": "tiny"})


def write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
