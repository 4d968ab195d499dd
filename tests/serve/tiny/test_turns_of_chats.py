"""Next turns over HTTP: what an idle server computes ahead is found by the turn that follows, whatever API asks."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from running_server import RunningServer
from serve_kit import CHAT, MESSAGES

WARM = "/v1/cache/warm"
QUESTION = "the quick brown fox sees the lazy dog " * 4
LATER = "and the dog sees the fox"


def _settled(server: RunningServer, turns: float) -> None:
    """The turn was reported, and nothing waits to be computed."""
    server.until("the turn is known", lambda: server.metric("quire_turns_total") > turns)
    server.until("all is computed", lambda: not server.metric("quire_warm_waiting"))
    server.until("it is idle", server.is_idle)


def _chat(client: httpx.Client, messages: list[dict[str, Any]]) -> tuple[str, int, int]:
    asked = {"model": "tiny", "messages": messages, "max_tokens": 24, "ignore_eos": True, "temperature": 0}
    answer = client.post(CHAT, json=asked).json()
    usage = answer["usage"]
    text = answer["choices"][0]["message"]["content"]
    return text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def _message(client: httpx.Client, messages: list[dict[str, Any]]) -> tuple[str, int, int]:
    asked = {"model": "tiny", "messages": messages, "max_tokens": 24, "temperature": 0}
    answer = client.post(MESSAGES, json=asked).json()
    usage = answer["usage"]
    text = "".join(block["text"] for block in answer["content"])
    return text, usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]


def _response(client: httpx.Client, messages: list[dict[str, Any]]) -> tuple[str, int, int]:
    asked = {"model": "tiny", "input": messages, "max_output_tokens": 24, "temperature": 0, "store": False}
    answer = client.post("/v1/responses", json=asked).json()
    usage = answer["usage"]
    text = "".join(part["text"] for item in answer["output"] for part in item.get("content", ()))
    return text, usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("ask", [_chat, _message, _response])
def test_the_next_turn_finds_all_but_what_is_new(tiny_server: RunningServer, client: httpx.Client, ask: Any) -> None:
    server = tiny_server
    turns, warmed = server.metric("quire_turns_total"), server.metric("quire_warm_tokens_total")
    messages = [{"role": "user", "content": f"{ask.__name__} {QUESTION}"}]
    text, before, _ = ask(client, messages)
    _settled(server, turns)
    history = [*messages, {"role": "assistant", "content": text or "."}, {"role": "user", "content": LATER}]
    _, prompt, cached = ask(client, history)
    unit = 64
    new = len(LATER) + unit + 8
    assert cached > prompt - new
    assert cached % 16 == 0
    assert cached >= before // unit * unit
    assert server.metric("quire_warm_tokens_total") >= warmed


def test_an_announced_conversation_is_computed_and_found_by_its_own_tenant_alone(
    tiny_server: RunningServer, client: httpx.Client, keys: Any
) -> None:
    messages = [{"role": "user", "content": "announced: " + QUESTION}]
    before = tiny_server.metric("quire_warm_tokens_total")
    requests, steps = (tiny_server.metric(name) for name in ("quire_prompt_tokens_total", "quire_steps_total"))
    answer = client.post(WARM, json={"model": "tiny", "messages": messages})
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == "cache.warm"
    tokens = answer.json()["tokens"]
    server = tiny_server
    server.until("it is computed", lambda: server.metric("quire_warm_tokens_total") >= before + (tokens - 1) // 64 * 64)
    server.until("it is idle", server.is_idle)
    assert server.metric("quire_prompt_tokens_total") == requests
    assert server.metric("quire_steps_total") == steps
    _, prompt, cached = _chat(client, messages)
    assert (prompt, cached) == (tokens, (tokens - 1) // 64 * 64)
    with server.client(keys.bob) as bob:
        assert _chat(bob, messages)[2] == 0


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid_value"),
        ({"prompt": [3, 4], "messages": [{"role": "user", "content": "a"}]}, 400, "invalid_value"),
        ({"prompt": [3] * 600}, 400, "context_length_exceeded"),
        ({"prompt": [999_999]}, 400, "invalid_value"),
        ({"prompt": "a", "model": "another"}, 404, "model_not_found"),
        ({"prompt": "a", "seconds": 3}, 400, "unsupported_field"),
    ],
)
def test_what_cannot_be_computed_ahead_is_refused_as_a_chat_would_be(
    client: httpx.Client, body: dict[str, Any], status: int, code: str
) -> None:
    answer = client.post(WARM, json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == code


def test_limits_of_a_key_hold_for_announced_prompts(tiny_server: RunningServer, keys: Any) -> None:
    with tiny_server.client(keys.brief) as client:
        answer = client.post(WARM, json={"prompt": [3] * 200})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "tokens_limit")
        assert client.post(WARM, json={"prompt": [3] * 20}).status_code == 200
    with tiny_server.client() as nobody:
        assert nobody.post(WARM, json={"prompt": "a"}).status_code == 401
