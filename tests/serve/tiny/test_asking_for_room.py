"""/v1/room: a key learns what a request of its own would meet, and nothing of other scopes' prefixes."""

from __future__ import annotations

from typing import Any

import httpx

from running_server import RunningServer

WORDS = "the quick brown fox sees the lazy dog "
MESSAGES = [{"role": "user", "content": WORDS * 20}]


def room(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/room", json=body) if body else client.get("/v1/room")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_an_idle_server_has_room_at_once(tiny_server: RunningServer, keys: Any) -> None:
    tiny_server.until("it is idle", tiny_server.is_idle)
    with tiny_server.client(keys.alice) as alice:
        assert room(alice) == {
            "object": "room", "fits": True, "queue_full": False, "prompt_tokens": 1, "pool_tokens": 0,
            "coming_tokens": 0, "tier_tokens": 0, "tokens_ahead": 0, "running": 0, "waiting": 0, "most_steps": 0,
            "most_load_seconds": 0.0, "reused_tokens": 0,
        }  # fmt: skip


def test_a_key_finds_its_own_prefixes_and_those_of_no_other_scope(tiny_server: RunningServer, keys: Any) -> None:
    with tiny_server.client(keys.alice) as alice, tiny_server.client(keys.bob) as bob:
        chat = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4, "ignore_eos": True}
        assert alice.post("/v1/chat/completions", json=chat).status_code == 200
        tiny_server.until("it is idle", tiny_server.is_idle)
        told = room(alice, messages=MESSAGES, max_tokens=4)
        used = alice.post("/v1/chat/completions", json=chat).json()["usage"]
        assert told["reused_tokens"] == used["prompt_tokens_details"]["cached_tokens"] > 0
        assert told["prompt_tokens"] == used["prompt_tokens"]
        stranger = room(bob, messages=MESSAGES, max_tokens=4)
        assert (stranger["reused_tokens"], stranger["coming_tokens"]) == (0, 0)


def test_a_request_that_could_never_run_does_not_fit(tiny_server: RunningServer, keys: Any) -> None:
    with tiny_server.client(keys.alice) as alice:
        assert not room(alice, prompt="fox", max_tokens=100_000)["fits"]


def test_bad_questions_are_refused_by_name(tiny_server: RunningServer, keys: Any) -> None:
    with tiny_server.client(keys.alice) as alice:
        for body, field in (({}, "messages"), ({"prompt": "fox", "max_tokens": 0}, "max_tokens")):
            answer = alice.post("/v1/room", json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    with tiny_server.client() as nobody:
        assert nobody.get("/v1/room").status_code == 401
