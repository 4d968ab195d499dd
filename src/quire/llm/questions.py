"""Makes questions of the calls of an `LLM`: prompts of every form, conversations, tools, schemas, lengths."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.core.errors import InputError
from quire.core.request import Retain, Tokens
from quire.core.sampling import Grammar, Sampling
from quire.text.dialects.calls import Tool
from quire.text.next_turn import Ahead, Spoken
from quire.text.prompts import Prompts
from quire.text.question import Fork, Question
from quire.text.templates import Message
from quire.text.tools import NO_TOOLS, ToolUse

if TYPE_CHECKING:
    from quire.build.engine import BuiltEngine

Prompt = str | Sequence[int] | Sequence[Message]
"""Text, token numbers, or a conversation: messages with `role` and `content`."""
_LOG = logging.getLogger("quire.llm")


@dataclass(frozen=True, slots=True)
class Options:
    """What the prompts of one call have in common."""

    max_tokens: int
    samples: int = 1
    priority: int = 0
    retain_seconds: float | None = None

    @property
    def retain(self) -> Retain | None:
        return None if self.retain_seconds is None else Retain(self.retain_seconds)

    def __post_init__(self) -> None:
        if self.retain_seconds is not None:
            require_seconds(self.retain_seconds, "retain")
            if self.samples > 1:
                raise InputError(f"retain is for one answer, and n is {self.samples}: leave one of them out")
        if self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}: ask for at least 1")
        if self.samples < 1:
            raise InputError(f"n is {self.samples}: ask for at least 1 sample of each prompt")


class Questions:
    """Raises if a prompt could not run: a grammar that cannot be compiled, a token that the model does not have."""

    def __init__(self, parts: BuiltEngine) -> None:
        self._prompts = Prompts(parts.tokenizer, parts.vocabulary_tokens, parts.options.tool_dialect)
        self._grammars, self._longest = parts.grammars, parts.plan.max_length
        self._has_warned = False
        is_on = parts.options.has_next_turn and not parts.plan.no_reuse_because
        self.ahead = Ahead(self._prompts, is_on, _LOG.warning)

    def plain(self, prompt: Prompt, raw: bool, sampling: Sampling, options: Options) -> Question:
        return self._question(*self._read(prompt, raw), sampling, options)

    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        options: Options,
        tools: ToolUse = NO_TOOLS,
        switches: Mapping[str, Any] | None = None,
    ) -> Question:
        text = self._prompts.render(messages, tools.tools, switches)
        reasoning = self._prompts.reasoning if sampling.grammar is None else None
        tokens = self._prompts.known(self._prompts.encode(text, False))
        reading: dict[str, Any] = {"tools": tools, "reasoning": reasoning}
        if self.ahead.is_on and options.samples == 1:
            spoken = Spoken(tuple(messages), tuple(tools.tools), switches, text, tokens)
            reading |= {"spoken": spoken, "points": self.ahead.points(spoken)}
        return self._question(tokens, text, sampling, options, **reading)

    def fork(
        self, parent: str, tokens: Tokens, append: str | Sequence[int], sampling: Sampling, options: Options
    ) -> Question:
        """A question that continues these tokens of another request, and then `append`."""
        after = self._prompts.encode(append, False) if isinstance(append, str) else append
        more = self._prompts.known(after) if len(after) else tokens[:0]
        prompt = np.concatenate([tokens, more])
        return self._question(prompt, "", sampling, options, fork=Fork(parent, len(tokens)))

    def tool_use(
        self, tools: Sequence[Tool], choice: str | Mapping[str, Any], parallel: bool
    ) -> tuple[ToolUse, Grammar | None]:
        """The tools that an answer may call, and the grammar of its call if it must."""
        use = self._prompts.tool_use(tools, choice, parallel)
        return use, use.grammar(self._prompts.tokenizer.added_tokens)

    def count(self, prompt: Prompt, raw: bool) -> int:
        return len(self._read(prompt, raw)[0])

    def tokens(self, prompt: Prompt, raw: bool) -> Tokens:
        return self._prompts.known(self._read(prompt, raw)[0])

    def _question(
        self, tokens: Sequence[int] | Tokens, text: str, sampling: Sampling, options: Options, **reading: Any
    ) -> Question:
        sampling.require_known_biases(self._prompts.vocabulary_tokens)
        if sampling.grammar is not None:
            self._grammars.compile(sampling.grammar)
        prompt = self._prompts.known(tokens)
        length = self._length(len(prompt), options.max_tokens)
        reading = {"priority": options.priority, "retain": options.retain, **reading}
        return Question((prompt,), (text,), (length,), sampling, options.samples, **reading)

    def _read(self, prompt: Prompt, raw: bool) -> tuple[Sequence[int] | Tokens, str]:
        """Its tokens, and its text where it has one."""
        require_prompts([prompt])
        if isinstance(prompt, str):
            if raw or not self._prompts.tokenizer.has_chat_template:
                return self._prompts.encode(prompt), prompt
            prompt = [{"role": "user", "content": prompt}]
        elif not len(prompt) or not isinstance(prompt[0], Mapping):
            return prompt, ""  # type: ignore[return-value]
        text = self._prompts.render(prompt)  # type: ignore[arg-type]
        return self._prompts.encode(text, False), text

    def _length(self, prompt_tokens: int, max_tokens: int) -> int:
        """Length of the answer: as requested, or what is left. If nothing is, the engine refuses, with its numbers."""
        left = max(1, self._longest - prompt_tokens)
        if left < max_tokens and prompt_tokens < self._longest and not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                f"max_tokens is {max_tokens:,}, and after a prompt of {prompt_tokens:,} tokens {left:,} fit (the "
                f"longest request has {self._longest:,}): the answer is cut to that; this is logged once, others may "
                "be cut as well"
            )
        return min(max_tokens, left)


def require_seconds(seconds: float, name: str) -> None:
    if not 0 < seconds < math.inf:
        raise InputError(f"{name} is {seconds}: give the seconds that the lease lasts, above 0")


def require_prompts(prompts: Sequence[Prompt]) -> None:
    """Raises if a single prompt is given instead of a list."""
    for prompt in prompts:
        if isinstance(prompt, Mapping) or not hasattr(prompt, "__len__"):
            raise InputError(
                f"a prompt is text, a list of token numbers or a list of messages, and this one is {prompt!r:.80}: "
                "generate takes a list of prompts, so give a single one as [[…]]"
            )


def one_for_each(sampling: Sampling | Sequence[Sampling] | None, prompts: int) -> Sequence[Sampling]:
    if sampling is None or isinstance(sampling, Sampling):
        return [sampling or Sampling()] * prompts
    if not isinstance(sampling, Sequence) or not all(isinstance(one, Sampling) for one in sampling):
        raise InputError(f"sampling is {sampling!r}: give a Sampling, or one for each prompt; lengths are max_tokens=")
    if len(sampling) != prompts:
        raise InputError(f"{len(sampling)} samplings for {prompts} prompts: give one for all, or one for each")
    return sampling
