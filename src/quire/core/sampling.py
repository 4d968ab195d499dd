"""How the next token is chosen, as someone asks for it. Frozen, and checked when it is made."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace
from enum import Enum

from quire.core.errors import InputError

MOST_LOGPROBS = 100
SMALLEST_TEMPERATURE = 1e-5
"""Beside 0: logits divided by less do not fit into 32 bits."""
SEED_BITS = 63
_MIX = 0x9E3779B97F4A7C15


class GrammarSort(str, Enum):
    """What a grammar's text is written in."""

    JSON = "json"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an output must look like: a JSON schema, a regular expression, or rules in Lark's notation."""

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
    """temperature → top_k → top_p → min_p, each on what the one before left; biases and penalties come first."""

    temperature: float = 0.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    """The fewest likely tokens that have this much of the probability; 1 keeps all."""
    top_k: int = 0
    """The most likely tokens, so many; 0 keeps all."""
    min_p: float = 0.0
    """Tokens at least this likely relative to the most likely one; 0 keeps all."""
    presence_penalty: float = 0.0
    """Taken off the logits of tokens that were put out."""
    frequency_penalty: float = 0.0
    """The same, once for each time."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens that occur in prompt or output; 1 leaves them."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit)."""
    seed: int | None = None
    """Names the random stream: a token's chance depends on seed and position, never on who else runs."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these."""
    ignore_eos: bool = False
    min_tokens: int = 0
    """Stop tokens cannot come before so many."""
    logprobs: int | None = None
    """With each token its log-probability, and those of so many most likely ones; None: nothing."""
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

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    @property
    def allows_drafts(self) -> bool:
        """Whether the next token can be drawn without knowing which of the guesses before it came true: its chances
        depend on position and model alone, and nobody asks for more than the token."""
        asks_more = self.logprobs is not None or self.prompt_logprobs is not None
        return not (self.has_penalties or self.grammar or asks_more)

    def with_seed(self, sample: int = 0) -> Sampling:
        """The same for one of several samples of a prompt, each with a definite random stream of its own.

        A request that has its seed before it starts draws the same tokens again after a preemption.
        """
        if self.seed is None:
            return replace(self, seed=secrets.randbits(SEED_BITS))
        return replace(self, seed=(self.seed + sample * _MIX) % (1 << SEED_BITS))


def _between(name: str, value: float, least: float, most: float, hint: str = "") -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise InputError(f"{name} is {value}: give {least:g} to {most:g}{hint and f' ({hint})'}")


def _whole(name: str, value: int, hint: str = "") -> None:
    if value != int(value) or value < 0:
        raise InputError(f"{name} is {value}: give a whole number from 0 up{hint and f' ({hint})'}")
