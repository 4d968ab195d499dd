"""How an answer is written: as one response, or as the events of a stream that ends with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from quire.serve.calls import Call
from quire.serve.errors import ApiError
from quire.serve.formats import Format, event, lease_of, logprob_entries
from quire.serve.responses.output import Json, Output
from quire.serve.responses.schemas import ResponseBody
from quire.text.answer import Delta
from quire.text.spelling import Spelling

COMPLETE = ("stop", "tool_calls")
"""Endings of an answer that is complete."""
PREFIX = "resp_"
"""Of a response's id."""
CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""By status: the code that a failed response has. The event `error` has Quire's own."""


class ResponseFormat(Format):
    def __init__(self, call: Call, head: Json, spelling: Spelling | None, keep: Callable[[Json], None]) -> None:
        """`head`: what the call asked for, as a response repeats it. `spelling` None: without log-probabilities.
        `keep`: called with the response when it has ended, unless it failed."""
        super().__init__(call)
        self._head = {"id": response_id(call), "object": "response", "created_at": int(time.time()), **head}
        self._spelling, self._keep = spelling, keep
        self._output = Output(call.id)
        self._ending, self._tokens, self._events = "", 0, 0

    def whole(self, answers: Sequence[Delta]) -> Json:
        (answer,) = answers
        self._feed(answer)
        return self._finished()[1]

    def begin(self) -> bytes:
        response = self._response("in_progress")
        return self._write([{"type": f"response.{name}", "response": response} for name in ("created", "in_progress")])

    def piece(self, index: int, delta: Delta, is_first: bool) -> bytes:
        del index, is_first
        return self._write(self._feed(delta))

    def end(self) -> bytes:
        events, response = self._finished()
        return self._write([*events, {"type": f"response.{response['status']}", "response": response}])

    def failure(self, error: ApiError) -> bytes:
        self._output.close("incomplete")
        failed = {"code": CODES.get(error.status, "server_error"), "message": error.message}
        told = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return self._write([told, {"type": "response.failed", "response": self._response("failed", error=failed)}])

    def _feed(self, delta: Delta) -> list[Json]:
        self._ending = delta.ending or self._ending
        return self._output.feed(delta, self._logprobs(delta))

    def _logprobs(self, delta: Delta) -> list[Json]:
        """Of the tokens after the reasoning."""
        if self._spelling is None:
            return []
        skipped = max(0, self.call.reasoning_tokens - self._tokens)
        self._tokens += len(delta.tokens)
        rest = Delta(tokens=delta.tokens[skipped:], logprobs=delta.logprobs[skipped:])
        return logprob_entries(rest, self._spelling)

    def _finished(self) -> tuple[list[Json], Json]:
        """The last events of its items, and the response, which is kept now."""
        status = "completed" if self._ending in COMPLETE else "incomplete"
        events = self._output.close(status)
        details = None if status == "completed" else {"reason": "max_output_tokens"}
        now = int(time.time()) if status == "completed" else None
        ends = {"incomplete_details": details, "completed_at": now, "usage": _usage(self.call)}
        response = self._response(status, **ends, **lease_of(self.call))
        self._keep(response)
        return events, response

    def _response(self, status: str, **change: Json | int | None) -> Json:
        open_ends = {"error": None, "incomplete_details": None, "completed_at": None, "usage": None}
        return {**self._head, "status": status, "output": list(self._output.items), **open_ends, **change}

    def _write(self, events: Sequence[Json]) -> bytes:
        written = b""
        for one in events:
            written += event({**one, "sequence_number": self._events}, one["type"])
            self._events += 1
        return written


def response_id(call: Call) -> str:
    return f"{PREFIX}{call.id}"


def _usage(call: Call) -> Json:
    prompt, outputs = call.question.prompt_tokens, call.output_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": call.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": outputs,
        "output_tokens_details": {"reasoning_tokens": call.reasoning_tokens},
        "total_tokens": prompt + outputs,
    }


REPEATED = (
    "instructions",
    "max_output_tokens",
    "previous_response_id",
    "prompt_cache_key",
    "safety_identifier",
    "user",
)
"""Fields that a response has as the call gave them."""
DEFAULTS: Json = {
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_logprobs": 0,
    "tool_choice": "auto",
    "tools": [],
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": None, "summary": None},
    "metadata": {},
}
"""Fields that a response has in any case, and what they are if the call did not give them."""


def head_of(body: ResponseBody, is_stored: bool) -> Json:
    given = body.model_dump(by_alias=True, exclude_none=True, include={*DEFAULTS})
    if body.tools:
        given["tools"] = [tool.model_dump() for tool in body.tools]
    if "text" in given:
        given["text"] = {**DEFAULTS["text"], **given["text"]}
    if "reasoning" in given:
        given["reasoning"] = {**DEFAULTS["reasoning"], **given["reasoning"]}
    fixed = {"background": False, "service_tier": "default", "truncation": "disabled", "store": is_stored}
    return {"model": body.model, **{name: getattr(body, name) for name in REPEATED}, **DEFAULTS, **given, **fixed}
