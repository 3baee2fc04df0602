"""Writes a model directory that an engine can serve with dummy weights: two small layers and a byte-level tokenizer.

`scripts/real-vllm` runs it as a script; it needs nothing but Python. One token is one byte, so that a test knows how
long a prompt is: `len(prompt.encode())` tokens fill as many slots of the KV cache.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = ("<|end|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ 'assistant' if message['role'] == 'assistant' else 'user' }}|>"
    "{{ message['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_characters() -> list[str]:
    """Returns the 256 printable characters that byte-level BPE writes for the bytes 0 to 255 (the GPT-2 table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters, shifted = [], 0x100
    for byte in range(256):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(shifted))
            shifted += 1
    return characters


def vocabulary() -> dict[str, int]:
    """Returns token -> id: the bytes first, so that a byte is its own id, then the special tokens."""
    return {token: index for index, token in enumerate([*byte_characters(), *SPECIAL_TOKENS])}


def model_config() -> dict[str, Any]:
    """Returns config.json: a Llama of two layers, about 0.5 million parameters."""
    tokens = vocabulary()
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
        "vocab_size": len(tokens),
        "eos_token_id": tokens[SPECIAL_TOKENS[0]],
        "bos_token_id": None,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def tokenizer() -> dict[str, Any]:
    """Returns tokenizer.json: byte-level BPE without merges."""
    tokens = vocabulary()
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": tokens[token], "content": token, **added} for token in SPECIAL_TOKENS],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "unk_token": None, "vocab": tokens, "merges": []},
    }


def tokenizer_config() -> dict[str, Any]:
    """Returns tokenizer_config.json, which tells transformers how to wrap tokenizer.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[0],
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def write(directory: Path) -> None:
    """Writes the model directory, making it where it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": model_config(),
        "generation_config.json": {"eos_token_id": model_config()["eos_token_id"]},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": tokenizer_config(),
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
