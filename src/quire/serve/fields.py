"""Fields of other servers' APIs that Quire does not have, and which of their values leave the answer as it is.

A field with such a value is left out of the body and named in the answer's header `x-quire-ignored`; with any other
value it is refused by name. With `--strict-fields` all of them are refused. docs/operations.md has the same table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

ANY: Final = object()
"""Every value: the field cannot change an answer."""
Neutral = Mapping[str, tuple[Any, ...]]
"""By field: the values that change nothing, besides null."""

SAMPLED: Neutral = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "best_of": (1,),
    "detokenize": (True,),
    "early_stopping": (False,),
    "guided_decoding_backend": (ANY,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "no_stop_trim": (False,),
    "prompt_cache_key": (ANY,),
    "prompt_cache_retention": (ANY,),
    "request_id": (ANY,),
    "return_hidden_states": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "rid": (ANY,),
    "safety_identifier": (ANY,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "use_beam_search": (False,),
}
CHAT: Neutral = {
    **SAMPLED,
    "add_special_tokens": (False,),
    "documents": ([],),
    "echo": (False,),
    "include_reasoning": (True,),
    "modalities": (["text"],),
    "prediction": (ANY,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "verbosity": ("low", "medium", "high"),
}
COMPLETION: Neutral = {**SAMPLED, "add_special_tokens": (True,), "suffix": ("",)}
STREAM_OPTIONS: Neutral = {"include_obfuscation": (ANY,)}
STRUCTURED: Neutral = {
    "backend": (ANY,),
    "disable_additional_properties": (False,),
    "disable_any_whitespace": (False,),
    "disable_fallback": (False,),
}
MESSAGE: Neutral = {"annotations": (ANY,), "id": (ANY,)}
PART: Neutral = {"annotations": (ANY,)}


class Ignored:
    """Fields that were left out of one request's body."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.names: dict[str, None] = {}

    def header(self) -> str:
        return ", ".join(self.names)


_CURRENT: ContextVar[Ignored | None] = ContextVar("ignored", default=None)


@contextmanager
def noting_ignored(ignored: Ignored) -> Iterator[None]:
    """Bodies that are checked here leave the names of their ignored fields in `ignored`."""
    token = _CURRENT.set(ignored)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def note_ignored(name: str) -> None:
    """For a field that has no effect with this model."""
    ignored = _CURRENT.get()
    if ignored is not None:
        ignored.names[name] = None


def without_neutral(body: Any, known: Collection[str], neutral: Neutral, place: str) -> Any:
    """The body without unknown fields that change nothing. `place`: where the body lies, such as `messages.`."""
    ignored = _CURRENT.get()
    if not isinstance(body, dict) or (ignored is not None and ignored.strict):
        return body
    left_out = [name for name in body if name not in known and _is_neutral(body[name], neutral.get(name, ()))]
    if not left_out:
        return body
    if ignored is not None:
        ignored.names.update((_shown(place + name), None) for name in left_out)
    return {name: value for name, value in body.items() if name not in left_out}


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """True and 1 are different values in JSON, 1 and 1.0 are not."""
    return (
        value is None
        or ANY in neutral
        or any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)
    )


def _shown(name: str) -> str:
    """As a header may have it: a name comes from the client."""
    return re.sub(r"[^A-Za-z0-9._-]", "?", name[:64])
