"""Structured output: which tokens may come next so that the text matches a schema, a regex or rules."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from quire.core.errors import InputError
from quire.core.sampling import Grammar, GrammarSort
from quire.text.refusals import refusal_of
from quire.text.tokenizer import Tokenizer

_LOG = logging.getLogger("quire.text")
MOST_SAID = 120
"""Most characters of a message from llguidance about a tokenizer."""
COMPACT: Final[Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line: otherwise small models may generate endless blanks. A schema's own `x-guidance` wins."""
MOST_COMPILED = 64
"""Compiled grammars that are kept for later requests with the same grammar."""


class Constraint:
    """The state of one request in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def mask(self) -> npt.NDArray[np.int32]:
        """A bit per token, 32 to a word, the lowest first. If nothing may follow, only tokens that end the text."""
        return np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)

    def accept(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            raise InputError(
                f"token {token} is not allowed by the grammar here: {_one_line(self._matcher.get_error())}"
            )

    def is_done(self) -> bool:
        """Only an end can follow."""
        return bool(self._matcher.is_stopped())


class Grammars:
    """Compiles grammars for one tokenizer, and keeps one constraint per row, from which a sampler gets its masks."""

    def __init__(self, tokenizer: Tokenizer, on_failure: Callable[[int, str], None] | None = None) -> None:
        """If the tokenizer cannot be read, only grammars are unavailable; one warning reports it.
        `on_failure`: called with a row whose grammar cannot continue (it has become too large, say), and why; from then
        on only an end may follow. Without it the error is raised, and fails the step of all requests."""
        self.refusal = ""
        """Why no grammar can be compiled for this tokenizer; empty: they can."""
        try:
            self._tokenizer = LLTokenizer(tokenizer.inner.to_str(), eos_token=list(tokenizer.eos_token_ids) or None)
        except Exception as error:
            self.refusal = _unreadable(tokenizer.name, error)
            _LOG.warning(self.refusal)
        self._ends = _only(tokenizer.eos_token_ids, max(tokenizer.vocab_size, *tokenizer.eos_token_ids, 0) + 1)
        self._compiled: dict[Grammar, LLMatcher] = {}
        self._rows: dict[int, Constraint] = {}
        self._on_failure = on_failure

    def compile(self, grammar: Grammar) -> Constraint:
        """A new constraint at its beginning. Call it before submitting: it raises if the grammar cannot be used."""
        if self.refusal:
            raise InputError(self.refusal)
        if grammar not in self._compiled:
            matcher = LLMatcher(self._tokenizer, _source(grammar), log_level=0)
            if matcher.is_error():
                raise InputError(refusal_of(grammar, matcher.get_error()))
            if len(self._compiled) >= MOST_COMPILED:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[grammar] = matcher
        return Constraint(self._compiled[grammar].deep_copy())

    def enter(self, row: int, grammar: Grammar | None, output_tokens: Sequence[int] = ()) -> None:
        """The row belongs to another request now; a preempted one continues after the tokens it had generated."""
        self._rows.pop(row, None)
        if grammar is not None:
            self._rows[row] = self.compile(grammar)
            for token in output_tokens:
                self._rows[row].accept(int(token))

    def mask(self, row: int) -> npt.NDArray[np.int32]:
        return self._rows[row].mask() if row in self._rows else self._ends

    def accept(self, row: int, token: int) -> None:
        if row not in self._rows:
            return
        try:
            self._rows[row].accept(token)
        except InputError as error:
            if self._on_failure is None:
                raise
            del self._rows[row]
            self._on_failure(row, str(error))


def _unreadable(name: str, error: Exception) -> str:
    said = " ".join(str(error).split())
    said = said if len(said) <= MOST_SAID else said[: MOST_SAID - 1] + "…"
    return (
        f"grammars cannot be used with the tokenizer of {name or 'this model'}, which llguidance cannot read ({said}): "
        "ask without a response format or forced tools"
    )


def _only(tokens: Sequence[int], vocabulary_tokens: int) -> npt.NDArray[np.int32]:
    """The mask that allows only these tokens."""
    allowed = np.zeros(-(-vocabulary_tokens // 32) * 32, dtype=np.uint8)
    allowed[list(tokens)] = 1
    return np.packbits(allowed, bitorder="little").view(np.int32)


def _source(grammar: Grammar) -> str:
    makers: dict[GrammarSort, Callable[[str], str]] = {
        GrammarSort.JSON: _from_schema,
        GrammarSort.REGEX: LLMatcher.grammar_from_regex,
        GrammarSort.LARK: LLMatcher.grammar_from_lark,
    }
    return makers[GrammarSort(grammar.sort)](grammar.text)


def _from_schema(text: str) -> str:
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise InputError(f"the json grammar is not JSON: {error}; give a JSON schema") from None
    if not isinstance(schema, dict):
        raise InputError(f"the json grammar is a {type(schema).__name__}: give a JSON schema, an object")
    try:
        return LLMatcher.grammar_from_json_schema(schema, defaults=COMPACT)
    except ValueError as error:
        wrong = ascii(str(error)[:80])
        raise InputError(
            f"the json grammar cannot be used: {wrong}: give whole characters and numbers of 64 bits"
        ) from None


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip(" ^"))
