"""Answers as messages of content blocks, in one piece and as named events.

message_start ─▶ of each block: content_block_start ─▶ content_block_delta … ─▶ content_block_stop
              ─▶ message_delta, with the stop reason and the usage ─▶ message_stop
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from quire.serve.anthropic.errors import error_body
from quire.serve.calls import Call
from quire.serve.errors import ApiError
from quire.serve.formats import Format, Json, event, lease_of
from quire.text.answer import Delta, in_order
from quire.text.conversation import MOST_LEVELS, is_deeper
from quire.text.dialects.calls import ToolCall

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
"""By an answer's ending; any other one reads as the end of the turn."""


def named_event(data: Json) -> bytes:
    """A server-sent event whose name is the type of its data."""
    return event(data, data["type"])


class MessageFormat(Format):
    def __init__(self, call: Call, model: str, request_id: str, max_tokens: int) -> None:
        """`max_tokens`: as requested; the call's may be fewer, if no more fit."""
        super().__init__(call)
        self._is_shortened = call.question.max_tokens[0] < max_tokens
        self._model, self._request_id = model, request_id
        self._blocks = _BlockEvents(call.id)
        self._last = Delta()

    def whole(self, answers: Sequence[Delta]) -> Json:
        (answer,) = answers
        return self._message(_content(answer, self.call.id), **self._stop(answer))

    def begin(self) -> bytes:
        message = self._message([], stop_reason=None, stop_sequence=None)
        return named_event({"type": "message_start", "message": message})

    def keep_alive(self) -> bytes:
        return named_event({"type": "ping"})

    def piece(self, index: int, delta: Delta, is_first: bool) -> bytes:
        del index, is_first  # a message is the only choice of its call
        self._last = delta
        return b"".join(map(named_event, self._blocks.feed(delta)))

    def end(self) -> bytes:
        closing = {"type": "message_delta", "delta": self._stop(self._last), "usage": _usage(self.call)}
        closing |= lease_of(self.call)
        return named_event(closing) + named_event({"type": "message_stop"})

    def failure(self, error: ApiError) -> bytes:
        return named_event(error_body(error, self._request_id))

    def _stop(self, last: Delta) -> Json:
        """Why the answer ended, and by which of the request's stop sequences."""
        if last.ending == "stop" and last.stop_string is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": last.stop_string}
        is_full = last.ending == "length" and self._is_shortened
        reason = "model_context_window_exceeded" if is_full else STOP_REASONS.get(last.ending, "end_turn")
        return {"stop_reason": reason, "stop_sequence": None}

    def _message(self, content: list[Json], **stop: Any) -> Json:
        head = {"id": f"msg_{self.call.id}", "type": "message", "role": "assistant", "model": self._model}
        return {**head, "content": content, **stop, "usage": _usage(self.call), **lease_of(self.call)}


def _usage(call: Call) -> Json:
    """Tokens of the prompt that were found in the cache are not input tokens, nor are those that are leased now."""
    cached = call.cached_tokens
    rest = call.question.prompt_tokens - cached
    leased = rest if call.lease is not None and call.lease["granted"] else 0
    return {
        "input_tokens": rest - leased,
        "cache_creation_input_tokens": leased,
        "cache_read_input_tokens": cached,
        "output_tokens": call.output_tokens,
    }


def _input(call: ToolCall) -> Json:
    """An object in any case: arguments that were cut off, or are nested too deeply, are its field `arguments`."""
    if not call.arguments:
        return {}
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        value = call.arguments
    is_object = isinstance(value, dict) and not is_deeper(value, MOST_LEVELS)
    return value if is_object else {"arguments": call.arguments}


def _tool_use(call: ToolCall, value: Json) -> Json:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": value}


def _content(answer: Delta, signature: str) -> list[Json]:
    """Blanks between text and calls are left out."""
    content: list[Json] = []
    if answer.reasoning:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": signature})
    for part in in_order(answer):
        if not isinstance(part, str):
            content.append(_tool_use(part, _input(part)))
        elif text := part.rstrip() if answer.tool_calls else part:
            content.append({"type": "text", "text": text})
    return content


class _BlockEvents:
    """Events of content blocks, one block open at a time."""

    def __init__(self, signature: str) -> None:
        """`signature`: of thinking blocks. Clients require one; it is not looked at if they hand it back."""
        self._signature = signature
        self._count = 0
        self._open = ""
        """The type of the block that is open."""
        self._blank = ""
        """Held back at the end of the text: left out if a call follows, or if the answer has calls and ends."""
        self._has_calls = False

    def feed(self, delta: Delta) -> Iterator[Json]:
        """The events of what is new; with an ending, all that was held back."""
        if delta.reasoning:
            yield from self._add("thinking", delta.reasoning)
        for part in in_order(delta):
            yield from self._text(part) if isinstance(part, str) else self._call(part)
        if delta.ending:
            if self._blank and not self._has_calls:
                yield from self._add("text", self._blank)
            yield from self._close()

    def _text(self, text: str) -> Iterator[Json]:
        text = self._blank + text
        shown = text.rstrip()
        self._blank = text[len(shown) :]
        if shown:
            yield from self._add("text", shown)

    def _call(self, call: ToolCall) -> Iterator[Json]:
        self._blank, self._has_calls = "", True
        if not call.continues:
            yield from self._begin("tool_use", _tool_use(call, {}))
        if call.arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})

    def _add(self, kind: str, text: str) -> Iterator[Json]:
        if self._open != kind:
            signature = {"signature": ""} if kind == "thinking" else {}
            yield from self._begin(kind, {"type": kind, kind: "", **signature})
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _begin(self, kind: str, block: Json) -> Iterator[Json]:
        yield from self._close()
        self._open = kind
        yield {"type": "content_block_start", "index": self._count, "content_block": block}

    def _close(self) -> Iterator[Json]:
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": self._signature})
        if self._open:
            yield {"type": "content_block_stop", "index": self._count}
            self._open, self._count = "", self._count + 1

    def _delta(self, change: Json) -> Json:
        return {"type": "content_block_delta", "index": self._count, "delta": change}
