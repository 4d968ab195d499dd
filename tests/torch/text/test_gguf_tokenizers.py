"""Tokenizers from the metadata of GGUF files: both sorts, and each way to cut text."""

from __future__ import annotations

import random
from typing import Any

import pytest

from quire.core.errors import ModelError
from quire.text.gguf import ends_of, tokenizer_config, tokenizer_of
from quire.text.tokenizer import Tokenizer

WORDS = ["he", "ll", "llo", "▁he", "▁hello", "▁w", "or", "ld", "▁wor", "▁world", "▁▁", "▁▁▁▁", "ab", "abc", "bc", "ca"]
LETTERS = ["▁", *"abcdefghijklmnopqrstuvwxyz"]
MARKS = ["<unk>", "<s>", "</s>", "<start_of_turn>", "<end_of_turn>"]


def sentencepiece(**more: Any) -> dict[str, Any]:
    """Metadata of a small tokenizer: marks, bytes, words by falling score, letters, and an own token of spaces."""
    values = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*MARKS, *values, *WORDS, *LETTERS, "\n\n"]
    words = [-float(place) for place in range(len(WORDS))]
    scores = [0.0] * (len(MARKS) + 256) + words + [-100.0 - place for place in range(len(LETTERS))] + [-1000.0]
    types = [2, 3, 3, 3, 3] + [6] * 256 + [1] * (len(WORDS) + len(LETTERS)) + [4]
    return {
        "general.architecture": "gemma2",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"tokenizer.ggml.{name}": value for name, value in more.items()},
    }


def merged(text: str, fields: dict[str, Any]) -> list[str]:
    """SentencePiece's rule, one merge after another: the pair whose token has the highest score, the leftmost first."""
    scores = dict(zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.scores"], strict=True))
    pieces = list(text.replace(" ", "▁"))
    while True:
        pairs = [(scores[a + b], -place) for place, (a, b) in enumerate(zip(pieces, pieces[1:])) if a + b in scores]  # noqa: B905, RUF007
        if not pairs:
            return pieces
        place = -max(pairs)[1]
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]


@pytest.mark.parametrize("has_prefix", [True, False])
def test_sentencepiece_merges_by_score(has_prefix: bool) -> None:
    fields = sentencepiece(add_space_prefix=has_prefix)
    made, chance = tokenizer_of(fields), random.Random(0)
    for _ in range(200):
        text = "".join(
            chance.choice(("hello", " world", " ", "abc", "ca", "x", "  ")) for _ in range(chance.randint(1, 9))
        )
        expected = merged(" " + text if has_prefix else text, fields)
        assert made.encode(text, add_special_tokens=False).tokens == expected
        assert made.decode(made.encode(text).ids) == text


def test_characters_without_a_token_become_bytes_and_come_back() -> None:
    made = Tokenizer(tokenizer_of(sentencepiece(add_space_prefix=False)))
    text = "hello Füße\n\n你好 🤗\tworld"
    tokens = made.encode(text)
    assert made.decode(tokens) == text
    assert made.stream().feed(tokens) == text
    assert made.inner.encode("ü", add_special_tokens=False).tokens == ["<0xC3>", "<0xBC>"]


def test_marks_and_own_tokens_are_found_whole() -> None:
    made = tokenizer_of(sentencepiece(add_space_prefix=False))
    tokens = made.encode("<start_of_turn>hello\n\nworld<end_of_turn>", add_special_tokens=False).tokens
    assert tokens[0] == "<start_of_turn>"
    assert tokens[-1] == "<end_of_turn>"
    assert "\n\n" in tokens


@pytest.mark.parametrize(
    ("more", "ends"),
    [({}, ([1], [])), ({"add_bos_token": False}, ([], [])), ({"add_eos_token": True}, ([1], [2]))],
)
def test_texts_begin_and_end_as_the_file_says(more: dict[str, Any], ends: tuple[list[int], list[int]]) -> None:
    """Where it says nothing, with the beginning."""
    fields = sentencepiece(**more)
    made = tokenizer_of(fields)
    plain = made.encode("hello", add_special_tokens=False).ids
    assert made.encode("hello").ids == [*ends[0], *plain, *ends[1]]
    assert tokenizer_config(fields)["add_bos_token"] is bool(ends[0])


