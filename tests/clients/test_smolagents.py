"""`smolagents`: its model class, and an agent that must call tools."""

from __future__ import annotations

from typing import Any

import pytest

from asked import ANSWER, ANSWER_TOKENS, MODEL, TEXT, WARM

smolagents = pytest.importorskip("smolagents", reason="the package smolagents is not installed")


@pytest.fixture(scope="module")
def model(v1: str) -> Any:
    given: Any = {"temperature": 0, "max_tokens": 60, "client_kwargs": {"max_retries": 0}}
    return smolagents.OpenAIModel(MODEL, api_base=v1, api_key="none", **given)


@pytest.fixture(scope="module")
def weather() -> Any:
    @smolagents.tool
    def weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        return f"30 degrees in {city}"

    return weather


def said(text: str) -> list[Any]:
    return [smolagents.ChatMessage(role="user", content=[{"type": "text", "text": text}])]


def test_a_message_has_text_and_usage(model: Any) -> None:
    """Messages in parts, as smolagents sends them."""
    answer = model.generate(said(TEXT))
    assert (answer.content, answer.token_usage.output_tokens) == (ANSWER, ANSWER_TOKENS)


def test_a_stream_joins_to_the_whole(model: Any) -> None:
    """With the usage in its last piece."""
    pieces = list(model.generate_stream(said(TEXT)))
    assert "".join(piece.content or "" for piece in pieces) == ANSWER
    assert pieces[-1].token_usage.output_tokens == ANSWER_TOKENS


def test_a_required_tool_has_the_arguments_that_it_takes(model: Any, weather: Any) -> None:
    """No other arguments: smolagents would refuse them."""
    answer = model.generate(said(WARM), tools_to_call_from=[weather])
    (call,) = model.parse_tool_calls(answer).tool_calls
    assert call.function.name == "weather"
    assert set(call.function.arguments) == {"city"}


def test_an_agent_takes_a_step_without_an_error(model: Any, weather: Any) -> None:
    """smolagents accepts the call of the first step; the answer that it asks for after the last step has usage too."""
    agent = smolagents.ToolCallingAgent(tools=[weather], model=model, max_steps=1, verbosity_level=0)
    agent.run(TEXT)
    first, *others = [step for step in agent.memory.steps if isinstance(step, smolagents.ActionStep)]
    assert first.tool_calls
    assert first.error is None
    assert all(step.token_usage.input_tokens > 0 for step in (first, *others))
