"""What an `LLM` answers: a completion for each sample of each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.core.errors import InputError
from quire.core.logprobs import Logprob
from quire.engine.engine import Engine, Stream
from quire.explain.events import reused_tokens
from quire.explain.leases import LeaseReport, outcome
from quire.llm.schema import Schema, parse
from quire.text.answer import Answer, Delta, join_deltas
from quire.text.dialects.calls import ToolCall
from quire.text.next_turn import Ahead, NextTurn, Spoken
from quire.text.spelling import Spelling

REFUSED, FAILED = "refused", "failed"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The model's log-probability of a token at its position."""

    text: str
    token: int
    logprob: float
    rank: int
    """1: no other token was likelier there."""
    top: tuple[TokenLogprob, ...] = ()
    """The likeliest tokens, as many as were requested, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    token_ids: tuple[int, ...]
    ending: str
    """stop, length or tool_calls; "refused": it could not run; "failed": it could not continue, and `text` is the
    answer so far."""
    prompt_tokens: int
    """0 if it was refused."""
    reused_tokens: int
    """Tokens of the prompt that were found in the cache or loaded from a tier."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each of `token_ids`, if the sampling requests them."""
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each token of the prompt from the second on, if the sampling requests them."""
    error: str = ""
    """Why it was refused or failed, or why there is nothing in `parsed`."""
    reasoning: str = ""
    """Of `chat`: what the model wrote between its marks of reasoning, such as <think> and </think>."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Of `chat` with tools."""
    parsed: Any = None
    """With a schema: the object that `text` represents, validated if the schema is a pydantic model."""
    lease: LeaseReport | None = None
    """With `retain`: the lease of prompt and answer, or why it was not granted."""
    id: str = field(default="", compare=False)
    """Of the request, for `LLM.fork`; empty if it was refused. Equal answers of two requests are equal."""

    @property
    def recomputed_tokens(self) -> int:
        """Tokens of the prompt that were computed, besides the last one, from which the first output is sampled. Of a
        fork: tokens of its parent that were computed again."""
        return max(0, self.prompt_tokens - 1 - self.reused_tokens)

    @property
    def message(self) -> dict[str, Any]:
        """The assistant's message, to continue the conversation."""
        calls = {"tool_calls": [call.message_part for call in self.tool_calls]} if self.tool_calls else {}
        return {"role": "assistant", "content": self.text, **calls}


class Generation:
    """One request in progress: the engine's stream, and the answer made from it."""

    def __init__(self, engine: Engine, stream: Stream, answer: Answer, spoken: Spoken | None = None) -> None:
        """`spoken`: the conversation that it answers, if its next turn is to be expected."""
        self._engine, self._stream, self._answer, self._spoken = engine, stream, answer, spoken
        self._deltas: list[Delta] = []
        self._given = 0
        self._reused: int | None = None

    @property
    def name(self) -> str:
        return self._stream.request.name

    @property
    def failure(self) -> str:
        return self._stream.failure

    def raise_failure(self) -> None:
        if self.failure:
            raise InputError(self.failure)

    @property
    def is_over(self) -> bool:
        return bool(self._answer.ending)

    def read(self) -> None:
        """Takes what was generated since the last call."""
        if self.is_over:
            return
        ended, begin = self._stream.ending, len(self._stream.request.prompt) + self._answer.output_tokens
        tokens = self._stream.take().tolist()
        if self._reused is None and (ended is not None or tokens):
            self._reused = self._found()  # while the history has it: later requests displace it
        ending = "" if ended is None else FAILED if self.failure else ended.value
        delta = self._answer.feed(tokens, self._logprobs(begin, len(tokens)), ending)
        if not delta.is_empty:
            self._deltas.append(delta)
        if self.is_over and ended is None:
            self._engine.cancel(self.name)

    def take(self) -> Delta:
        """What was read since the last call."""
        deltas, self._given = self._deltas[self._given :], len(self._deltas)
        return join_deltas(deltas)

    @property
    def whole(self) -> Delta:
        """All that was read."""
        return join_deltas(self._deltas)

    def next_turn(self, ahead: Ahead) -> NextTurn | None:
        """How the conversation goes on after a complete answer; None: it is not known, or it failed."""
        return None if self._spoken is None or self.failure else ahead.after(self._spoken, self.whole)

    def completion(self, first: Generation, spelling: Spelling, schema: Schema | None = None) -> Completion:
        """`first`: of the samples of this prompt, the one that has the log-probabilities of the prompt itself."""
        request, whole = self._stream.request, self.whole
        parsed, error = (None, "") if schema is None or self.failure else parse(schema, whole)
        return Completion(
            whole.text,
            whole.tokens,
            whole.ending,
            len(request.prompt),
            self._reused or 0,
            None if request.sampling.logprobs is None else _token_logprobs(whole.logprobs, spelling),
            first._prompt_logprobs(spelling),
            self.failure or error,
            whole.reasoning,
            whole.tool_calls,
            parsed,
            None if self._stream.lease is None else outcome(self._stream.lease, self._engine),
            self.name,
        )

    def _found(self) -> int:
        found = [tokens for event in self._engine.history.of(self.name) if (tokens := reused_tokens(event)) is not None]
        return found[-1] if found else 0

    def _logprobs(self, begin: int, count: int) -> list[Logprob]:
        asked = self._stream.request.sampling.logprobs is not None
        return [self._stream.logprobs[place] for place in range(begin, begin + count)] if asked else []

    def _prompt_logprobs(self, spelling: Spelling) -> tuple[TokenLogprob, ...] | None:
        request, found = self._stream.request, self._stream.logprobs
        if request.sampling.prompt_logprobs is None:
            return None
        return _token_logprobs([found[place] for place in range(1, len(request.prompt))], spelling)


def completions(
    group: list[Generation] | InputError, samples: int, spelling: Spelling, schema: Schema | None
) -> list[Completion]:
    """Of the samples of one prompt, or of one that was refused."""
    if isinstance(group, InputError):
        return [Completion("", (), REFUSED, 0, 0, error=str(group))] * samples
    return [generation.completion(group[0], spelling, schema) for generation in group]


def _token_logprobs(logprobs: Sequence[Logprob], spelling: Spelling) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            spelling.text(one.token),
            one.token,
            one.value,
            one.rank,
            tuple(TokenLogprob(spelling.text(t), t, value, rank) for rank, (t, value) in enumerate(one.top, 1)),
        )
        for one in logprobs
    )
