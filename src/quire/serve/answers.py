"""From tokens to what a client reads: text, reasoning, tool calls, log-probabilities, one choice at a time.

tokens ─▶ TextStream ─▶ StopStrings ─▶ Reasoning ─▶ ToolCalls ─▶ Delta
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.logprobs import Logprob
from quire.serve.asking import Asked
from quire.serve.client import Ticket
from quire.serve.messages import Came
from quire.text.reasoning import Parted, Reasoning
from quire.text.stops import StopStrings
from quire.text.tokenizer import Tokenizer
from quire.text.tools import Read, ToolCall, ToolCalls

FINISH_REASONS = {"stop": "stop", "length": "length"}


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new about a choice."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[dict[str, Any], ...] = ()
    """As OpenAI writes them, with `index` and `id`."""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    finish_reason: str | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.reasoning or self.calls or self.finish_reason)


class Choice:
    def __init__(self, index: int, ticket: Ticket, asked: Asked, text: str, tokenizer: Tokenizer) -> None:
        self.index, self.ticket = index, ticket
        self.hit_tokens = 0
        self.output_tokens = 0
        self.finish_reason: str | None = None
        self._stop_tokens = ticket.request.stop_tokens
        self._text = tokenizer.stream()
        self._stops = StopStrings(asked.sampling.stop)
        self._reasoning = Reasoning.behind(text) if asked.has_reasoning else None
        self._tools = ToolCalls(asked.tools) if asked.tools else None
        self._one_call = asked.one_call
        self._calls = 0
        self._held: Delta = Delta()
        """Tokens whose text is held back: they go out with the next text."""

    def feed(self, came: Came) -> Delta:
        """What a beat brought. A stop string ends the choice: the caller cancels what is left of its request."""
        self.hit_tokens = came.hit_tokens or self.hit_tokens
        pieces = [self._held]
        for place, token in enumerate(came.tokens):
            self.output_tokens += 1
            logprobs = came.logprobs[place : place + 1]
            passed = self._stops.feed("" if token in self._stop_tokens else self._text.feed([token]))
            pieces.append(self._part(passed.text, (token,), logprobs))
            if passed.stop is not None:
                return self._end("stop", pieces)
        if came.ending:
            rest = self._stops.feed(self._text.finish()).text + self._stops.finish()
            return self._end(FINISH_REASONS.get(came.ending, came.ending), [*pieces, self._part(rest)])
        delta = joined(pieces)
        self._held = Delta(tokens=delta.tokens, logprobs=delta.logprobs) if delta.is_empty else Delta()
        return Delta() if delta.is_empty else delta

    def _end(self, reason: str, pieces: list[Delta]) -> Delta:
        if self._reasoning is not None:
            pieces.append(self._read(self._reasoning.finish()))
        if self._tools is not None:
            pieces.append(self._told(self._tools.finish()))
        self.finish_reason = "tool_calls" if self._calls and reason == "stop" else reason
        return joined([*pieces, Delta(finish_reason=self.finish_reason)])

    def _part(self, text: str, tokens: tuple[int, ...] = (), logprobs: tuple[Logprob, ...] = ()) -> Delta:
        parted = self._reasoning.feed(text) if self._reasoning is not None else Parted(content=text)
        read = self._read(parted)
        return Delta(read.content, read.reasoning, read.calls, tokens, logprobs)

    def _read(self, parted: Parted) -> Delta:
        if self._tools is None:
            return Delta(parted.content, parted.reasoning)
        told = self._told(self._tools.feed(parted.content))
        return Delta(told.content, parted.reasoning, told.calls)

    def _told(self, read: Read) -> Delta:
        calls = read.calls[: max(0, 1 - self._calls)] if self._one_call else read.calls
        first, self._calls = self._calls, self._calls + len(calls)
        return Delta(read.content, calls=tuple(_call(first + i, call) for i, call in enumerate(calls)))


def _call(index: int, call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": index, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def joined(pieces: Sequence[Delta]) -> Delta:
    return Delta(
        "".join(piece.content for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        tuple(call for piece in pieces for call in piece.calls),
        tuple(token for piece in pieces for token in piece.tokens),
        tuple(one for piece in pieces for one in piece.logprobs),
        next((piece.finish_reason for piece in pieces if piece.finish_reason), None),
    )
