"""`litellm`, under the prefixes that people use for a server of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asked import ANSWER, ANSWER_TOKENS, MODEL, QUESTION, TEXT, WARM, WEATHER, City, is_weather
from running_server import RunningServer

litellm = pytest.importorskip("litellm", reason="the package litellm is not installed")


@pytest.fixture(params=["openai", "hosted_vllm", "anthropic"])
def given(request: pytest.FixtureRequest, server: RunningServer) -> dict[str, Any]:
    """How litellm reaches the server, by prefix."""
    base = server.address + ("" if request.param == "anthropic" else "/v1")
    return {"model": f"{request.param}/{MODEL}", "api_base": base, "api_key": "none", "temperature": 0}


def test_a_chat_has_text_and_usage(given: dict[str, Any]) -> None:
    """The same answer through each API."""
    answer = litellm.completion(messages=QUESTION, max_tokens=12, **given)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (ANSWER, "stop")
    assert answer.usage.completion_tokens == ANSWER_TOKENS


def test_a_stream_joins_to_the_whole(given: dict[str, Any]) -> None:
    """In more than one piece."""
    chunks = list(litellm.completion(messages=QUESTION, max_tokens=12, stream=True, **given))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(pieces) == ANSWER
    assert len(pieces) > 3


def test_a_required_tool_has_arguments_of_its_schema(given: dict[str, Any]) -> None:
    """litellm translates the tool into the API's own form."""
    asked = [{"role": "user", "content": WARM}]
    answer = litellm.completion(messages=asked, tools=[WEATHER], tool_choice="required", max_tokens=60, **given)
    (call,) = answer.choices[0].message.tool_calls
    assert is_weather(json.loads(call.function.arguments))


def test_reasoning_effort_is_accepted(v1: str) -> None:
    """A template without a switch for it ignores it."""
    answer = litellm.completion(
        model=f"hosted_vllm/{MODEL}", api_base=v1, api_key="none", messages=QUESTION, max_tokens=12, temperature=0,
        reasoning_effort="low",
    )  # fmt: skip
    assert answer.choices[0].message.content == ANSWER


def test_a_schema_is_followed(v1: str) -> None:
    """A model of pydantic as `response_format`."""
    answer = litellm.completion(
        model=f"hosted_vllm/{MODEL}", api_base=v1, api_key="none", messages=QUESTION, max_tokens=60, temperature=0,
        response_format=City,
    )  # fmt: skip
    City.model_validate_json(answer.choices[0].message.content)


def test_a_response_is_answered(v1: str) -> None:
    """`litellm.responses` uses the server's own Responses API."""
    answer = litellm.responses(
        model=f"openai/{MODEL}", api_base=v1, api_key="none", input=TEXT, max_output_tokens=12, temperature=0
    )
    assert answer.output[0].content[0].text == ANSWER
