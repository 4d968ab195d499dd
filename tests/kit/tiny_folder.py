"""A checkpoint of a few kilobytes: random weights, a tokenizer of every byte, a chat template. It answers at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

from quire.sweep import spread
from quire.worker.model.model import build
from quire.worker.support.tiny import tiny_config

SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MOST_TOKENS = 1024


def make_folder(folder: Path, head_width: int | None = None, layers: int | None = None) -> Path:
    """`head_width`: in heads as wide as this, and what they find counts: random matrices of this size leave a token
    nearly what it was."""
    config = tiny_config("llama")
    config.max_position_embeddings, config.head_dim = MOST_TOKENS, head_width or config.head_dim
    config.num_hidden_layers = layers or config.num_hidden_layers
    return save_folder(folder, config, is_spread=head_width is not None)


def save_folder(folder: Path, config: Any, is_spread: bool = True) -> Path:
    """Of a tiny configuration of any type; its vocabulary becomes the tokenizer's."""
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": TEMPLATE}))
    config.vocab_size = tokenizer.get_vocab_size()
    text = config.get_text_config(decoder=True)
    if hasattr(text, "vocab_size_per_layer_input"):
        text.vocab_size_per_layer_input = config.vocab_size
    config.bos_token_id = config.pad_token_id = config.eos_token_id = 0
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(config, torch.float32)
        (spread(model) if is_spread else model).save_pretrained(folder)
    return folder


def _tokenizer() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["the quick brown fox sees the lazy dog, and the dog sees the fox"] * 4, trainer)
    return tokenizer
