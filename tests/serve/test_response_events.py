"""The events of a streamed response: their order, numbers and ids, however the answer is cut into pieces."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from quire.core.logprobs import Logprob
from quire.serve.errors import ApiError
from quire.serve.responses.form import ResponseFormat, head_of
from quire.serve.responses.items import STORED
from quire.serve.responses.schemas import ResponseBody
from quire.serve.responses.translation import messages_of
from quire.text.answer import Answer, Delta, join_deltas
from quire.text.reasoning import Reasoning
from quire.text.spelling import Spelling
from quire.text.tokenizer import Tokenizer
from quire.text.tools import ToolCalls

TOOLS = [{"type": "function", "function": {"name": "weather"}}]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
SAID = f"<think>the fox</think>the dog{CALL}{CALL}"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
WITH_TEXT = ["output_item.added", "content_part.added", "delta", "text.done", "content_part.done", "output_item.done"]
WITH_CALL = ["output_item.added", "delta", "function_call_arguments.done", "output_item.done"]


class Told:
    """An answer of the tiny tokenizer's model, and the form that writes it."""

    def __init__(self, tokenizer: Tokenizer, with_logprobs: bool = False) -> None:
        self.answer = Answer(tokenizer, (), (), Reasoning.after(""), ToolCalls(TOOLS))
        self.kept: list[dict[str, Any]] = []
        call: Any = SimpleNamespace(id="abc", question=SimpleNamespace(prompt_tokens=5), cached_tokens=2, lease=None)
        call.output_tokens, call.reasoning_tokens = 0, 0
        self.call = call
        more: Any = {"metadata": {"a": "b"}, "tools": [{"type": "function", "name": "weather"}]}
        body = ResponseBody.model_validate({"model": "tiny", "input": "the fox", **more})
        spelling = Spelling(tokenizer) if with_logprobs else None
        self.form = ResponseFormat(call, head_of(body, True), spelling, self.kept.append)

    def feed(self, tokens: list[int], ending: str = "") -> Delta:
        delta = self.answer.feed(tokens, [Logprob(token, -1.0, 1, ()) for token in tokens], ending)
        self.call.output_tokens, self.call.reasoning_tokens = self.answer.output_tokens, self.answer.reasoning_tokens
        return delta

    def events(self, pieces: list[list[int]], ending: str = "stop") -> list[dict[str, Any]]:
        written = self.form.begin()
        for tokens in pieces:
            written += self._piece(self.feed(tokens))
        written += self._piece(self.feed([], ending)) + self.form.end()
        return read(written)

    def _piece(self, delta: Delta) -> bytes:
        return b"" if delta.is_empty else self.form.piece(0, delta, False)