def test_marks_of_phi_3_take_the_line_end_after_them() -> None:
    """In its template each stands on a line of its own, and the model never saw these line ends."""
    text = "<start_of_turn>\nhello<end_of_turn>\n<s> world"
    expected = {
        "phi3": "<start_of_turn> ▁hello <end_of_turn> <s> ▁ ▁world",
        "llama": "<start_of_turn> ▁ <0x0A> he llo <end_of_turn> ▁ <0x0A> <s> ▁ ▁world",
    }
    for architecture, tokens in expected.items():
        made = tokenizer_of(sentencepiece() | {"general.architecture": architecture})
        found = made.encode(text, add_special_tokens=False).ids
        assert [made.id_to_token(number) for number in found] == tokens.split(" "), architecture


def test_a_turn_ends_where_its_mark_says_so() -> None:
    fields = sentencepiece()
    assert ends_of(fields) == [2, MARKS.index("<end_of_turn>")]
    assert ends_of({**fields, "tokenizer.ggml.eot_token_id": 3})[:2] == [2, 3]
    harmony = {"tokenizer.ggml.tokens": ["<|end|>", "<|return|>", "<|call|>"], "tokenizer.ggml.token_type": [3, 3, 3]}
    assert ends_of({**harmony, "tokenizer.ggml.eos_token_id": 1}) == [1, 2]
    assert ends_of({**harmony, "tokenizer.ggml.tokens": ["<|end|>", "a", "b"]}) == [0]


BYTES = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [chr(33 + place) for place in range(94)] + ["Ġ", "Ċ"],
    "tokenizer.ggml.merges": [],
}
TEXT = "HelloWorld's DON'T 12345  x\n\n/a"
PIECES = {
    "gpt-2": ["HelloWorld", "'s", "ĠDON", "'", "T", "Ġ12345", "Ġ", "Ġx", "Ċ", "Ċ", "/", "a"],
    "smollm": ["HelloWorld", "'s", "ĠDON", "'", "T", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx", "Ċ", "Ċ", "/", "a"],
    "refact": ["HelloWorld", "'s", "ĠDON", "'", "T", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx", "Ċ", "Ċ", "/", "a"],
    "llama-bpe": ["HelloWorld", "'s", "ĠDON", "'T", "Ġ", "123", "45", "Ġ", "Ġx", "ĊĊ", "/a"],
    "dbrx": ["HelloWorld", "'s", "ĠDON", "'T", "Ġ", "123", "45", "Ġ", "Ġx", "ĊĊ", "/a"],
    "qwen2": ["HelloWorld", "'s", "ĠDON", "'T", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx", "ĊĊ", "/a"],
    "tekken": ["Hello", "World", "'s", "ĠDON", "'T", "Ġ", "1", "2", "3", "4", "5", "Ġ", "Ġx", "ĊĊ", "/a"],
    "gpt-4o": ["Hello", "World's", "ĠDON'T", "Ġ", "123", "45", "Ġ", "Ġx", "ĊĊ", "/a"],
}


@pytest.mark.parametrize("split", PIECES)
def test_text_is_cut_as_the_file_names_it(split: str) -> None:
    made = tokenizer_of({**BYTES, "tokenizer.ggml.pre": split})
    assert [piece for piece, _ in made.pre_tokenizer.pre_tokenize_str(TEXT)] == PIECES[split]
    assert made.decode(made.encode(TEXT).ids) == TEXT


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            BYTES | {"tokenizer.ggml.pre": "chatglm-bpe"},
            "tokenizer is gpt2 / chatglm-bpe; read are llama, and gpt2 with",
        ),
        (BYTES | {"tokenizer.ggml.model": "t5"}, "tokenizer is t5 / gpt-2; read are llama"),
        (BYTES | {"tokenizer.ggml.tokens": []}, "has no tokens"),
        (BYTES | {"tokenizer.ggml.token_type": [1, 1]}, "has 96 tokens and 2 types of tokens"),
        (BYTES | {"tokenizer.ggml.merges": ["a b"]}, "tokens and merges do not fit each other: .*ab"),
        (BYTES | {"tokenizer.ggml.merges": ["ab"]}, "tokens and merges do not fit each other"),
        (sentencepiece(scores=None), "without a score for each token"),
        (sentencepiece(scores=[0.0]), "without a score for each token"),
        (sentencepiece(bos_token_id=9999), "the file's bos token is 9999, of "),
    ],
)
def test_a_tokenizer_that_would_be_a_guess_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        tokenizer_of(fields)
