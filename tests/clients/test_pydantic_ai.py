"""`pydantic-ai`: agents on chats and on responses."""

from __future__ import annotations

from typing import Any

import pytest

from asked import ANSWER, ANSWER_TOKENS, MODEL, TEXT, City

ai = pytest.importorskip("pydantic_ai", reason="the package pydantic-ai-slim is not installed")
SETTINGS: dict[str, Any] = {"temperature": 0, "max_tokens": 60}


@pytest.fixture(params=["chat", "responses"])
def model(request: pytest.FixtureRequest, v1: str) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    sort = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[request.param]
    return sort(MODEL, provider=OpenAIProvider(base_url=v1, api_key="none"))


def test_an_agent_answers_with_usage(model: Any) -> None:
    """Text, and the tokens that it took."""
    result = ai.Agent(model, model_settings=SETTINGS).run_sync(TEXT)
    usage = result.usage() if callable(result.usage) else result.usage
    assert (result.output, usage.output_tokens) == (ANSWER, ANSWER_TOKENS)


def test_a_stream_joins_to_the_whole(model: Any) -> None:
    """In more than one piece."""
    with ai.Agent(model, model_settings=SETTINGS).run_stream_sync(TEXT) as result:
        pieces = list(result.stream_text(delta=True, debounce_by=None))
    assert "".join(pieces) == ANSWER
    assert len(pieces) > 3


@pytest.mark.parametrize("form", ["ToolOutput", "NativeOutput"])
def test_an_output_type_is_followed(model: Any, form: str) -> None:
    """By a tool that must be called, or by a schema."""
    agent = ai.Agent(model, output_type=getattr(ai, form)(City), model_settings=SETTINGS)
    assert isinstance(agent.run_sync(TEXT).output, City)
