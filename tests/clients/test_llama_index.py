"""`llama-index-llms-openai-like`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asked import ANSWER, MODEL, TEXT, WARM, WEATHER, City, is_weather

like = pytest.importorskip("llama_index.llms.openai_like", reason="llama-index-llms-openai-like is not installed")


@pytest.fixture(scope="module")
def model(v1: str) -> Any:
    return like.OpenAILike(
        model=MODEL, api_base=v1, api_key="none", is_chat_model=True, is_function_calling_model=True,
        should_use_structured_outputs=True, temperature=0, max_tokens=60, max_retries=0, context_window=4096,
    )  # fmt: skip


def test_a_completion_is_a_chat_of_one_message(model: Any) -> None:
    """`complete` of a chat model."""
    assert model.complete(TEXT).text == ANSWER


def test_a_stream_joins_to_the_whole(model: Any) -> None:
    """`delta` has each piece, `text` all so far."""
    answers = list(model.stream_complete(TEXT))
    assert "".join(answer.delta for answer in answers) == answers[-1].text == ANSWER
    assert len(answers) > 3


def test_a_completion_of_a_plain_model_continues_the_text(v1: str) -> None:
    """`is_chat_model=False` uses /v1/completions."""
    given: Any = {"model": MODEL, "api_base": v1, "api_key": "none", "temperature": 0, "max_tokens": 4}
    assert like.OpenAILike(is_chat_model=False, **given).complete("The capital of France is").text.startswith(" Paris")


def test_a_structured_answer_is_a_model_of_pydantic(model: Any) -> None:
    """`as_structured_llm`."""
    assert isinstance(model.as_structured_llm(City).complete(TEXT).raw, City)


def test_a_required_tool_has_arguments_of_its_schema(model: Any) -> None:
    """The tool in OpenAI's form, passed on as it is."""
    from llama_index.core.llms import ChatMessage

    answer = model.chat([ChatMessage(role="user", content=WARM)], tools=[WEATHER], tool_choice="required")
    (call,) = answer.message.additional_kwargs["tool_calls"]
    assert is_weather(json.loads(call.function.arguments))
