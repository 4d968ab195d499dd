"""A running server that was given a dialect: required calls have its form, and the client gets them as OpenAI's."""

from __future__ import annotations

import json
from typing import Any

import httpx

from serve_kit import chat

CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
NAMED = {"type": "function", "function": {"name": "weather"}}


def test_a_required_call_is_generated_in_the_dialect_that_the_server_was_given(client: httpx.Client) -> None:
    """The model's template is in no dialect, so without the option the call would be a bare object."""
    answer = chat(client, tools=[WEATHER], tool_choice=NAMED, max_tokens=120, logprobs=True)
    (choice,) = answer.json()["choices"]
    generated = "".join(one["token"] for one in choice["logprobs"]["content"])
    assert generated.startswith('<tool_call>\n{"name": "weather", "arguments": {"city": "')
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")


def test_only_an_allowed_tool_is_called_while_the_prompt_describes_all(client: httpx.Client) -> None:
    """The prompt is the same for every subset, so that its prefix is found again."""
    other = {"type": "function", "function": {"name": "other"}}

    def asked(choice: Any) -> Any:
        asked = {"tools": [other, WEATHER], "tool_choice": choice, "parallel_tool_calls": False}
        return chat(client, **asked, max_tokens=100).json()

    answer = asked({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}})
    calls = answer["choices"][0]["message"]["tool_calls"]
    assert {call["function"]["name"] for call in calls} == {"weather"}
    assert answer["usage"]["prompt_tokens"] == asked("required")["usage"]["prompt_tokens"]
    unknown = {"type": "function", "function": {"name": "unknown"}}
    error = asked({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED, unknown]}})["error"]
    assert (error["param"], error["code"]) == ("tool_choice", "invalid_value")
    assert error["message"] == "tool_choice names 'unknown', and the tools are other, weather: name one of them"


def test_a_keyword_that_cannot_be_enforced_is_refused_with_its_place(client: httpx.Client) -> None:
    unique = {"type": "object", "properties": {"tags": {"type": "array", "items": {}, "uniqueItems": True}}}
    tool = {"type": "function", "function": {"name": "label", "parameters": unique}}
    answer = chat(client, tools=[WEATHER, tool], tool_choice="required")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_schema", "tools")
    assert (
        "the keyword uniqueItems at properties.tags of the parameters of label cannot be enforced" in error["message"]
    )
