"""The official client's `responses`, against the default model: what it sends is understood, and its helpers work on
what it gets."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from running_server import RunningServer

pytestmark = pytest.mark.network
MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class City(BaseModel):
    name: str = Field(max_length=10)
    people: int = Field(le=99)


@pytest.fixture(scope="module")
def client(default_server: RunningServer) -> OpenAI:
    return OpenAI(base_url=default_server.address + "/v1", api_key="none", max_retries=0, timeout=120)


def test_a_text_is_answered(client: OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=12, temperature=0)
    assert (answer.output_text, answer.status) == (ANSWER, "completed")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (37, 8)


def test_instructions_are_the_system_message_of_a_chat(client: OpenAI) -> None:
    """The same prompt, so the same answer and the same count."""
    said: Any = [{"role": "system", "content": "Answer in capitals."}, {"role": "user", "content": QUESTION}]
    chat = client.chat.completions.create(model=MODEL, messages=said, max_tokens=8, temperature=0)
    answer = client.responses.create(
        model=MODEL, instructions="Answer in capitals.", input=QUESTION, max_output_tokens=8, temperature=0
    )
    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage is not None
    assert chat.usage is not None
    assert answer.usage.input_tokens == chat.usage.prompt_tokens


def test_a_stream_has_the_text_in_pieces_and_completes(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=QUESTION, max_output_tokens=12, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert len(deltas) > 3
    assert "".join(deltas) == final.output_text == ANSWER


def test_a_model_of_pydantic_is_parsed_whole_and_from_a_stream(client: OpenAI) -> None:
    given: Any = {"model": MODEL, "input": QUESTION, "max_output_tokens": 60, "temperature": 0}
    whole = client.responses.parse(text_format=City, **given).output_parsed
    assert isinstance(whole, City)
    with client.responses.stream(text_format=City, **given) as stream:
        assert stream.get_final_response().output_parsed == whole


def test_an_answer_that_reaches_its_length_is_incomplete(client: OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=3, temperature=0)
    assert (answer.status, answer.output_text) == ("incomplete", "The capital of")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_a_tool_is_called_and_its_output_is_answered(client: OpenAI) -> None:
    """By the response's id, or with the items that the client got: the same prompt, so the same answer."""
    given: Any = {"model": MODEL, "tools": [WEATHER], "temperature": 0, "max_output_tokens": 40}
    asked: Any = {"role": "user", "content": "Is it warm in Rome?"}
    first = client.responses.create(input=[asked], tool_choice="required", **given)
    (call,) = first.output
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"city"}
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "30 degrees"}
    stored = client.responses.create(input=[output], previous_response_id=first.id, **given)
    sent = client.responses.create(input=[asked, *first.output, output], store=False, **given)
    assert stored.usage is not None
    assert sent.usage is not None
    assert first.usage is not None
    assert stored.usage.input_tokens == sent.usage.input_tokens > first.usage.input_tokens
    assert stored.output_text == sent.output_text != ""


def test_a_streamed_tool_call_is_parsed_by_the_helper(client: OpenAI) -> None:
    with client.responses.stream(
        model=MODEL, input="Is it warm in Rome?", tools=[WEATHER], tool_choice={"type": "function", "name": "weather"},
        temperature=0, max_output_tokens=40,
    ) as stream:  # fmt: skip
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        (call,) = stream.get_final_response().output
    assert call.type == "function_call"
    assert "".join(deltas) == call.arguments
    assert call.parsed_arguments == json.loads(call.arguments)


def test_what_a_coding_agent_sends_is_understood(client: OpenAI) -> None:
    """The fields of Codex: nothing stored, reasoning to be handed back, a history with calls."""
    items: Any = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Use tools."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Is it warm in Rome?"}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
        {"type": "function_call", "name": "weather", "arguments": '{"city": "Rome"}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "30 degrees"},
    ]
    events = list(client.responses.create(
        model=MODEL, instructions="You help.", input=items, tools=[WEATHER], tool_choice="auto", store=False,
        parallel_tool_calls=False, reasoning={"effort": "medium", "summary": "auto"}, stream=True, max_output_tokens=8,
        include=["reasoning.encrypted_content"], prompt_cache_key="k", text={"verbosity": "medium"},
        extra_body={"client_metadata": {"turn": "1"}},
    ))  # fmt: skip
    assert events[-1].type in ("response.completed", "response.incomplete")


def test_errors_are_the_clients_own(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.retrieve("resp_1")
    assert missing.value.code == "response_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="x", tools=[{"type": "web_search"}])
    assert refused.value.param == "tools.0"
