"""What the server refuses, and in which words: each refusal names the field and what would be accepted."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from serve_kit import CHAT, body, chat

COMPLETIONS = "/v1/completions"
ENDLESS = "the fox " * 25_000
"""Not read to its end."""


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


SHORT = said("the quick fox")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("/heath/ready", "did you mean /health/ready?"),
        ("/favicon.ico", "the path is not known: see /docs for all paths"),
    ],
)
def test_a_path_that_there_is_none_of_says_which_was_probably_meant(
    client: httpx.Client, path: str, words: str
) -> None:
    error = client.get(path).json()["error"]
    assert (error["type"], error["code"]) == ("not_found_error", "not_found")
    assert words in error["message"]


def test_a_method_that_a_path_does_not_take_is_a_request_that_cannot_be_done(client: httpx.Client) -> None:
    answer = client.get(CHAT)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "method_not_allowed")
    assert error["message"] == "the path does not take GET: it takes POST"


@pytest.mark.story
def test_a_path_with_a_route_for_each_method_lists_all_of_them(client: httpx.Client) -> None:
    answer = client.post("/v1/cache")
    assert {"GET", "DELETE"} <= set(answer.headers["allow"].split(", "))
    assert answer.json()["error"]["message"].endswith(f"it takes {answer.headers['allow']}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lora": "x"}, "lora is not supported"),
        ({"modalities": ["audio"]}, "modalities is not supported"),
        ({"messages": [{"role": "user", "content": "x", "images": []}]}, "messages.0.images is not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "'input_audio' is not supported"),
        ({"messages": [{"role": "user", "content": "half \ud83d"}]}, "half of a surrogate pair"),
        ({"messages": []}, "messages is []: give at least 1 item"),
        ({"stop": ""}, 'stop is "": give at least 1 character or a list'),
        ({"temperature": -1}, "temperature is -1: give at least 0"),
        ({"temperature": float("nan")}, "temperature is NaN: give at most 2"),
        ({"temperature": "hot"}, 'temperature is "hot": give a number'),
        ({"model": None}, "model is null: give text"),
        ({"messages": ["x"]}, 'messages.0 is "x": give an object'),
        ({"messages": [{"content": "x"}]}, "messages.0.role is missing: give it"),
        ({"messages": [{"role": "king"}]}, 'messages.0.role is "king": give one of "system", "developer", "user", '),
        ({"messages": [*SHORT, {"role": "user"}]}, "messages.1: this message of role user has no content: give it"),
        ({"messages": [*SHORT, {"role": "system", "content": None}]}, "messages.1: this message of role system has no"),
        ({"messages": [*SHORT, {"role": "tool", "tool_call_id": "a"}]}, "messages.1: this message of role tool has no"),
        ({"messages": [*SHORT, {"role": "assistant"}]}, "messages.1: this message of role assistant has neither"),
        (
            {"messages": [{"role": "assistant", "tool_calls": []}]},
            "has neither content nor tool_calls: give one of them",
        ),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content is []: give text or at least 1 item"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content is 3: give text or a list"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text is missing"),
        ({"tool_choice": "always"}, 'tool_choice is "always": give one of "none", "auto" or "required" or an object'),
        ({"tool_choice": {"type": "function", "x": 1}}, "tool_choice.x is not supported"),
        ({"response_format": {"type": "xml"}}, 'response_format is {"type": "xml"}: give one whose "type" is one of '),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema is missing"),
        ({"logit_bias": {"x": 1}}, 'logit_bias has the key "x": give text that matches'),
        ({"logit_bias": {"1": 1000}}, "logit_bias.1 is 1000: give at most 100"),
        ({"user": "u" * 600}, 'uuu…": give at most 512 characters'),
        ({"stream": "perhaps"}, "give true or false"),
        ({"store": True}, "store is true: give false"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5: give a whole number"),
        ({"logit_bias": {"999999": 1}}, "logit_bias names token 999999"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
        ({"tool_choice": "required"}, "give tools"),
        ({"stop": [""]}, 'stop.0 is "": give at least 1 character'),
        ({"n": 0}, "n is 0: give at least 1"),
        ({"min_tokens": 3, "response_format": {"type": "json_object"}}, "min_tokens is 3 beside a grammar"),
        ({"max_tokens": 10**30}, "give at most 1,073,741,824"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(client: httpx.Client, change: dict[str, Any], words: str) -> None:
    sent = json.dumps(body(**change))
    answer = client.post(CHAT, content=sent, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("called", [{"content": None}, {}, {"content": ""}])
def test_an_assistants_message_with_calls_needs_no_content(client: httpx.Client, called: dict[str, Any]) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "a", "content": "24 C"}
    messages = [*SHORT, {"role": "assistant", "tool_calls": [call], **called}, result]
    assert chat(client, messages=messages, max_tokens=2).status_code == 200


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "the body is empty: send a JSON object"),
        (b"{", "the body is not JSON"),
        (b"[1", "the body is not JSON"),
        (b"\xff\xfe", "the body is not JSON"),
        (b"[" * 100_000, "the body "),
        (b'"text"', 'the body is "text": give an object'),
        (b"null", "the body is null: give an object"),
    ],
)
def test_a_body_that_is_no_object_is_refused(client: httpx.Client, sent: bytes, words: str) -> None:
    answer = client.post(CHAT, content=sent, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] in ("invalid_json", "invalid_value")


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "prompt is []: give text or at least 1 item"),
        ([0, 10**9], "the prompt has token 1000000000"),
        ([[1], [2, 999999]], "the prompt has token 999999"),
        ("", 'prompt is "": give at least 1 character'),
        ([[]], "prompt.0 is []: give "),
        ([3, "x"], 'prompt.1 is "x": give a whole number'),
        ([["x"]], 'prompt.0.0 is "x": give a whole number'),
        ({"a": [1]}, 'prompt is {"a": […]}: give text or a list'),
    ],
)
def test_prompts_that_are_no_tokens_are_refused(client: httpx.Client, prompt: Any, words: str) -> None:
    answer = client.post("/v1/completions", json={"model": "tiny", "prompt": prompt})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers(client: httpx.Client) -> None:
    """Also one that is not even read to its end."""
    for words, least in (("the fox " * 300, 600), ("the fox " * 25_000, 8_000)):
        answer = client.post(CHAT, json=body(messages=[{"role": "user", "content": words}]))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["numbers"]["max_length"] == 512
        assert error["numbers"]["prompt_tokens"] >= least
        assert error["numbers"]["sheets_needed"] > 8


@pytest.mark.story
@pytest.mark.parametrize(
    ("path", "change", "size", "fix"),
    [
        (COMPLETIONS, {"prompt": [7] * 600}, "600 tokens of prompt and 1 of output: ", "shorten the prompt"),
        (COMPLETIONS, {"prompt": [7] * 500, "max_tokens": 13}, "500 tokens of prompt and 13 of output: ",
         "shorten the prompt or lower max_tokens to 12"),
        (COMPLETIONS, {"prompt": ["a", ENDLESS]}, " tokens of prompt: ", "shorten the prompt"),
        (CHAT, {"messages": said("fox " * 600)}, " tokens of messages and 1 of output: ", "shorten the messages"),
        (CHAT, {"messages": said("fox"), "max_tokens": 511}, " tokens of messages and 511 of output: ",
         "shorten the messages or lower max_tokens to {left}"),
        (CHAT, {"messages": said("fox"), "max_completion_tokens": 511}, " tokens of messages and 511 of output: ",
         "shorten the messages or lower max_completion_tokens to {left}"),
        (CHAT, {"messages": said(ENDLESS)}, " tokens of messages: ", "shorten the messages"),
        ("/v1/tokenize", {"prompt": ENDLESS}, " tokens of prompt: ", "shorten the prompt"),
        ("/v1/tokenize", {"messages": said(ENDLESS)}, " tokens of messages: ", "shorten the messages"),
    ],
)  # fmt: skip
def test_what_can_never_fit_is_told_in_the_words_of_what_was_sent(
    client: httpx.Client, path: str, change: dict[str, Any], size: str, fix: str
) -> None:
    error = client.post(path, json={"model": "tiny", **change}).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", next(iter(change)))
    assert "maximum context length is 512 tokens here" in error["message"]
    assert size in error["message"]
    left = 512 - error["numbers"]["prompt_tokens"]
    assert error["message"].endswith(fix.format(left=left))
