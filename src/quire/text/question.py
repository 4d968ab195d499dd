"""One call: its prompts, how its tokens are chosen and how its answers are read. The engine's requests follow from it.

Question ─▶ requests: one for each sample of each prompt, in this order
         ─▶ answers: what reads each of them (`text/answer.py`)
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from quire.core.request import MOST_STOP_TOKENS, Request, Retain, Tokens
from quire.core.sampling import SEED_BITS, Sampling
from quire.text.answer import Answer
from quire.text.dialects.harmony import CHANNELS, Channels
from quire.text.reasoning import Reasoning, ReasoningMarks
from quire.text.tokenizer import Tokenizer
from quire.text.tools import NO_TOOLS, ToolUse

_MIX = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Fork:
    """Its prompt begins with another request's first `at` tokens."""

    parent: str
    at: int

    def recomputed(self, reused_tokens: int) -> int:
        """Tokens that are computed again, besides the last one, from which the next is sampled."""
        return max(0, self.at - 1 - reused_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    prompts: tuple[Tokens, ...]
    texts: tuple[str, ...]
    """The prompts as text."""
    max_tokens: tuple[int, ...]
    """The longest answer to each prompt."""
    sampling: Sampling
    samples: int = 1
    """Answers to each prompt."""
    tools: ToolUse = NO_TOOLS
    reasoning: ReasoningMarks | None = None
    """How reasoning is marked, to separate it from the answer; None: it is not separated."""
    priority: int = 0
    is_length_open: bool = False
    """The caller gave no length: `within` may shorten the answers."""
    stop_tokens: tuple[int, ...] = ()
    """Tokens that end an answer, besides those of the model."""
    is_prompt_alone: bool = False
    """Only log-probabilities of the prompt are wanted: the one token of each answer is left out."""
    retain: Retain | None = None
    """Prompt and answer are leased when the answer is complete; for one answer alone."""
    fork: Fork | None = None

    @property
    def request_count(self) -> int:
        return len(self.prompts) * self.samples

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)

    @property
    def tokens(self) -> int:
        """Tokens of all requests, prompts and longest outputs together."""
        return self.samples * (self.prompt_tokens + sum(self.max_tokens))

    def within(self, limit: int | None) -> Question:
        """The same with all tokens together within the limit, or one token for each answer, if its length is open."""
        if not self.is_length_open or limit is None or self.tokens <= limit:
            return self
        room = max(1, (limit // self.samples - self.prompt_tokens) // len(self.prompts))
        return replace(self, max_tokens=tuple(min(most, room) for most in self.max_tokens))

    def requests(
        self, names: Iterator[str], tokenizer: Tokenizer, tenant: str = "", scope: str = "", **more: Any
    ) -> list[Request]:
        """Each request draws from a random stream of its own. `more`: further fields of all of them."""
        more = {"retain": self.retain, **more}
        return [
            Request(
                next(names),
                prompt,
                most,
                priority=self.priority,
                stop_tokens=self._stop_tokens(tokenizer),
                scope=scope,
                tenant=tenant,
                sampling=self._sampling_of(sample),
                is_branch=self.samples > 1 or self.fork is not None,
                **more,
            )
            for prompt, most in zip(self.prompts, self.max_tokens, strict=True)
            for sample in range(self.samples)
        ]

    def _sampling_of(self, sample: int) -> Sampling:
        """Log-probabilities of a prompt come with its first sample."""
        own = with_seed(self.sampling, sample)
        return replace(own, prompt_logprobs=None) if sample else own

    def answers(self, tokenizer: Tokenizer) -> list[Answer]:
        return [
            Answer(
                tokenizer,
                self._stop_tokens(tokenizer),
                self.sampling.stop,
                self._splitter(text),
                self.tools.reader(),
            )
            for text in self.texts
            for _ in range(self.samples)
        ]

    def _splitter(self, prompt: str) -> Reasoning | Channels | None:
        if self.reasoning is None:
            return None
        return Channels() if self.reasoning == CHANNELS else Reasoning.after(prompt, self.reasoning)

    def _stop_tokens(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        ends = () if self.sampling.ignore_eos else tuple(tokenizer.eos_token_ids)
        return (*self.stop_tokens, *ends)[:MOST_STOP_TOKENS]


def with_seed(sampling: Sampling, sample: int = 0) -> Sampling:
    """The same for one of several samples of a prompt, each with a definite random stream of its own.

    A request that has its seed before it starts draws the same tokens again after a preemption.
    """
    if sampling.seed is None:
        return replace(sampling, seed=secrets.randbits(SEED_BITS))
    return replace(sampling, seed=(sampling.seed + sample * _MIX) % (1 << SEED_BITS))
