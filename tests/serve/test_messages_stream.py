"""Answers as messages of content blocks: in one piece, and as events that make the same message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from quire.serve.anthropic.errors import error_body
from quire.serve.anthropic.formats import MessageFormat
from quire.serve.errors import ApiError
from quire.serve.generation import answer
from quire.text.answer import Answer, Delta, join_deltas
from quire.text.dialects.calls import ToolCall
from quire.text.dialects.reader import ToolCalls
from quire.text.reasoning import Reasoning
from quire.text.tokenizer import Tokenizer

TOOLS: list[Any] = [{"type": "function", "function": {"name": name}} for name in ("weather", "time")]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
Json = dict[str, Any]


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> Tokenizer:
    return Tokenizer.load(tiny_folder)


def form(cached_tokens: int = 0, output_tokens: int = 7, max_tokens: int = 9) -> MessageFormat:
    question = SimpleNamespace(prompt_tokens=20, max_tokens=(9,))
    call: Any = SimpleNamespace(
        id="ab12", question=question, cached_tokens=cached_tokens, output_tokens=output_tokens, lease=None
    )
    return MessageFormat(call, "tiny", "req_1", max_tokens)


def events_of(sent: bytes) -> list[Json]:
    """Each event has a line with its name, which is the type of its data, and one with the data."""
    found = []
    for event in sent.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


def streamed(deltas: list[Delta], written: MessageFormat | None = None) -> list[Json]:
    """All events of a stream, valid as the official client's types."""
    written = written or form()
    pieces = [written.piece(0, delta, place == 0) for place, delta in enumerate(deltas)]
    events = events_of(written.begin() + b"".join(pieces) + written.end())
    for event in events:
        EVENT.validate_python(event)
    return events


def rebuilt(events: list[Json]) -> Json:
    """The message that a client puts together; fails if the events are not in order."""
    first, *middle, last_but_one, last = events
    assert (first["type"], last_but_one["type"], last["type"]) == ("message_start", "message_delta", "message_stop")
    message, is_open, partial = first["message"], False, ""
    for event in middle:
        assert event["index"] == len(message["content"]) - is_open
        assert is_open == (event["type"] != "content_block_start")
        if event["type"] == "content_block_start":
            message["content"].append(event["content_block"])
            is_open, partial = True, ""
        elif event["type"] == "content_block_stop":
            is_open = False
            if partial:
                message["content"][-1]["input"] = json.loads(partial)
        else:
            kind, block = event["delta"].pop("type"), message["content"][-1]
            ((field, value),) = event["delta"].items()
            assert value
            if kind == "input_json_delta":
                assert block["type"] == "tool_use"
                partial += value
            else:
                assert kind == f"{field}_delta"
                block[field] += value
    assert not is_open
    return {**message, **last_but_one["delta"], "usage": last_but_one["usage"]}


SAID = f"<think>\nthe fox\n\nsees</think>\n\nthe dog sees \n{CALL}\n\n{CALL}\n"
CONTENT = [
    {"type": "thinking", "thinking": "the fox\n\nsees", "signature": "ab12"},
    {"type": "text", "text": "the dog sees"},
    {"type": "tool_use", "name": "weather", "input": {"city": "Rome"}},
    {"type": "tool_use", "name": "weather", "input": {"city": "Rome"}},
]


def test_thinking_text_and_two_calls_are_the_same_blocks_wherever_they_are_cut(tokenizer: Tokenizer) -> None:
    """Two updates of the engine, cut after each token; and one update for each token."""
    tokens = tokenizer.encode(SAID, add_special_tokens=False)
    cuts = [(tokens[:at], tokens[at:]) for at in range(1, len(tokens))]
    for parts in [*cuts, tuple([token] for token in tokens)]:
        reader = Answer(tokenizer, (), (), Reasoning.after(""), ToolCalls(TOOLS))
        deltas = [reader.feed(part) for part in parts] + [reader.feed([], ending="stop")]
        deltas = [delta for delta in deltas if not delta.is_empty]
        message, whole = rebuilt(streamed(deltas)), form().whole([join_deltas(deltas)])
        assert message == whole
        assert Message.model_validate(whole).stop_reason == "tool_use"
        ids = [block.pop("id") for block in whole["content"] if block["type"] == "tool_use"]
        assert len(set(ids)) == 2
        assert whole["content"] == CONTENT


@pytest.mark.parametrize(
    ("deltas", "content"),
    [
        ([Delta("the"), Delta(" fox"), Delta(" ", ending="stop")], [{"type": "text", "text": "the fox "}]),
        ([Delta("\n\n", ending="length")], [{"type": "text", "text": "\n\n"}]),
        ([Delta("  the"), Delta(ending="stop")], [{"type": "text", "text": "  the"}]),
        ([Delta(ending="stop")], []),
        (
            [Delta(reasoning="hm"), Delta(ending="length")],
            [{"type": "thinking", "thinking": "hm", "signature": "ab12"}],
        ),
        (
            [Delta("\n"), Delta(tool_calls=(ToolCall("time", "{}", id="a"),)), Delta("\n", ending="tool_calls")],
            [{"type": "tool_use", "id": "a", "name": "time", "input": {}}],
        ),
    ],
)
def test_a_block_begins_with_what_it_holds(deltas: list[Delta], content: list[Json]) -> None:
    """No empty blocks; blanks are text like any other, except next to calls."""
    assert rebuilt(streamed(deltas))["content"] == content
    assert form().whole([join_deltas(deltas)])["content"] == content


