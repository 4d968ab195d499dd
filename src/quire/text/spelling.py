"""Single tokens as text and as bytes, for log-probabilities. A token may be part of a character; bytes are exact."""

from __future__ import annotations

from quire.text.tokenizer import Tokenizer


class Spelling:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._letters = _byte_letters() if "ByteLevel" in repr(tokenizer.inner.decoder) else {}
        self._texts: dict[int, str] = {}
        """Of tokens that were spelled before: at most the vocabulary."""

    def text(self, token: int) -> str:
        """Part of a character is shown as the sign for one."""
        if token not in self._texts:
            self._texts[token] = self._tokenizer.decode([token], skip_special_tokens=False)
        return self._texts[token]

    def bytes(self, token: int) -> list[int]:
        written = self._tokenizer.inner.id_to_token(token) or ""
        if written and all(letter in self._letters for letter in written):
            return [self._letters[letter] for letter in written]
        return list(self.text(token).encode())


def _byte_letters() -> dict[str, int]:
    """Byte-level tokenizers write each byte as a letter: itself where it is printable, else the next one from 256."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(b): b for b in seen} | {chr(256 + place): b for place, b in enumerate(hidden)}
