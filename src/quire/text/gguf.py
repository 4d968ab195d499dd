"""A tokenizer from a GGUF file's metadata, as tokenizer.json.

tokenizer.ggml.model   gpt2    byte-level BPE; `tokenizer.ggml.pre` names how text is cut before merging
                       llama   SentencePiece's BPE (Llama 2, Mistral, Gemma, Phi 3): spaces are ▁, unknown characters
                               are bytes, and merges follow from the scores of tokens
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from quire.core.errors import ModelError

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
"""Types of tokens in GGUF."""
_SPACE = "▁"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"


def _by_case(ending: str, digits: str) -> str:
    """A word ends where a capital letter begins the next."""
    words = rf"{_BEFORE}{_UPPER}*{_LOWER}+{ending}|{_BEFORE}{_UPPER}+{_LOWER}*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"


def _cut(regex: str) -> tuple[Any, ...]:
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Split(Regex(regex), "isolated"), whole


_GPT2 = (pre_tokenizers.ByteLevel(add_prefix_space=False),)
_DIGITS = (pre_tokenizers.Digits(individual_digits=True), *_GPT2)
_SPLITS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("gpt-2", "phi-2"), _GPT2),
    **dict.fromkeys(("smollm", "refact", "starcoder"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "pixtral", "dbrx", "smaug-bpe"), _cut(_LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _cut(_LLAMA3.replace("{1,3}", ""))),
    "tekken": _cut(_by_case("", r"\p{N}")),
    **dict.fromkeys(("gpt-4o", "llama4"), _cut(_by_case(f"{_ENDING}?", r"\p{N}{1,3}"))),
}
"""How text is cut before merging, by `tokenizer.ggml.pre`."""
_LIKE_LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "pixtral", "tekken")
"""Files of these sorts rely on the behaviour of llama.cpp: texts begin with BOS unless the file says otherwise, and a
piece that is a token becomes that token, with or without merges."""
_SENTENCEPIECE, _GPT2_NAME = "llama", "gpt-2"
_PHI3, _TAKE_NONE = "phi3", ("<unk>", "<s>", "<|endoftext|>")
"""Phi 3's marks take the spaces and lines after them, but for these. No field says so."""
_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>")
"""Control tokens that end a turn: many files name another end, that of a text."""
_NO_END_WITH = ("<|end|>", "<|return|>")
"""The first ends a message, not the answer, where the second exists (gpt-oss)."""


def tokenizer_of(fields: Mapping[str, Any]) -> Tokenizer:
    """What `Tokenizer.save` writes as tokenizer.json."""
    require_known(fields)
    sort = fields.get("tokenizer.ggml.model")
    tokens = fields.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError("the file has no tokens (tokenizer.ggml.tokens): give a folder with tokenizer.json")
    types = fields.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise ModelError(f"the file has {len(tokens)} tokens and {len(types)} types of tokens: is it whole?")
    tokenizer = _sentencepiece(fields, tokens, types) if sort == _SENTENCEPIECE else _byte_level(fields, tokens)
    marked = list(zip(tokens, types, strict=True))
    takes_space = sort == _SENTENCEPIECE and fields.get("general.architecture") == _PHI3
    tokenizer.add_tokens([_added(token, False, takes_space) for token, kind in marked if kind == _USER_DEFINED])
    tokenizer.add_special_tokens([_added(token, True, takes_space) for token, kind in marked if kind == _CONTROL])
    _add_around(tokenizer, fields, tokens)
    return tokenizer


def require_known(fields: Mapping[str, Any]) -> None:
    """Refuses a tokenizer of another sort by its name."""
    sort, split = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", _GPT2_NAME)
    if sort != _SENTENCEPIECE and (sort != "gpt2" or split not in list(_SPLITS)):
        known = ", ".join(_SPLITS)
        raise ModelError(
            f"the file's tokenizer is {sort} / {split}; read are {_SENTENCEPIECE}, and gpt2 with one of {known}: "
            "convert it beforehand and give a folder with tokenizer.json"
        )


