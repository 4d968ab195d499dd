"""Bodies of calls: what is wrong with them, and what is nested too deeply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage
from pydantic import ValidationError

from quire.serve.invalid import refusal_of
from quire.serve.questions import _message
from quire.serve.schemas import Body, ChatBody, CompletionBody, Said
from quire.text.conversation import template_messages

MANY: dict[str, Any] = {str(place): 1 for place in range(20_000)}
CHATTED: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.story
@pytest.mark.parametrize(
    ("schema", "body", "words"),
    [
        (CompletionBody, {"model": "tiny", "prompt": [""] * 20_000}, "prompt: 20,000 prompts at once: give at most 64"),
        (CompletionBody, {"model": "tiny", "prompt": [[1]] * 65}, "prompt: 65 prompts at once: give at most 64"),
        (CompletionBody, {"model": "tiny", "prompt": [1, "x"] * 20_000}, 'prompt.1 is "x": give a whole number'),
        (CompletionBody, {"model": "tiny", "prompt": ["", 1] * 20}, "prompt.0 is"),
        (CompletionBody, {"model": "tiny", "prompt": [["x"] * 20_000] * 20}, 'prompt.0.0 is "x": give a whole number'),
        (ChatBody, {"model": "tiny", "messages": [{"role": "user", "content": [1] * 20_000}]}, "messages.0.content.0"),
        (ChatBody, {"model": "tiny", "messages": [{"role": "user", "x": 1, "y": 1}] * 4000}, "messages.0.x is not"),
        (ChatBody, {**CHATTED, "messages": [{"role": "assistant", "tool_calls": [1] * 20_000}]}, "tool_calls.0 is 1"),
        (ChatBody, {**CHATTED, "tools": [{"x": 1, "y": 1}] * 128}, "tools.0.x is not supported"),
        (ChatBody, {**CHATTED, **MANY}, "the body: an object of 20,002 fields: give at most 64"),
        (ChatBody, {**CHATTED, "metadata": MANY}, "metadata: an object of 20,000 fields: give at most 64"),
        (ChatBody, {**CHATTED, "chat_template_kwargs": dict.fromkeys(MANY)}, "_kwargs: an object of 20,000 fields"),
        (ChatBody, {**CHATTED, "logit_bias": MANY}, "logit_bias: an object of 20,000 fields: give at most 1,024"),
    ],
)  # fmt: skip
def test_of_a_body_full_of_mistakes_only_the_first_ones_are_looked_at(
    schema: type[Body], body: dict[str, Any], words: str
) -> None:
    """Each costs a kilobyte: a few megabytes of them would take gigabytes, and all clients' time."""
    with pytest.raises(ValidationError) as refused:
        schema.model_validate(body)
    assert refused.value.error_count() <= 64
    mistakes = [{**mistake, "loc": ("body", *mistake["loc"])} for mistake in refused.value.errors()]
    refusal = refusal_of(mistakes, body)
    assert words in refusal.message
    assert refusal.param is None if words.startswith("the body") else refusal.param in refusal.message


@pytest.mark.story
def test_a_message_of_the_official_client_can_be_sent_back_as_it_is() -> None:
    """Fields that it has and the answer had not are null."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for told in ({"content": "the fox"}, {"content": None, "tool_calls": [call]}):
        message = ChatCompletionMessage.model_validate({"role": "assistant", "refusal": None, **told})
        body = ChatBody.model_validate({**CHATTED, "messages": [*CHATTED["messages"], message.model_dump()]})
        read = template_messages([one.model_dump(exclude_none=True) for one in body.messages])
        assert read[1]["content"] == (told["content"] or "")


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("said", "thinking"),
    [
        ({"content": "the fox", "reasoning_content": "hm"}, "hm"),
        ({"content": "the fox", "reasoning": "hm"}, "hm"),
        ({"content": None, "reasoning_content": "hm", "tool_calls": [CALL]}, "hm"),
        ({"content": "I look", "reasoning_content": "hm", "tool_calls": [CALL]}, None),
        ({"content": "the fox"}, None),
    ],
)
def test_templates_find_reasoning_under_both_names(said: dict[str, Any], thinking: str | None) -> None:
    """gpt-oss's reads `thinking`, and refuses a message with calls that has content and thinking."""
    message = _message(Said.model_validate({"role": "assistant", **said}))
    (read,) = template_messages([message])
    assert read.get("thinking") == thinking
    assert read.get("reasoning_content") == (said.get("reasoning_content") or said.get("reasoning"))


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.story
def test_what_is_nested_too_deeply_is_refused_or_stays_text() -> None:
    """Whoever writes it out again could not."""
    for levels in (100, 101):
        tool = {"type": "function", "function": {"name": "f", "parameters": nested(levels)}}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": nested(levels)}}
        for change in ({"tools": [tool]}, {"response_format": form}):
            body = {**CHATTED, **change}
            if levels == 100:
                assert ChatBody.model_validate(body)
                continue
            with pytest.raises(ValidationError, match="it is nested deeper than 100 levels: flatten it"):
                ChatBody.model_validate(body)
        call = {"id": "a", "function": {"name": "f", "arguments": json.dumps(nested(levels))}}
        message = Said.model_validate({"role": "assistant", "tool_calls": [call]})
        (said,) = template_messages([message.model_dump(exclude_none=True)])
        (arguments,) = [call["function"]["arguments"] for call in said["tool_calls"]]
        assert arguments == (nested(levels) if levels == 100 else json.dumps(nested(levels)))
