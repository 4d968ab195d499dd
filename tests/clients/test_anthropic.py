"""`anthropic` for Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from asked import ANSWER, ANSWER_TOKENS, MODEL, PROMPT_TOKENS, QUESTION, WARM, WEATHER_PARAMETERS, is_weather
from running_server import RunningServer

anthropic = pytest.importorskip("anthropic", reason="the package anthropic is not installed")
GREEDY: dict[str, Any] = {"model": MODEL, "extra_body": {"temperature": 0}}  # the client's types have none any more
TOOL = {"name": "weather", "description": "The weather of a city", "input_schema": WEATHER_PARAMETERS}


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.address, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_has_text_and_usage(client: Any) -> None:
    """What the prompt counts is what `count_tokens` says, whether cached or not."""
    answer = client.messages.create(messages=QUESTION, max_tokens=12, **GREEDY)
    assert (answer.content[0].text, answer.stop_reason) == (ANSWER, "end_turn")
    assert answer.usage.output_tokens == ANSWER_TOKENS
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION).input_tokens
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens == counted == PROMPT_TOKENS


def test_a_streamed_message_joins_to_the_whole(client: Any) -> None:
    """The helper's text and its final message agree."""
    with client.messages.stream(messages=QUESTION, max_tokens=12, **GREEDY) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == final.content[0].text == ANSWER
    assert len(pieces) > 3


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_required_tool_has_input_of_its_schema_and_its_result_is_read(client: Any, choice: dict[str, str]) -> None:
    """`any` and a named tool; the result goes back under the call's id."""
    asked: list[Any] = [{"role": "user", "content": WARM}]
    given: Any = {"tools": [TOOL], "max_tokens": 60, **GREEDY}
    called = client.messages.create(messages=asked, tool_choice=choice, **given)
    assert called.stop_reason == "tool_use"
    (call,) = called.content
    assert is_weather(call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "30 degrees"}
    history = [*asked, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    answer = client.messages.create(messages=history, tool_choice={"type": "none"}, **given)
    assert answer.content[0].text


def test_an_error_is_the_clients_own(client: Any) -> None:
    """A field of the wrong type is a BadRequestError in Anthropic's form."""
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(messages=QUESTION, max_tokens=-1, **GREEDY)
    assert refused.value.body["error"]["type"] == "invalid_request_error"
