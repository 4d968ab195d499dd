"""`langchain-openai`: chats and responses."""

from __future__ import annotations

from typing import Any

import pytest

from asked import ANSWER, ANSWER_TOKENS, GREEDY, TEXT, WARM, WEATHER, City, is_weather

langchain = pytest.importorskip("langchain_openai", reason="the package langchain-openai is not installed")


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def model(request: pytest.FixtureRequest, v1: str) -> Any:
    given: Any = {"base_url": v1, "api_key": "none", "max_retries": 0, "max_tokens": 60, **GREEDY}
    return langchain.ChatOpenAI(use_responses_api=request.param, **given)


def test_invoke_has_text_and_usage(model: Any) -> None:
    """In langchain's own names."""
    answer = model.invoke(TEXT)
    assert answer.text == ANSWER
    assert answer.usage_metadata["output_tokens"] == ANSWER_TOKENS


def test_stream_joins_to_the_whole(model: Any) -> None:
    """In more than one piece."""
    pieces = [piece.text for piece in model.stream(TEXT) if piece.text]
    assert "".join(pieces) == ANSWER
    assert len(pieces) > 3


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_a_model_of_pydantic(model: Any, method: str) -> None:
    """By a schema, or by a tool that must be called."""
    assert isinstance(model.with_structured_output(City, method=method).invoke(TEXT), City)


def test_a_bound_tool_has_arguments_of_its_schema(model: Any) -> None:
    """`any` is langchain's word for required."""
    (call,) = model.bind_tools([WEATHER], tool_choice="any").invoke(WARM).tool_calls
    assert call["name"] == "weather"
    assert is_weather(call["args"])
