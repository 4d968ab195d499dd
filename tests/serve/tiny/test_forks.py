"""`fork_from` over HTTP: continues answers of the same key, and refuses the rest with codes and numbers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from running_server import RunningServer

PROMPT = [3 + place * 11 % 50 for place in range(70)]
ASK = {"model": "tiny", "max_tokens": 12, "ignore_eos": True, "temperature": 0, "logprobs": 0}


def complete(client: httpx.Client, **asked: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json={**ASK, **asked})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["text"])


def test_a_fork_continues_an_answer_where_it_is_told_to(tiny_server: RunningServer, keys: Any) -> None:
    with tiny_server.client(keys.alice) as client:
        whole = complete(client, prompt=PROMPT, max_tokens=24)
        first = complete(client, prompt=PROMPT)
        rest = complete(client, fork_from={"id": first["id"]})
        assert text(first) + text(rest) == text(whole)
        assert rest["fork"] == {"id": first["id"], "at": 82, "recomputed_tokens": rest["fork"]["recomputed_tokens"]}
        assert rest["usage"]["prompt_tokens"] == 82
        assert rest["usage"]["prompt_tokens_details"]["cached_tokens"] == 81 - rest["fork"]["recomputed_tokens"]
        again = complete(client, fork_from={"id": first["id"], "at": 70}, n=3)
        assert {one["text"] for one in again["choices"]} == {text(first)}
        assert again["fork"]["at"] == 70
        assert text(complete(client, fork_from={"id": first["id"], "at": 70}, prompt="")) == text(first)
        more = complete(client, fork_from={"id": first["id"], "at": 70}, prompt=[5, 6])
        assert text(more) == text(complete(client, prompt=[*PROMPT, 5, 6]))


def test_choices_are_forked_by_their_index(tiny_server: RunningServer, keys: Any) -> None:
    with tiny_server.client(keys.alice) as client:
        two = complete(client, prompt=[PROMPT, PROMPT[:20]])
        fork = complete(client, fork_from={"id": two["id"], "index": 1})
        assert fork["usage"]["prompt_tokens"] == 32


def test_a_chat_is_forked_while_it_is_streamed(tiny_server: RunningServer, keys: Any) -> None:
    """Through the official client: the stream's last chunk says how many tokens were computed again."""
    url, said = tiny_server.address + "/v1", [{"role": "user", "content": "the quick brown fox"}]
    with openai.OpenAI(base_url=url, api_key=keys.alice, max_retries=0) as client:
        ask: Any = {"model": "tiny", "temperature": 0, "stream": True}
        more = {"ignore_eos": True}
        parent = client.chat.completions.create(**ask, messages=said, max_tokens=200, extra_body=more)
        chunks = [next(parent) for _ in range(5)]
        fork = {"fork_from": {"id": chunks[0].id}, **more}
        forked = list(client.chat.completions.create(**ask, messages=[], max_tokens=4, extra_body=fork))
        told = forked[-1].model_dump()["fork"]
        assert told["id"] == chunks[0].id
        assert told["recomputed_tokens"] == 0
        chunks += list(parent)
        assert not any("fork" in chunk.model_dump() for chunk in chunks)


@pytest.mark.parametrize(
    ("fork", "status", "code", "part"),
    [
        ({"id": "cmpl-000"}, 404, "fork_not_found", "cmpl-000"),
        ({"at": 83}, 400, "fork_out_of_range", "has 82 (70 of its prompt, 12 generated): give at between 1 and 82"),
        ({"at": 0}, 400, "invalid_value", "fork_from.at is 0: give at least 1"),
        ({"index": 1}, 400, "fork_out_of_range", "has no choice 1: give index 0"),
    ],
)
def test_a_fork_of_what_is_not_there_is_refused(
    tiny_server: RunningServer, keys: Any, fork: dict[str, Any], status: int, code: str, part: str
) -> None:
    with tiny_server.client(keys.alice) as client:
        first = complete(client, prompt=PROMPT)
        answer = client.post("/v1/completions", json={**ASK, "fork_from": {"id": first["id"], **fork}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert part in answer.json()["error"]["message"]


def test_answers_of_other_keys_cannot_be_forked(tiny_server: RunningServer, keys: Any) -> None:
    """Nor is it said that they exist."""
    with tiny_server.client(keys.alice) as client:
        first = complete(client, prompt=PROMPT)
    for key in (keys.bob, keys.alices_other):
        with tiny_server.client(key) as client:
            answer = client.post("/v1/completions", json={**ASK, "fork_from": {"id": first["id"], "at": 500}})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "fork_not_found")


def test_a_body_has_a_beginning_or_a_fork(tiny_server: RunningServer, keys: Any) -> None:
    chat = {"model": "tiny", "max_tokens": 2}
    with tiny_server.client(keys.alice) as client:
        first = complete(client, prompt=PROMPT)
        said, fork = [{"role": "user", "content": "the fox"}], {"fork_from": {"id": first["id"]}}
        for path, asked, part in (
            ("/v1/completions", ASK, "prompt is missing: give it"),
            ("/v1/completions", {**ASK, "prompt": ""}, "prompt is"),
            ("/v1/chat/completions", chat, "messages is missing: give it"),
            ("/v1/chat/completions", {**chat, "messages": []}, "messages is []: give at least 1 item"),
            ("/v1/chat/completions", {**chat, "messages": said, **fork}, "leave messages out"),
        ):
            answer = client.post(path, json=asked)
            assert answer.status_code == 400
            assert part in answer.json()["error"]["message"]


def test_forks_are_counted_and_explained(tiny_server: RunningServer, keys: Any) -> None:
    with tiny_server.client(keys.admin) as client:
        tiny_server.until("it is idle", tiny_server.is_idle)
        before = forks(client)
        first = complete(client, prompt=PROMPT)
        complete(client, fork_from={"id": first["id"]})
        tiny_server.until("the fork is counted", lambda: forks(client) > before, seconds=30)
        told = client.get(f"/v1/requests/{first['id']}/explain").json()
        assert "forked" in json.dumps(told)


def forks(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("quire_forks_total"))
