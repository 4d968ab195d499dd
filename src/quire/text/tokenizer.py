"""Text to tokens and back, from a model's folder: tokenizer.json, its settings and its chat template."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from quire.core.errors import ModelError
from quire.text.stream import TextStream, TokenTexts
from quire.text.templates import ChatTemplate

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        eos_token_ids: tuple[int, ...] = (),
        template: ChatTemplate | None = None,
        name: str = "",
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        """`name`: the name of its model, for messages. `special_tokens`: by name, such as eos_token."""
        self.inner, self.eos_token_ids, self.template, self.name = inner, eos_token_ids, template, name
        self.special_tokens = {token: (special_tokens or {}).get(token) for token in _SPECIAL}
        """None: the model has no such token."""
        self._texts: dict[frozenset[str] | None, TokenTexts] = {}
        """By marks to keep: texts without the other special tokens. None: with all of them."""

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        path = folder / "tokenizer.json"
        if not path.exists():
            raise ModelError(f"{folder} has no tokenizer.json: save the model's tokenizer there in its fast form")
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more special
            raise ModelError(f"{path} cannot be read as a tokenizer: {error}; save or fetch it again") from None
        inner.no_padding()
        inner.no_truncation()
        settings = _read(folder / "tokenizer_config.json")
        special = {name: _content(settings[name]) for name in _SPECIAL if settings.get(name)}
        text = _template_text(folder, settings)
        template = None if text is None else ChatTemplate(text, special)
        ends = _eos_token_ids(folder, inner, special.get("eos_token"))
        return cls(inner, ends, template, folder.resolve().name, special)

    @property
    def vocab_size(self) -> int:
        """Added tokens included. A model's logits may have more columns: they are padding."""
        return self.inner.get_vocab_size(with_added_tokens=True)

    @property
    def has_chat_template(self) -> bool:
        return self.template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """`add_special_tokens`: also those that the tokenizer adds around a text by itself, such as BOS."""
        return self.inner.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.inner.decode([int(token) for token in tokens], skip_special_tokens=skip_special_tokens)

    def stream(self, skip_special_tokens: bool = True, keep: Collection[str] = ()) -> TextStream:
        """`keep`: texts in which special tokens are not skipped, such as the marks of tool calls."""
        marks = frozenset(keep) if skip_special_tokens else None
        if marks not in self._texts:
            self._texts[marks] = TokenTexts(self.inner, frozenset() if marks is None else self._without_text(marks))
        return TextStream(self.inner, self._texts[marks])

    def _without_text(self, marks: Collection[str]) -> frozenset[int]:
        special = ((token.content, number) for number, token in self._added.items() if token.special)
        return frozenset(number for content, number in special if not any(content in text for text in marks))

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """The tokens outside of the vocabulary proper, special or not, by their text."""
        return {token.content: number for number, token in self._added.items()}

    @cached_property
    def _added(self) -> dict[int, tokenizers.AddedToken]:
        return self.inner.get_added_tokens_decoder()


def _template_text(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, or what tokenizer_config.json has; of several the one named default."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    value = settings.get("chat_template")
    if isinstance(value, list):
        value = {entry["name"]: entry["template"] for entry in value}.get("default")
    return value if isinstance(value, str) else None


def _eos_token_ids(folder: Path, inner: tokenizers.Tokenizer, token: str | None) -> tuple[int, ...]:
    """From generation_config.json, else config.json; the tokenizer's own end token is always included."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = _read(folder / name).get("eos_token_id")
        if value is not None and not found:
            found = list(value) if isinstance(value, list) else [value]
    own = inner.token_to_id(token) if token else None
    return tuple(dict.fromkeys(found if own is None else [*found, own]))


def _content(token: Any) -> str:
    """Special tokens are written plainly or as an object."""
    return str(token["content"] if isinstance(token, dict) else token)


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from None
    return value if isinstance(value, dict) else {}
