"""Anthropic's official client, against the default model: real text, in the form that it expects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic, beta_tool

from running_server import RunningServer

pytestmark = pytest.mark.network
QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
MODEL = "smollm2-135m-instruct"
GREEDY: Any = {"model": MODEL, "extra_body": {"temperature": 0}}
WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(default_server: RunningServer) -> Iterator[Anthropic]:
    with Anthropic(base_url=default_server.address, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_a_question_is_answered(client: Anthropic) -> None:
    """The same prompt as a chat of this question has: 37 tokens."""
    answer = client.messages.create(messages=QUESTION, max_tokens=12, **GREEDY)
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": ANSWER}]
    assert (answer.stop_reason, answer.stop_sequence, answer.model) == ("end_turn", None, MODEL)
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == 37
    assert answer.usage.output_tokens == 8
    assert client.messages.count_tokens(model=MODEL, messages=QUESTION).input_tokens == 37


def test_a_stream_is_the_same_text_in_pieces(client: Anthropic) -> None:
    with client.messages.stream(messages=QUESTION, max_tokens=12, **GREEDY) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == ANSWER
    assert len(pieces) > 5
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 8)


def test_an_answer_that_reaches_its_length_says_so(client: Anthropic) -> None:
    answer = client.messages.create(messages=QUESTION, max_tokens=3, **GREEDY)
    assert answer.stop_reason == "max_tokens"
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "The capital of"}]


@pytest.mark.parametrize("streams", [False, True])
def test_the_text_ends_before_a_stop_sequence_and_names_it(client: Anthropic, streams: bool) -> None:
    asked = {"messages": QUESTION, "max_tokens": 12, "stop_sequences": ["xyz", "ance is"], **GREEDY}
    if streams:
        with client.messages.stream(**asked) as stream:
            answer: Any = stream.get_final_message()
    else:
        answer = client.messages.create(**asked)
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "The capital of Fr"}]
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "ance is")


def test_a_required_tool_is_called_and_its_result_is_read(client: Anthropic) -> None:
    ask: list[Any] = [{"role": "user", "content": "Is it warm in Rome?"}]
    asked: Any = {"tools": [WEATHER], "max_tokens": 60, **GREEDY}
    with client.messages.stream(messages=ask, tool_choice={"type": "tool", "name": "weather"}, **asked) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_message()
    assert "input_json" in kinds
    assert answer.stop_reason == "tool_use"
    (call,) = answer.content
    assert call.type == "tool_use"
    assert set(call.input) == {"city", "unit"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "24 C", "is_error": False}
    said: list[Any] = [*ask, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(messages=said, **{**asked, "max_tokens": 4}).usage.output_tokens


def test_an_answer_continues_a_last_message_of_the_assistant(client: Anthropic) -> None:
    said: list[Any] = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    answer = client.messages.create(messages=said, max_tokens=12, **GREEDY)
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": " Paris."}]
    assert client.messages.count_tokens(model=MODEL, messages=said).input_tokens == 42


def test_the_clients_own_runner_of_tools_works(client: Anthropic) -> None:
    """It calls the tool and hands its result back, and it does without a conversation that the server keeps."""
    cities: list[str] = []

    @beta_tool
    def weather(city: str) -> str:
        """The weather of a city"""
        cities.append(city)
        return "24 C"

    asked: Any = {"messages": QUESTION, "max_tokens": 60, "max_iterations": 2, **GREEDY}
    answers = list(client.beta.messages.tool_runner(tools=[weather], tool_choice={"type": "any"}, **asked))
    assert [answer.stop_reason for answer in answers] == ["tool_use", "tool_use"]
    assert cities


def test_an_output_format_is_kept(client: Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 10}},
        "required": ["city"],
        "additionalProperties": False,
    }
    form: Any = {"format": {"type": "json_schema", "schema": schema}}
    answer = client.messages.create(messages=QUESTION, max_tokens=60, output_config=form, **GREEDY)
    (block,) = answer.content
    assert block.type == "text"
    assert set(json.loads(block.text)) == {"city"}
