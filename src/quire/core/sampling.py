"""Sampling parameters of a request. Frozen, and checked on construction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from quire.core.errors import InputError

MOST_LOGPROBS = 100
SMALLEST_TEMPERATURE = 1e-5
"""Smallest temperature other than 0: logits divided by less do not fit into 32 bits."""
SEED_BITS = 63


class GrammarSort(str, Enum):
    """The notation of a grammar's text."""

    JSON = "json"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the output: a JSON schema, a regular expression, or rules in Lark's notation."""

    sort: GrammarSort
    text: str

    def __post_init__(self) -> None:
        sorts = [sort.value for sort in GrammarSort]
        if self.sort not in sorts:
            raise InputError(f"a grammar of sort {self.sort!r} is not known: give one of {', '.join(sorts)}")
        if not self.text:
            raise InputError(f"the {GrammarSort(self.sort).value} grammar is empty: give its text, or no grammar")


@dataclass(frozen=True, slots=True)
class Sampling:
    """Order: biases and penalties, then temperature → top_k → top_p → min_p, each on the result of the one before."""

    temperature: float = 0.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    """The smallest set of most likely tokens whose probabilities sum to this; 1 keeps all."""
    top_k: int = 0
    """Keeps the `top_k` most likely tokens; 0 keeps all."""
    min_p: float = 0.0
    """Tokens at least this likely relative to the most likely one; 0 keeps all."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that were generated."""
    frequency_penalty: float = 0.0
    """The same, once for each occurrence."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output; 1 changes nothing."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit)."""
    seed: int | None = None
    """Selects the random stream: draws depend on seed and position, never on other requests."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these."""
    ignore_eos: bool = False
    min_tokens: int = 0
    """Stop tokens are masked until this many tokens are generated."""
    logprobs: int | None = None
    """Report each token's log-probability, and those of the N most likely tokens; None: no log-probabilities."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt, from the second on."""
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        _between("temperature", self.temperature, 0, 100)
        _between("top_p", self.top_p, 0, 1, "1 keeps all tokens")
        _between("min_p", self.min_p, 0, 1, "0 keeps all tokens")
        _between("presence_penalty", self.presence_penalty, -2, 2)
        _between("frequency_penalty", self.frequency_penalty, -2, 2)
        _between("repetition_penalty", self.repetition_penalty, 0.01, 100, "1 is none")
        _whole("top_k", self.top_k, "0 keeps all tokens")
        _whole("min_tokens", self.min_tokens, "0 lets the output end at once")
        if 0 < self.temperature < SMALLEST_TEMPERATURE:
            raise InputError(
                f"temperature is {self.temperature:g}, too small to divide by: give at least {SMALLEST_TEMPERATURE:g}, "
                "or 0 for the most likely token"
            )
        if self.top_p == 0:
            raise InputError(
                "top_p is 0, which keeps no token: give more than 0, or temperature 0 for the most likely one"
            )
        self._check_lists()
        self._check_seed()
        if self.grammar and self.min_tokens:
            raise InputError(
                f"min_tokens is {self.min_tokens} beside a grammar, which says itself when it ends: leave one out"
            )

    def _check_lists(self) -> None:
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                _between(name, count, 0, MOST_LOGPROBS)
        if "" in self.stop:
            raise InputError(f"stop string {self.stop.index('') + 1} of {len(self.stop)} is empty: leave it out")
        for token, bias in self.logit_bias:
            _whole("a token of logit_bias", token)
            _between(f"the logit_bias of token {token}", bias, -100, 100)

    def _check_seed(self) -> None:
        if self.seed is not None and not 0 <= self.seed < 1 << SEED_BITS:
            raise InputError(f"seed is {self.seed}: give 0 to {(1 << SEED_BITS) - 1}, or none for a random one")

    def require_known_biases(self, vocabulary_tokens: int) -> None:
        """Raises if a bias is for a token that the model does not have."""
        beyond = [token for token, _ in self.logit_bias if token >= vocabulary_tokens]
        if beyond:
            raise InputError(
                f"logit_bias names token {beyond[0]}: the model's tokens are 0 to {vocabulary_tokens - 1:,}"
            )

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    @property
    def allows_drafts(self) -> bool:
        """Whether the next token can be sampled before it is known which drafts are accepted: its probabilities depend
        on position and model alone, and the request wants no log-probabilities."""
        asks_more = self.logprobs is not None or self.prompt_logprobs is not None
        return not (self.has_penalties or self.grammar or asks_more)


def _between(name: str, value: float, least: float, most: float, hint: str = "") -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise InputError(f"{name} is {value}: give {least:g} to {most:g}{hint and f' ({hint})'}")


def _whole(name: str, value: int, hint: str = "") -> None:
    if value != int(value) or value < 0:
        raise InputError(f"{name} is {value}: give a whole number from 0 up{hint and f' ({hint})'}")