@pytest.mark.story
def test_blocks_keep_the_order_in_which_the_model_wrote_them_however_the_answer_is_cut(tokenizer: Tokenizer) -> None:
    """In whole answers as in streams, also if one update has text, a call and text again. Text after a call was put
    before it."""
    tokens = tokenizer.encode(f"the dog{CALL}the fox{CALL} sees", add_special_tokens=False)
    for cut in range(len(tokens) + 1):
        reader = Answer(tokenizer, tools=ToolCalls(TOOLS))
        deltas = [reader.feed(tokens[:cut]), reader.feed(tokens[cut:]), reader.feed([], ending="stop")]
        deltas = [delta for delta in deltas if not delta.is_empty]
        whole = form().whole([join_deltas(deltas)])
        assert rebuilt(streamed(deltas)) == whole
        found = [block.get("text", block.get("input")) for block in whole["content"]]
        assert found == ["the dog", {"city": "Rome"}, "the fox", {"city": "Rome"}, " sees"]


def test_the_last_piece_of_a_call_comes_before_text_of_the_same_update() -> None:
    """One update may complete a call, have text after it and begin another call."""
    first, last = ToolCall("time", '{"a"', id="a"), ToolCall("time", ": 1}", id="a", continues=True)
    second = ToolCall("time", "{}", index=1, id="b", at=3)
    deltas = [Delta(tool_calls=(first,)), Delta("fox", tool_calls=(last, second)), Delta(ending="tool_calls")]
    content = rebuilt(streamed(deltas))["content"]
    assert [block.get("input", block.get("text")) for block in content] == [{"a": 1}, "fox", {}]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ('{"a": ', None),
        ("[1]", None),
        ("[" * 99_999, None),
        ('{"a": ' * 200 + "1" + "}" * 200, None),
    ],
)
def test_the_input_of_a_call_is_an_object_also_if_it_was_cut_off(arguments: str, expected: Json | None) -> None:
    """A client that reads anything else would fail: what is no object, or too deep, is a field of one."""
    (block,) = form().whole([Delta(tool_calls=(ToolCall("time", arguments),), ending="length")])["content"]
    assert block["input"] == ({"arguments": arguments} if expected is None else expected)


@pytest.mark.parametrize(
    ("last", "reason", "sequence"),
    [
        (Delta(ending="stop"), "end_turn", None),
        (Delta(ending="stop", stop_string="END"), "stop_sequence", "END"),
        (Delta(ending="length"), "max_tokens", None),
        (Delta(ending="tool_calls", stop_string="END"), "tool_use", None),
    ],
)
def test_the_end_says_why(last: Delta, reason: str, sequence: str | None) -> None:
    whole = form().whole([last])
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    events = streamed([Delta("the"), last])
    assert events[0]["message"]["stop_reason"] is None
    assert events[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_an_answer_that_fills_the_context_before_its_length_says_so() -> None:
    """Nine tokens fit, and ten were requested."""
    assert form(max_tokens=10).whole([Delta("the", ending="length")])["stop_reason"] == "model_context_window_exceeded"
    assert form(max_tokens=10).whole([Delta("the", ending="stop")])["stop_reason"] == "end_turn"


def test_cached_tokens_are_not_counted_as_input() -> None:
    usage = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 16, "input_tokens": 4, "output_tokens": 7}
    assert form(cached_tokens=16).whole([Delta("the", ending="stop")])["usage"] == usage
    events = streamed([Delta("the", ending="stop")], form(cached_tokens=16))
    assert events[0]["message"]["usage"] == events[-2]["usage"] == usage


async def sent(deltas: list[Delta | ApiError | None]) -> list[Json]:
    """The events of a whole stream, when a call has these deltas, fails, or has nothing new (None)."""

    async def updates() -> AsyncIterator[list[tuple[int, Delta]]]:
        for delta in deltas:
            if isinstance(delta, ApiError):
                raise delta
            written.call.is_over = delta is not None and bool(delta.ending)
            yield [] if delta is None else [(0, delta)]

    async def receive() -> Json:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        pieces.append(message.get("body", b""))

    pieces: list[bytes] = []
    written = form()
    written.call = SimpleNamespace(  # type: ignore[assignment]
        **vars(written.call), answers=[None], is_over=False, deltas=updates, close=lambda: None, record=dict
    )
    service = SimpleNamespace(settings=SimpleNamespace(log_text=False))
    app, state = SimpleNamespace(state=SimpleNamespace(service=service)), SimpleNamespace(record={})
    request: Any = SimpleNamespace(app=app, state=state, receive=receive)
    response = await answer(request, True, written)
    await response({}, receive, send)
    return events_of(b"".join(pieces))


def test_while_there_is_nothing_new_the_client_gets_a_ping() -> None:
    """Also before the first token, and after `message_start`."""
    events = asyncio.run(sent([None, Delta("the"), None, Delta(ending="stop")]))
    kinds = ["message_start", "ping", "content_block_start", "content_block_delta", "ping", "content_block_stop"]
    assert [event["type"] for event in events] == [*kinds, "message_delta", "message_stop"]


def test_a_stream_that_cannot_go_on_ends_with_an_error() -> None:
    error = ApiError(503, "the engine is gone", "engine_gone")
    events = asyncio.run(sent([Delta("the"), error]))
    assert [event["type"] for event in events[:3]] == ["message_start", "content_block_start", "content_block_delta"]
    assert events[3:] == [error_body(error, "req_1")]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (408, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_an_error_has_anthropics_type_for_its_status_and_quires_code(status: int, kind: str) -> None:
    """Also as the last event of a stream."""
    error = ApiError(status, "it is so", "some_code")
    body = {"type": kind, "message": "it is so", "details": {"error_code": "some_code"}}
    assert error_body(error, "req_1") == {"type": "error", "error": body, "request_id": "req_1"}
    assert events_of(form().failure(error)) == [error_body(error, "req_1")]
