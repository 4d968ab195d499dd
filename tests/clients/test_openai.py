"""`openai` for Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from asked import ANSWER, ANSWER_TOKENS, GREEDY, MODEL, PROMPT_TOKENS, QUESTION, TEXT, WARM, WEATHER, City, is_weather
from asked import WEATHER_PARAMETERS as PARAMETERS

openai = pytest.importorskip("openai", reason="the package openai is not installed")


@pytest.fixture(scope="module")
def client(v1: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=v1, api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_has_text_and_usage(client: Any) -> None:
    """The answer, why it ended, and the tokens of both sides."""
    answer = client.chat.completions.create(messages=QUESTION, max_tokens=12, **GREEDY)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (ANSWER, "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (PROMPT_TOKENS, ANSWER_TOKENS)


def test_a_streamed_chat_joins_to_the_whole(client: Any) -> None:
    """Also through the helper, which assembles the chunks itself."""
    with client.chat.completions.stream(
        messages=QUESTION, max_tokens=12, stream_options={"include_usage": True}, **GREEDY
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(pieces) == final.choices[0].message.content == ANSWER
    assert len(pieces) > 3
    assert final.usage.completion_tokens == ANSWER_TOKENS


def test_a_required_tool_has_arguments_of_its_schema(client: Any) -> None:
    """Whole, and joined from a stream; the result of the call is then read."""
    asked: list[Any] = [{"role": "user", "content": WARM}]
    given: Any = {"tools": [WEATHER], "max_tokens": 60, **GREEDY}
    message = client.chat.completions.create(messages=asked, tool_choice="required", **given).choices[0].message
    (call,) = message.tool_calls
    assert is_weather(json.loads(call.function.arguments))
    with client.chat.completions.stream(messages=asked, tool_choice="required", **given) as stream:
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "30 degrees"}
    answer = client.chat.completions.create(messages=[*asked, message, result], tool_choice="none", **given)
    assert answer.choices[0].message.content


def test_a_schema_is_followed(client: Any) -> None:
    """`parse` returns the model of pydantic that was asked for."""
    answer = client.chat.completions.parse(messages=QUESTION, response_format=City, max_tokens=60, **GREEDY)
    assert isinstance(answer.choices[0].message.parsed, City)


def test_an_echoed_completion_has_a_log_probability_for_each_token_but_the_first(client: Any) -> None:
    """With `max_tokens=0`, as benchmarks ask for log-likelihoods."""
    answer = client.completions.create(prompt="The sky is blue", echo=True, logprobs=1, max_tokens=0, **GREEDY)
    choice = answer.choices[0]
    assert choice.text == "".join(choice.logprobs.tokens) == "The sky is blue"
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])
    assert len(choice.logprobs.tokens) == answer.usage.prompt_tokens


def test_a_response_is_created_and_streamed(client: Any) -> None:
    """The same text, whole and in pieces; a required tool; a continued conversation."""
    whole = client.responses.create(input=TEXT, max_output_tokens=12, **GREEDY)
    assert (whole.output_text, whole.status, whole.usage.output_tokens) == (ANSWER, "completed", ANSWER_TOKENS)
    with client.responses.stream(input=TEXT, max_output_tokens=12, **GREEDY) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(pieces) == stream.get_final_response().output_text == ANSWER
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}
    called = client.responses.create(
        input=WARM, tools=[tool], tool_choice="required", previous_response_id=whole.id, max_output_tokens=60, **GREEDY
    )
    assert is_weather(json.loads(called.output[0].arguments))
    assert called.usage.input_tokens > whole.usage.input_tokens


def test_the_model_is_listed_and_another_is_not_found(client: Any) -> None:
    """An unknown name is the client's own NotFoundError."""
    assert [model.id for model in client.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-0", messages=QUESTION)
