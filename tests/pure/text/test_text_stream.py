"""Text from a table of tokens is the text that the tokenizers library streams, whatever the tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

from examples import examples
from quire.text.stream import TokenTexts, joins_texts
from quire.text.tokenizer import Tokenizer

BYTES = [0x0A, 0x20, 0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xEF, 0xBF, 0xBD, 0xFF]
PIECES = ["▁", "▁▁", "▁a", "a", "b", "▁é", "c▁d", "##e", "f</w>", ".", "\ufffd", "\u0301", "x\ufffd"]
MARKS = ["<s>", "<tool>"]
ADDED = ["<plain added>", "▁added"]
STRIPPED = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
DECODERS: dict[str, Any] = {
    "llama": decoders.Sequence(STRIPPED),
    "gemma": decoders.Sequence(STRIPPED[:3]),
    "metaspace": decoders.Metaspace(),
    "metaspace without a blank": decoders.Metaspace(prepend_scheme="never"),
    "word pieces": decoders.WordPiece(),
    "words": decoders.BPEDecoder(),
    "replaces across tokens": decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "!")]),
    "none": None,
}
TABLED = {"bytes", "llama", "gemma", "metaspace", "metaspace without a blank"}


def made(name: str) -> tokenizers.Tokenizer:
    """A tokenizer with this decoder."""
    if name == "bytes":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        names = [*alphabet, "Ġa", "Ã©", "ĠÃ", "âĤ", "¬a", "ï¿½", "a©"]
        inner = tokenizers.Tokenizer(models.BPE({token: place for place, token in enumerate(names)}, []))
        inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    else:
        names = [*PIECES, *(f"<0x{byte:02X}>" for byte in BYTES)]
        inner = tokenizers.Tokenizer(models.BPE({token: place for place, token in enumerate(names)}, []))
        if DECODERS[name] is not None:
            inner.decoder = DECODERS[name]
    inner.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    inner.add_tokens(ADDED)
    return inner


INNER = {name: made(name) for name in ("bytes", *DECODERS)}


class LibraryStream:
    """The text of the library's own stream, with each token read after the ones before it."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, skipped: Iterable[int]) -> None:
        self._tokenizer, self._skipped = tokenizer, set(skipped)
        self._stream = DecodeStream(skip_special_tokens=False)
        self._shown: list[int] = []
        self._held: list[int] = []

    def feed(self, token: int) -> str:
        if token in self._skipped:
            return ""
        self._held.append(token)
        try:
            text = self._stream.step(self._tokenizer, token)
        except Exception:  # a run of bytes that proves to be no text
            self._stream = DecodeStream(skip_special_tokens=False)
            text = "".join(self._stream.step(self._tokenizer, held) or "" for held in self._held)
        if text:
            self._shown, self._held = self._held, []
        return text or ""

    def finish(self) -> str:
        before, whole = self._decoded(self._shown), self._decoded(self._shown + self._held)
        return whole[len(before) :] if whole.startswith(before) else self._decoded(self._held)

    def _decoded(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False)


@pytest.mark.law
@pytest.mark.parametrize("name", INNER)
@examples(400)
@given(data=st.data(), marks=st.sampled_from([(), (MARKS[1],), None]))
def test_a_stream_gives_the_same_pieces_as_the_library(name: str, data: st.DataObject, marks: Any) -> None:
    """After each token, with any special tokens left out or kept; a token without a name has no text."""
    inner = INNER[name]
    tokens = data.draw(st.lists(st.integers(0, inner.get_vocab_size() + 1), max_size=30))
    special = [inner.token_to_id(mark) for mark in MARKS]
    skipped = [] if marks is None else [one for one in special if inner.id_to_token(one) not in marks]
    stream = Tokenizer(inner).stream(skip_special_tokens=marks is not None, keep=marks or ())
    library = LibraryStream(inner, skipped)
    assert [stream.feed([token]) for token in tokens] == [library.feed(token) for token in tokens]
    assert stream.finish() == library.finish()


@pytest.mark.parametrize("name", INNER)
def test_a_table_has_the_tokens_whose_text_no_other_token_changes(name: str) -> None:
    """Most of a vocabulary, where the decoder joins texts; else none."""
    texts = TokenTexts(INNER[name])
    known = {token: text for token in range(INNER[name].get_vocab_size()) if (text := texts[token]) is not None}
    assert bool(known) == (name in TABLED)
    assert not any("\ufffd" in text for text in known.values())
    if name in ("llama", "gemma", "metaspace"):
        assert known[INNER[name].token_to_id("▁a")] == " a"
        assert known[INNER[name].token_to_id("▁")] == " "
    if name in ("llama", "gemma"):
        assert not any(INNER[name].token_to_id(f"<0x{byte:02X}>") in known for byte in BYTES)


@pytest.mark.parametrize(("start", "stop", "joins"), [(0, 0, True), (1, 0, True), (2, 0, False), (0, 1, False)])
def test_a_decoder_that_strips_more_than_a_first_blank_has_no_table(start: int, stop: int, joins: bool) -> None:
    """It could strip more than one token at the beginning, or the newest token, which is not the last."""
    strip = {"type": "Strip", "content": " ", "start": start, "stop": stop}
    assert joins_texts({"type": "Sequence", "decoders": [{"type": "Fuse"}, strip]}) == joins
