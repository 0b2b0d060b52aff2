"""A language model of a few hundred thousand numbers for real engines: it says nothing sensible, and the same each time.

    ENGINE/bin/python tests/e2e/tiny_model.py FOLDER

Run by an engine's own Python, which has the libraries for it; imported by nobody."""

import importlib
import sys
from typing import Any

WORDS = ["the quick brown fox jumps over the lazy dog", "hello world", "good morning to everybody here"]


def main(folder: str) -> None:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    tokenizers: Any = importlib.import_module("tokenizers")
    torch.manual_seed(7)
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(WORDS, vocab_size=512, min_frequency=1, special_tokens=["<s>", "</s>"])
    # A width of 32 a head is one that vLLM computes with on CPUs.
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer,
        bos_token="<s>",
        eos_token="</s>",
    )
    fast.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
