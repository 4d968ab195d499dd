"""Tokens in, text out as soon as it is certain: never half a character.

token ──▶ its text from a table, if no other token can change it
      └─▶ else the tokenizers library, which reads it together with the tokens before it: the first token of an
          answer, parts of characters, bytes, and every token of a tokenizer that joins tokens in other ways
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Any

import tokenizers
from tokenizers.decoders import DecodeStream

BYTE = re.compile("<0x..>", re.DOTALL)
"""A token that is one byte of a text: it is read together with the bytes around it."""
BROKEN = "\ufffd"
"""The sign for bytes that are no character, or not yet."""


class TokenTexts(dict[int, str | None]):
    """The text of each token that has the same one after all others; None: it depends on them. It is filled as tokens
    are looked up."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, skipped: Collection[int] = ()) -> None:
        """`skipped`: tokens without text."""
        super().__init__()
        self._tokenizer, self._skipped = tokenizer, skipped
        self._before: list[int] = tokenizer.encode("a", add_special_tokens=False).ids
        """Any text: tokens at the beginning of one may lose a blank."""
        self._is_known = bool(self._before) and tokenizer.decoder is not None and joins_texts(_form(tokenizer.decoder))

    def __missing__(self, token: int) -> str | None:
        self[int(token)] = text = "" if token in self._skipped else self._text(int(token))
        return text

    def _text(self, token: int) -> str | None:
        if not self._is_known or BYTE.fullmatch(self._tokenizer.id_to_token(token) or ""):
            return None
        before = self._decoded(self._before)
        whole = self._decoded([*self._before, token])
        text = whole.removeprefix(before)
        is_certain = whole.startswith(before) and text and BROKEN not in text
        return text if is_certain else None

    def _decoded(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False)


def joins_texts(decoder: dict[str, Any]) -> bool:
    """Whether the text of tokens is the texts of each, joined, apart from bytes, parts of characters and one blank at
    the beginning. `decoder`: as tokenizer.json has it."""
    if decoder["type"] in ("ByteLevel", "Metaspace"):
        return True
    if decoder["type"] != "Sequence":
        return False
    kinds = [part["type"] for part in decoder["decoders"]]
    whole = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)  # from here on, parts see the joined text
    each, after = decoder["decoders"][:whole], decoder["decoders"][whole + 1 :]
    return all(part["type"] in ("Replace", "ByteFallback") for part in each) and all(
        part["type"] == "Strip" and part["start"] <= 1 and part["stop"] == 0 for part in after
    )


def _form(decoder: tokenizers.decoders.Decoder) -> dict[str, Any]:
    form: dict[str, Any] = json.loads(decoder.__getstate__())
    return form


class TextStream:
    def __init__(self, tokenizer: tokenizers.Tokenizer, texts: TokenTexts) -> None:
        self._tokenizer, self._texts = tokenizer, texts
        self._stream: DecodeStream | None = DecodeStream(skip_special_tokens=False)
        """None: it would begin after `_shown`."""
        self._is_certain = False
        """There is text, and nothing of it is held back."""
        self._shown: list[int] = []
        """Tokens of the piece that was returned last."""
        self._held: list[int] = []
        """Tokens after it."""

    def feed(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete."""
        return "".join([self._next(token) for token in tokens])

    def certain(self, token: int) -> str:
        """As `feed` of this token, if the table has its text; empty, with nothing read, if it has not."""
        text = self._texts[token] if self._is_certain else None
        if not text:
            return ""
        self._stream, self._shown = None, [token]
        return text

    def _next(self, token: int) -> str:
        text = self._texts[token]
        if text is None or (text and not self._is_certain):
            return self._read(int(token))
        if text:
            self._stream, self._shown = None, [token]
        return text

    def _read(self, token: int) -> str:
        self._held.append(token)
        if self._stream is None:
            self._stream = DecodeStream(ids=self._shown, skip_special_tokens=False)
        try:
            text = self._stream.step(self._tokenizer, token) or ""
            self._is_certain = bool(text)
        except Exception:
            text = self._begin_anew()
        if text:
            self._shown, self._held = self._held, []
        return text

    def _begin_anew(self) -> str:
        """Byte-fallback tokenizers decode a run of bytes as a whole: characters that were returned may prove invalid
        later, which the stream does not accept. They stay, and the held tokens are decoded without them."""
        self._stream = stream = DecodeStream(skip_special_tokens=False)
        pieces = [stream.step(self._tokenizer, token) or "" for token in self._held]
        self._is_certain = bool(pieces[-1])
        return "".join(pieces)

    def finish(self) -> str:
        """What is still held back: half a character, as the sign for one. Nothing comes after it."""
        before, whole = self._decoded(self._shown), self._decoded(self._shown + self._held)
        text = whole[len(before) :] if whole.startswith(before) else self._decoded(self._held)
        self._held = []
        return text

    def _decoded(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False)