def read(written: bytes) -> list[dict[str, Any]]:
    """Each event has its type as its name, the next number, and every field that the official client's type has."""
    found = []
    for number, block in enumerate(written.decode().removesuffix("\n\n").split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        EVENT.validate_python(event)
        found.append(event)
    return found


def steps(events: list[dict[str, Any]]) -> list[str]:
    """What happens to one item; deltas in a row count once."""
    names = [event["type"].removeprefix("response.").removeprefix("output_text.") for event in events]
    short = ["delta" if name.endswith("delta") else "text.done" if name in ("done", "reasoning_text.done") else name
             for name in names]  # fmt: skip
    return [name for name, _ in groupby(short)]


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> Tokenizer:
    return Tokenizer.load(tiny_folder)


def test_items_follow_each_other_however_the_answer_is_cut(tokenizer: Tokenizer) -> None:
    """Reasoning, text and two calls, cut at every token: each item is added, grows and is done before the next one
    begins; the deltas are its text; the last event has the items as they were when they were done."""
    tokens = tokenizer.encode(SAID, add_special_tokens=False)
    for cut in range(len(tokens) + 1):
        told = Told(tokenizer)
        first, second, *events = told.events([tokens[:cut], tokens[cut:]])
        last = events.pop()
        assert (first["type"], second["type"]) == ("response.created", "response.in_progress")
        assert last["type"] == "response.completed"
        by_item = [list(group) for _, group in groupby(events, lambda event: event["output_index"])]
        assert [group[0]["output_index"] for group in by_item] == [0, 1, 2, 3]
        assert [steps(group) for group in by_item] == [WITH_TEXT, WITH_TEXT, WITH_CALL, WITH_CALL]
        output = last["response"]["output"]
        assert [group[-1]["item"] for group in by_item] == output
        for group, item in zip(by_item, output, strict=True):
            assert {event.get("item_id", item["id"]) for event in group} == {item["id"]}
            assert group[0]["item"]["status"] == "in_progress"
            text = item["arguments"] if "arguments" in item else item["content"][0]["text"]
            assert "".join(event.get("delta", "") for event in group) == text
        assert told.kept == [last["response"]]


def test_a_whole_response_is_what_a_stream_ends_with(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(SAID, add_special_tokens=False)
    streamed = Told(tokenizer).events([[token] for token in tokens])[-1]["response"]
    told = Told(tokenizer)
    whole = told.form.whole([join_deltas([told.feed(tokens), told.feed([], "stop")])])
    reasoning, message, *calls = whole["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "the fox"}]
    assert message["content"] == [{"type": "output_text", "text": "the dog", "annotations": [], "logprobs": []}]
    assert [call["arguments"] for call in calls] == ['{"city": "Rome"}'] * 2
    assert len({call["call_id"] for call in calls}) == len({item["id"] for item in whole["output"]}) - 2 == 2
    for one in (*calls, *streamed["output"][2:]):
        one["call_id"] = ""
    assert whole == {**streamed, "created_at": whole["created_at"], "completed_at": whole["completed_at"]}
    response = Response.model_validate(whole)
    assert (response.output_text, response.status, response.metadata) == ("the dog", "completed", {"a": "b"})


def test_tokens_are_counted_as_reasoning_up_to_its_closing_mark(tokenizer: Tokenizer) -> None:
    parts = [tokenizer.encode(part, add_special_tokens=False) for part in ("<think>the fox</think>", "the dog")]
    response = Told(tokenizer).events(parts)[-1]["response"]
    assert response["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": len(parts[0]) + len(parts[1]),
        "output_tokens_details": {"reasoning_tokens": len(parts[0])},
        "total_tokens": 5 + len(parts[0]) + len(parts[1]),
    }


def test_log_probabilities_are_those_of_the_text_alone(tokenizer: Tokenizer) -> None:
    """Whole, and in a stream in which one piece has the end of the reasoning and the first of the text."""
    thought, text = (tokenizer.encode(part, add_special_tokens=False) for part in ("<think>fox</think>", "the dog"))
    told = Told(tokenizer, with_logprobs=True)
    events = told.events([thought[:-1], [thought[-1], text[0]], text[1:]])
    whole = Told(tokenizer, with_logprobs=True)
    response = whole.form.whole([join_deltas([whole.feed([*thought, *text]), whole.feed([], "stop")])])
    for found in (events[-1]["response"]["output"][1], response["output"][1]):
        entries = found["content"][0]["logprobs"]
        assert "".join(entry["token"] for entry in entries) == "the dog"
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert [entry["token"] for entries in deltas for entry in entries] == [entry["token"] for entry in entries]


@pytest.mark.parametrize(("said", "sort"), [("<think>the fox", "reasoning"), ("the fox", "message"), ("", "message")])
def test_an_answer_that_reaches_its_length_is_incomplete(tokenizer: Tokenizer, said: str, sort: str) -> None:
    """So is its last item; without any token it has an empty message."""
    told = Told(tokenizer)
    events = told.events([tokenizer.encode(said, add_special_tokens=False)], "length")
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [(item["type"], item["status"]) for item in response["output"]] == [(sort, "incomplete")]
    assert told.kept == [response]


@pytest.mark.parametrize(("status", "code"), [(503, "server_error"), (429, "rate_limit_exceeded")])
def test_a_stream_that_cannot_go_on_ends_with_a_failed_response(tokenizer: Tokenizer, status: int, code: str) -> None:
    """It has what was generated, and is not kept."""
    told = Told(tokenizer)
    written = told.form.begin() + told.form.piece(0, Delta("the fox"), True)
    *_, error, failed = read(written + told.form.failure(ApiError(status, "it is gone", "engine_gone")))
    assert (error["type"], error["code"], error["message"]) == ("error", "engine_gone", "it is gone")
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": code, "message": "it is gone"}
    assert failed["response"]["output"][0]["content"][0]["text"] == "the fox"
    assert failed["response"]["output"][0]["status"] == "incomplete"
    assert told.kept == []


@pytest.mark.story
def test_items_keep_the_order_in_which_the_model_wrote_them_however_the_answer_is_cut(tokenizer: Tokenizer) -> None:
    """In whole answers as in streams. Text after a call was put before it."""
    tokens = tokenizer.encode(f"the dog{CALL}the fox", add_special_tokens=False)
    for cut in range(len(tokens) + 1):
        last = Told(tokenizer).events([tokens[:cut], tokens[cut:]])[-1]["response"]["output"]
        told = Told(tokenizer)
        pieces = [told.feed(tokens[:cut]), told.feed(tokens[cut:]), told.feed([], "stop")]
        whole = told.form.whole([join_deltas(pieces)])["output"]
        for output in (last, whole):
            assert [item["type"] for item in output] == ["message", "function_call", "message"]
            assert [item["content"][0]["text"] for item in output[::2]] == ["the dog", "the fox"]


def test_text_after_a_call_that_is_sent_back_belongs_to_the_message_of_the_call() -> None:
    """A chat has text and calls of one turn without an order: a message of its own would stand between a call and its
    output."""
    call = {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"}
    items = [{"role": "assistant", "content": "the dog"}, call, {"role": "assistant", "content": "the fox"},
             {"type": "function_call_output", "call_id": "a", "output": "warm"}]  # fmt: skip
    messages = messages_of(STORED.validate_python(items))
    assert [(message["role"], message["content"]) for message in messages] == [
        ("assistant", "the dogthe fox"), ("tool", "warm")
    ]  # fmt: skip
