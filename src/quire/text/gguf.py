"""A tokenizer from a GGUF file's metadata: byte-level BPE (`tokenizer.ggml.model` gpt2) as tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from quire.core.errors import ModelError

_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens in GGUF; 1 is a normal one."""
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: dict[str, tuple[Any, ...]] = {
    "gpt-2": (pre_tokenizers.ByteLevel(add_prefix_space=False),),
    "smollm": (pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "llama-bpe": (
        pre_tokenizers.Split(Regex(_LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ),
    "qwen2": (
        pre_tokenizers.Split(Regex(_LLAMA3.replace("{1,3}", "")), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ),
}
"""How text is cut before merging, by `tokenizer.ggml.pre`."""
_LIKE_LLAMA3 = "llama-bpe"
"""Files of this sort rely on the behaviour of llama.cpp: texts begin with BOS unless the file says otherwise, and a
piece that is a token becomes that token, with or without merges."""


def tokenizer_of(fields: Mapping[str, Any]) -> Tokenizer:
    """What `Tokenizer.save` writes as tokenizer.json."""
    sort, split = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "gpt-2")
    if sort != "gpt2" or split not in _SPLITS:
        known = ", ".join(_SPLITS)
        raise ModelError(
            f"the file's tokenizer is {sort} / {split}; read are gpt2 with one of {known}: "
            "convert it beforehand and give a folder with tokenizer.json"
        )
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [_pair(merge) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split == _LIKE_LLAMA3))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(_SPLITS[split]))
    tokenizer.decoder = decoders.ByteLevel()
    types = fields.get("tokenizer.ggml.token_type", [1] * len(tokens))
    tokenizer.add_tokens([_added(token, False) for token, t in zip(tokens, types, strict=True) if t == _USER_DEFINED])
    tokenizer.add_special_tokens([_added(token, True) for token, t in zip(tokens, types, strict=True) if t == _CONTROL])
    if _adds_beginning(fields):
        number = fields["tokenizer.ggml.bos_token_id"]
        begun = [tokens[number], "$A"]
        tokenizer.post_processor = processors.TemplateProcessing(begun, special_tokens=[(tokens[number], number)])
    return tokenizer


def _adds_beginning(fields: Mapping[str, Any]) -> bool:
    """Whether texts begin with BOS. Chat templates write it themselves: their text is encoded without."""
    asked = fields.get("tokenizer.ggml.add_bos_token", fields.get("tokenizer.ggml.pre") == _LIKE_LLAMA3)
    return bool(asked) and "tokenizer.ggml.bos_token_id" in fields


def tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json: the special tokens by name, and the chat template."""
    tokens = fields["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": _adds_beginning(fields),
        "model_max_length": fields.get("llama.context_length"),
    }
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    for name, key in names.items():
        number = fields.get(f"tokenizer.ggml.{name}_token_id")
        if number is not None:
            config[key] = tokens[number]
    if "tokenizer.chat_template" in fields:
        config["chat_template"] = fields["tokenizer.chat_template"]
    return config


def _pair(merge: str) -> tuple[str, str]:
    left, right = merge.split(" ")
    return left, right


def _added(token: str, special: bool) -> AddedToken:
    return AddedToken(token, special=special, normalized=False)