def _byte_level(fields: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    split = fields.get("tokenizer.ggml.pre", _GPT2_NAME)
    merges = [_pair(merge) for merge in fields.get("tokenizer.ggml.merges", ())]
    tokenizer = _bpe(tokens, merges, ignore_merges=split in _LIKE_LLAMA3)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(_SPLITS[split]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(fields: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    scores = fields.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise ModelError("the file's tokenizer is llama without a score for each token: is it whole?")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    normal = [number for number, kind in enumerate(types) if kind == _NORMAL]
    ordered = sorted(normal, key=lambda number: (-scores[number], number))
    unknown = _token(fields, "unknown")
    merges = _merges([tokens[number] for number in ordered], vocabulary)
    own = {} if unknown is None else {"unk_token": tokens[unknown]}
    tokenizer = _bpe(tokens, merges, fuse_unk=True, byte_fallback=True, **own)
    spaces, text = normalizers.Replace(" ", _SPACE), [decoders.Replace(_SPACE, " "), decoders.ByteFallback()]
    has_prefix = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
    before = [normalizers.Prepend(_SPACE), spaces] if has_prefix else [spaces]
    after = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence(before)
    tokenizer.decoder = decoders.Sequence([*text, decoders.Fuse(), *after])
    return tokenizer


def _bpe(tokens: Sequence[str], merges: list[tuple[str, str]], **options: Any) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate(tokens)}
    try:
        return Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **options))
    except Exception as error:  # tokenizers has no narrower one
        raise ModelError(f"the file's tokens and merges do not fit each other: {error}; download it again") from None


def _merges(ordered: Sequence[str], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the tokens with the highest scores first."""
    merges: list[tuple[str, str]] = []
    for token in ordered:
        pairs = ((token[:place], token[place:]) for place in range(1, len(token)))
        merges += [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
    return merges


def _add_around(tokenizer: Tokenizer, fields: Mapping[str, Any], tokens: Sequence[str]) -> None:
    begin, end = _token(fields, "bos") if _adds_beginning(fields) else None, None
    if fields.get("tokenizer.ggml.add_eos_token"):
        end = _token(fields, "eos")
    special = [(tokens[number], number) for number in (begin, end) if number is not None]
    if special:
        first = [tokens[begin]] if begin is not None else []
        last = [tokens[end]] if end is not None else []
        tokenizer.post_processor = processors.TemplateProcessing([*first, "$A", *last], special_tokens=special)


def _token(fields: Mapping[str, Any], name: str) -> int | None:
    """The number of a special token; None: the file has none of that name."""
    number, count = fields.get(f"tokenizer.ggml.{name}_token_id"), len(fields["tokenizer.ggml.tokens"])
    if number is not None and not (isinstance(number, int) and 0 <= number < count):
        raise ModelError(f"the file's {name} token is {number}, of {count} tokens: is it whole?")
    return number


def _adds_beginning(fields: Mapping[str, Any]) -> bool:
    """Whether texts begin with BOS. Chat templates write it themselves: their text is encoded without."""
    usual = fields.get("tokenizer.ggml.pre") in _LIKE_LLAMA3 or fields.get("tokenizer.ggml.model") == _SENTENCEPIECE
    return bool(fields.get("tokenizer.ggml.add_bos_token", usual)) and "tokenizer.ggml.bos_token_id" in fields


def ends_of(fields: Mapping[str, Any]) -> list[int]:
    """Tokens that end an answer: those that the file names, and control tokens that are known to."""
    named = [_token(fields, name) for name in ("eos", "eot", "eom")]
    tokens = fields["tokenizer.ggml.tokens"]
    types = fields.get("tokenizer.ggml.token_type", ())
    control = {
        tokens[number]: number for number, kind in enumerate(types) if kind == _CONTROL and tokens[number] in _ENDS
    }
    message, answer = _NO_END_WITH
    if answer in control:
        control.pop(message, None)
    return list(dict.fromkeys(number for number in (*named, *sorted(control.values())) if number is not None))


def tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json: the special tokens by name, and the chat template."""
    tokens = fields["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": _adds_beginning(fields),
        "model_max_length": fields.get(f"{fields.get('general.architecture')}.context_length"),
    }
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    for name, key in names.items():
        number = _token(fields, name)
        if number is not None:
            config[key] = tokens[number]
    if "tokenizer.chat_template" in fields:
        config["chat_template"] = fields["tokenizer.chat_template"]
    return config


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _added(token: str, special: bool, takes_space: bool) -> AddedToken:
    return AddedToken(token, special=special, normalized=False, rstrip=takes_space and token not in _TAKE_NONE)
