"""Leases over HTTP: found under pressure, by their own tenant alone; refusals have codes and numbers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from running_server import RunningServer
from serve_kit import CHAT, MESSAGES, body

WORDS = "the quick brown fox sees the lazy dog "
RETAIN = {"seconds": 300}
LONG = [{"role": "user", "content": WORDS * 12}]


@pytest.fixture
def server(tiny_server: RunningServer, keys: Any) -> Iterator[RunningServer]:
    """Without leases and without cached prefixes, before and after."""
    _empty(tiny_server, keys)
    yield tiny_server
    _empty(tiny_server, keys)


def _empty(server: RunningServer, keys: Any) -> None:
    server.until("it is idle", server.is_idle)
    with server.client(keys.admin) as admin:
        for lease in admin.get("/v1/leases").json()["data"]:
            assert admin.delete(f"/v1/leases/{lease['name']}").status_code == 200
        assert admin.delete("/v1/cache", params={"everything": True}).status_code == 200
    for key in (keys.alice, keys.bob, keys.admin, keys.hoarder):
        with server.client(key) as client:
            client.get("/v1/leases")  # takes what is reported of broken leases


def prompt(seed: int, tokens: int = 128) -> list[int]:
    return [3 + (seed * 31 + place * 7) % 50 for place in range(tokens)]


def complete(client: httpx.Client, tokens: list[int], **more: Any) -> dict[str, Any]:
    asked = {"model": "tiny", "prompt": tokens, "max_tokens": 4, "ignore_eos": True, **more}
    answer = client.post("/v1/completions", json=asked)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def press(client: httpx.Client) -> None:
    """Prompts that share nothing, several times the pool."""
    for first in range(100, 148, 16):
        prompts = [prompt(seed, 400) for seed in range(first, first + 16)]
        complete(client, prompts, max_tokens=1)  # type: ignore[arg-type]


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_retained_answer_is_found_under_pressure_and_its_session_moves_on(server: RunningServer, keys: Any) -> None:
    with server.client(keys.alice) as alice, server.client(keys.bob) as bob:
        first = complete(alice, prompt(1), retain={"seconds": 300, "session": "chat-1"})
        lease = first["lease"]
        assert (lease["object"], lease["name"], lease["granted"]) == ("lease", "chat-1", True)
        assert lease["tokens"] >= 128
        assert 290 < lease["until"] - time.time() <= 302
        complete(alice, prompt(2))
        press(bob)
        again = complete(alice, [*prompt(1), 5, 6], retain={"seconds": 300, "session": "chat-1"})
        assert cached(again) >= 64
        assert cached(complete(alice, prompt(2))) == 0
        assert [one["name"] for one in alice.get("/v1/leases").json()["data"]] == ["chat-1"]
        assert bob.get("/v1/leases").json()["data"] == []
        assert server.metric("quire_leases") == 1
        assert server.metric("quire_leased_bytes") >= 64 << 10
    assert "lease" not in complete_without(server, keys)


def complete_without(server: RunningServer, keys: Any) -> dict[str, Any]:
    with server.client(keys.alice) as alice:
        return complete(alice, prompt(3))


def test_a_stream_ends_with_its_lease(server: RunningServer, keys: Any) -> None:
    """In a chunk without choices, with the usage if that is requested; also if a stop sequence ended the answer."""
    with server.client(keys.alice) as alice:
        for more in ({}, {"stream_options": {"include_usage": True}}, {"stop": ["e", "a", "o", "i", " "]}):
            asked = body(stream=True, messages=LONG, max_tokens=8, retain=RETAIN, **more)
            chunks = [
                json.loads(line.removeprefix("data: "))
                for line in alice.post(CHAT, json=asked).text.splitlines()
                if line.startswith("data: {")
            ]
            assert chunks[-1]["choices"] == []
            assert chunks[-1]["lease"]["granted"], chunks[-1]
            assert chunks[-1]["lease"]["until"] > time.time()
            assert ("usage" in chunks[-1]) == ("stream_options" in more)


def test_every_api_has_the_lease_in_its_answer(server: RunningServer, keys: Any) -> None:
    messages = [{"role": "user", "content": WORDS * 12}]
    with server.client(keys.alice) as alice:
        chat = alice.post(CHAT, json=body(messages=messages, max_tokens=4, retain=RETAIN)).json()
        asked = {"model": "tiny", "input": WORDS * 12, "max_output_tokens": 4, "retain": RETAIN}
        response = alice.post("/v1/responses", json=asked).json()
        message = alice.post(
            MESSAGES, json={"model": "tiny", "messages": messages, "max_tokens": 4, "retain": RETAIN}
        ).json()
    assert chat["lease"]["granted"], chat["lease"]
    assert response["lease"]["granted"]
    assert message["lease"]["granted"]


def test_the_openai_client_asks_with_extra_body(server: RunningServer, keys: Any) -> None:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key=keys.alice, max_retries=0) as client:
        answer = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": WORDS * 12}],
            max_tokens=4,
            extra_body={"retain": {"seconds": 60, "session": "agent"}},
        )
    assert answer.model_extra is not None
    lease = answer.model_extra["lease"]
    assert (lease["name"], lease["granted"]) == ("agent", True)


def test_the_anthropic_client_asks_with_cache_control(server: RunningServer, keys: Any) -> None:
    """Tokens that are leased now are those of cache creation; the next turn reads them, whatever ran in between."""
    system: Any = [{"type": "text", "text": WORDS * 12, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    with anthropic.Anthropic(base_url=server.address, api_key=keys.alice, max_retries=0) as client:

        def say(messages: list[Any]) -> Any:
            return client.messages.create(model="tiny", max_tokens=4, system=system, messages=messages)

        first = say([{"role": "user", "content": "the fox"}])
        usage, lease = first.usage, first.model_extra["lease"]
        assert lease["granted"], lease
        assert 3500 < lease["until"] - time.time() <= 3602
        assert (usage.input_tokens, usage.cache_read_input_tokens) == (0, 0)
        assert usage.cache_creation_input_tokens > 64
        with server.client(keys.bob) as bob:
            press(bob)
        second = say([{"role": "user", "content": "the fox"}])
        assert second.usage.cache_read_input_tokens >= 64
        with client.messages.stream(
            model="tiny", max_tokens=4, system=system, messages=[{"role": "user", "content": "the fox"}]
        ) as stream:
            assert stream.get_final_message().usage.cache_creation_input_tokens is not None
        plain = client.messages.create(
            model="tiny", max_tokens=4, messages=[{"role": "user", "content": "the quick dog"}]
        )
    assert plain.usage.cache_creation_input_tokens == 0
    assert "lease" not in (plain.model_extra or {})


def test_cache_control_in_a_chat_asks_for_five_minutes(server: RunningServer, keys: Any) -> None:
    """On a message, a part or a tool, and none of them reaches the template."""
    mark = {"cache_control": {"type": "ephemeral"}}
    part = {"role": "user", "content": [{"type": "text", "text": WORDS * 12, **mark}]}
    with server.client(keys.alice) as alice:
        plain = alice.post(CHAT, json=body(messages=[{"role": "user", "content": WORDS * 12}], max_tokens=4)).json()
        for message in ({"role": "user", "content": WORDS * 12, **mark}, part):
            answer = alice.post(CHAT, json=body(messages=[message], max_tokens=4)).json()
            assert answer["lease"]["granted"], answer["lease"]
            assert 290 < answer["lease"]["until"] - time.time() <= 302
            assert answer["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


def test_a_prefix_in_the_cache_is_leased_by_name_listed_and_released(server: RunningServer, keys: Any) -> None:
    with server.client(keys.alice) as alice, server.client(keys.admin) as admin, server.client(keys.bob) as bob:
        complete(alice, prompt(1))
        asked = {"prompt": prompt(1), "seconds": 60, "name": "docs"}
        granted = alice.post("/v1/leases", json=asked)
        assert granted.status_code == 200, granted.text
        assert granted.json()["tokens"] >= 64
        assert alice.get("/v1/leases/docs").json() == granted.json()
        assert "tenant" not in alice.get("/v1/leases/docs").json()
        assert admin.get("/v1/leases/docs").json()["tenant"] == "alice"
        for call in (bob.get, bob.delete):
            answer = call("/v1/leases/docs")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "lease_not_found")
        assert bob.post("/v1/leases", json=asked).json()["error"]["code"] == "lease_absent"
        assert alice.delete("/v1/leases/docs").json() == {"object": "lease", "name": "docs", "released": True}
        assert alice.get("/v1/leases/docs").status_code == 404
        messages = [{"role": "user", "content": WORDS * 12}]
        alice.post(CHAT, json=body(messages=messages, max_tokens=4))
        assert alice.post("/v1/leases", json={"messages": messages, "seconds": 9}).json()["granted"]
    assert server.metric("quire_leases_ended_total", ending="released") >= 1


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"retain": {"seconds": 3601}}, "lease_too_long", "retain.seconds"),
        ({"retain": {"seconds": 0}}, "invalid_value", "retain.seconds"),
        ({"retain": {"seconds": 5, "session": "a b"}}, "invalid_value", "retain.session"),
        ({"retain": {"seconds": 5}, "n": 2}, "invalid_value", "retain"),
        ({"retain": {"minutes": 5, "seconds": 5}}, "unsupported_field", "retain.minutes"),
    ],
)
def test_a_mistake_names_its_field(client: httpx.Client, change: dict[str, Any], code: str, param: str) -> None:
    answer = client.post(CHAT, json=body(**change))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param), error


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"seconds": 7200, "prompt": [5, 6]}, 400, "lease_too_long"),
        ({"seconds": 60, "prompt": prompt(77)}, 404, "lease_absent"),
        ({"seconds": 60}, 400, "invalid_value"),
        ({"seconds": 60, "prompt": "the fox", "messages": body()["messages"]}, 400, "invalid_value"),
        ({"seconds": 60, "prompt": "the fox", "model": "another"}, 404, "model_not_found"),
    ],
)
def test_a_lease_that_cannot_be_is_refused(
    client: httpx.Client, change: dict[str, Any], status: int, code: str
) -> None:
    answer = client.post("/v1/leases", json=change)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


def test_a_client_that_hoards_leases_is_refused_and_no_other_waits(server: RunningServer, keys: Any) -> None:
    """Over its quota with the quota's numbers; without one until lease memory is full, and then with the time at which
    there is room. Requests of others are answered all the while."""
    with server.client(keys.hoarder) as hoarder, server.client(keys.alice) as alice, server.client(keys.bob) as bob:
        own = [complete(hoarder, prompt(seed), retain=RETAIN)["lease"] for seed in range(4)]
        assert [one["granted"] for one in own] == [True, False, False, False], own
        assert own[-1]["code"] == "lease_quota"
        assert own[-1]["limit_bytes"] == 300 << 10
        leases = [complete(alice, prompt(seed, 64), retain=RETAIN)["lease"] for seed in range(20, 30)]
        refused = [one for one in leases if not one["granted"]]
        assert len(refused) < len(leases)
        assert refused[-1]["code"] == "lease_memory"
        assert refused[-1]["limit_bytes"] >= sum(one["size_bytes"] for one in leases if one["granted"])
        assert time.time() < refused[-1]["earliest"] <= time.time() + 302
        assert "other leases leave room in" in refused[-1]["message"]
        press(bob)
        complete(bob, prompt(50, 480))
        complete(bob, prompt(51, 200))
        asked = bob.post("/v1/leases", json={"prompt": prompt(51, 200), "seconds": 5})
        assert (asked.status_code, asked.json()["error"]["code"]) == (429, "lease_memory")
        assert asked.json()["error"]["numbers"]["size_bytes"] > 0
        assert 0 < int(asked.headers["retry-after"]) <= 302
    assert server.metric("quire_leases_refused_total", reason="quota") >= 3
    assert server.metric("quire_leases_refused_total", reason="memory") >= 1


def test_a_broken_lease_is_in_the_next_answer_of_its_tenant(server: RunningServer, keys: Any) -> None:
    """Once, and in no other tenant's."""
    with server.client(keys.alice) as alice, server.client(keys.bob) as bob:
        complete(alice, prompt(1), retain={"seconds": 300, "session": "lost"})
        assert alice.delete("/v1/cache").status_code == 200
        assert "broken" not in complete(bob, prompt(2), retain=RETAIN)["lease"]
        (broken,) = complete(alice, prompt(1), retain=RETAIN)["lease"]["broken"]
        assert (broken["name"], broken["ending"]) == ("lost", "cache_dropped")
        assert "broken" not in complete(alice, prompt(3), retain=RETAIN)["lease"]
    assert server.metric("quire_leases_ended_total", ending="cache_dropped") >= 1
