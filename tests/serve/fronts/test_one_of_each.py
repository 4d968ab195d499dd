"""Several processes speak HTTP and there is one of everything else: limits, calls, stored responses, metrics."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from fronts_kit import FRONTS, client_of_each, front_of, standing_still
from running_server import RunningServer
from serve_kit import CHAT, body, chat, wait_for_tokens

LONG = {"max_tokens": 400, "stream": True, "ignore_eos": True}


def test_connections_are_spread_evenly(server: RunningServer, keys: Any) -> None:
    """However many arrive at once: the next one goes to the process that has the fewest."""
    with ExitStack() as stack:
        clients = [stack.enter_context(server.client(keys.alice)) for _ in range(12)]
        with ThreadPoolExecutor(12) as pool:
            counts = Counter(pool.map(lambda client: front_of(server, client), clients))
    assert counts == dict.fromkeys(FRONTS, 4)


def test_a_key_has_its_concurrent_requests_once_and_not_once_per_process(
    server: RunningServer, keys: Any, freeze_file: Path
) -> None:
    """Twelve calls at once, a third in each process: two are accepted. None ends before all others are answered."""
    with ExitStack() as stack, ThreadPoolExecutor(12) as pool:
        clients = [stack.enter_context(server.client(keys.pair)) for _ in range(12)]
        assert Counter(front_of(server, client) for client in clients) == dict.fromkeys(FRONTS, 4)
        with standing_still(freeze_file):
            calls = [pool.submit(chat, client, max_tokens=3) for client in clients]
            server.until("ten have an answer", lambda: sum(call.done() for call in calls) >= 10)
            refused = [call.result() for call in calls if call.done()]
        assert [answer.json()["error"]["code"] for answer in refused] == ["requests_limit"] * 10
        assert Counter(call.result().status_code for call in calls) == {200: 2, 429: 10}


def test_a_call_that_has_ended_has_given_its_place_back_for_every_process(server: RunningServer, keys: Any) -> None:
    """Each begins when the one before it has its answer: none is refused, in whichever process."""
    with client_of_each(server, keys.pair) as fronts:
        for client in fronts.values():
            server.until("there is a place", lambda client=client: chat(client, n=2, max_tokens=2).status_code == 200)
        for turn in range(30):
            found = chat(fronts[turn % 3 + 1], n=2, max_tokens=2)
            assert (found.status_code, found.headers["x-ratelimit-remaining-requests"]) == (200, "2"), found.text


def test_two_streams_use_up_a_limit_of_two_for_every_process(
    server: RunningServer, keys: Any, freeze_file: Path
) -> None:
    with client_of_each(server, keys.pair) as fronts, ExitStack() as stack:
        streams = [stack.enter_context(fronts[number].stream("POST", CHAT, json=body(**LONG))) for number in (1, 2)]
        with standing_still(freeze_file):
            left = [stream.headers["x-ratelimit-remaining-requests"] for stream in streams]
            refused = chat(fronts[3], max_tokens=2)
        assert left == ["1", "0"]
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "requests_limit")
        assert "2 requests of this key are under way" in refused.json()["error"]["message"]
    server.until("it is idle", server.is_idle)


def test_tokens_of_a_minute_are_one_bucket(server: RunningServer, keys: Any) -> None:
    """600 tokens a minute and calls of about 100, over all processes: six fit, and one more for each ten seconds."""
    with client_of_each(server, keys.metered) as fronts, ThreadPoolExecutor(12) as pool:
        begun = time.monotonic()
        asked = [client for client in fronts.values() for _ in range(4)]
        answers = list(pool.map(lambda client: chat(client, max_tokens=94, ignore_eos=True), asked))
        accepted = [answer for answer in answers if answer.status_code == 200]
        used = sum(answer.json()["usage"]["total_tokens"] for answer in accepted)
        assert 500 < used <= 600 + 10 * (time.monotonic() - begun)
        refused = [answer.json()["error"]["code"] for answer in answers if answer.status_code == 429]
        assert refused == ["tokens_limit"] * (12 - len(accepted))
        left = [client.get("/v1/models").headers["x-ratelimit-remaining-tokens"] for client in fronts.values()]
        assert all(0 <= int(one) <= 600 - used + 10 * (time.monotonic() - begun) for one in left)


def test_an_answer_without_a_length_takes_the_tokens_that_are_left(server: RunningServer, keys: Any) -> None:
    """As in one process: it is shortened to the minute's tokens, of which other processes have used some."""
    with client_of_each(server, keys.metered) as fronts:

        def left() -> int:
            return int(fronts[1].get("/v1/models").headers["x-ratelimit-remaining-tokens"])

        server.until("there are tokens again", lambda: left() >= 30)
        found = chat(fronts[2], ignore_eos=True)
        assert found.status_code == 200, found.text
        usage = found.json()["usage"]
        assert 20 <= usage["total_tokens"] <= 600
        assert int(found.headers["x-ratelimit-remaining-tokens"]) <= 20


def test_every_process_explains_every_call_and_hides_those_of_others(
    server: RunningServer, keys: Any, clients: dict[int, httpx.Client]
) -> None:
    with clients[1].stream("POST", CHAT, json=body(**LONG), headers={"x-request-id": "mine"}) as stream:
        lines = stream.iter_lines()
        chunk = wait_for_tokens(lines, 1)
        for number in (2, 3):
            for name in ("mine", chunk["id"]):
                found = clients[number].get(f"/v1/requests/{name}/explain")
                assert [choice["status"] for choice in found.json()["choices"]] == ["running"]
        with client_of_each(server, keys.bob) as others:
            for other in others.values():
                for path in (f"/v1/requests/{chunk['id']}/explain", f"/v1/requests/{chunk['id']}/abort"):
                    found = other.request("GET" if path.endswith("explain") else "POST", path)
                    assert (found.status_code, found.json()["error"]["code"]) == (404, "request_not_found")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_process_aborts_every_call(clients: dict[int, httpx.Client], number: int) -> None:
    """The client whose call it was gets the error, and the caller is told what it had."""
    with clients[1].stream("POST", CHAT, json=body(**LONG)) as stream:
        lines = stream.iter_lines()
        chunk = wait_for_tokens(lines, 2)
        with httpx.Client(base_url=clients[1].base_url, headers=clients[1].headers) as fresh:
            caller = clients[number] if number != 1 else fresh
            found = caller.post(f"/v1/requests/{chunk['id']}/abort").json()
        assert (found["aborted"], found["choices"][0]["status"]) == (1, "aborted")
        assert found["choices"][0]["output_tokens"] >= 2
        assert '"code":"aborted"' in "".join(lines)
    assert clients[2].post(f"/v1/requests/{chunk['id']}/abort").json()["aborted"] == 0


def test_a_stored_response_is_there_for_every_process_at_once(clients: dict[int, httpx.Client]) -> None:
    """A conversation that goes from process to process: each call continues what the one before it has just stored."""
    previous: str | None = None
    for turn in range(12):
        client = clients[turn % 3 + 1]
        asked = {"model": "tiny", "input": "and then?", "max_output_tokens": 4, "previous_response_id": previous}
        found = client.post("/v1/responses", json=asked)
        assert found.status_code == 200, found.text
        previous = found.json()["id"]
        assert found.json()["usage"]["input_tokens"] > 4 * turn
    assert clients[1].get(f"/v1/responses/{previous}").json()["id"] == previous
    listed = clients[2].get(f"/v1/responses/{previous}/input_items", params={"limit": 100}).json()["data"]
    assert len(listed) == 12 + 11
    assert clients[3].delete(f"/v1/responses/{previous}").json()["deleted"]
    for client in clients.values():
        assert client.get(f"/v1/responses/{previous}").json()["error"]["code"] == "response_not_found"
        asked = {"model": "tiny", "input": "x", "previous_response_id": previous}
        assert client.post("/v1/responses", json=asked).json()["error"]["code"] == "previous_response_not_found"


def test_a_response_stored_at_the_end_of_a_stream_can_be_continued_elsewhere(clients: dict[int, httpx.Client]) -> None:
    for turn in range(6):
        asked = {"model": "tiny", "input": "the quick fox", "max_output_tokens": 3, "stream": True}
        with clients[1].stream("POST", "/v1/responses", json=asked) as stream:
            lines = [line for line in stream.iter_lines() if line.startswith("data: ")]
        last = json.loads(lines[-1].removeprefix("data: "))["response"]["id"]
        more = {"model": "tiny", "input": "on", "max_output_tokens": 2, "previous_response_id": last}
        assert clients[turn % 2 + 2].post("/v1/responses", json=more).status_code == 200


def test_metrics_are_those_of_all_processes_whichever_answers(
    server: RunningServer, clients: dict[int, httpx.Client]
) -> None:
    path = "/v1/chat/completions/render"
    before = server.metric("quire_http_calls_total", path=path)
    first, whole = (server.metric(f"quire_{name}_seconds_count") for name in ("time_to_first_token", "call"))
    for times, client in zip((1, 2, 3), clients.values(), strict=True):
        for _ in range(times):
            assert client.post(path, json=body()).status_code == 200
            assert chat(client, max_tokens=3).status_code == 200
    server.until("all are counted", lambda: server.metric("quire_call_seconds_count") == whole + 6)
    for client in clients.values():
        text = client.get("/metrics").text
        assert _value(text, f'quire_http_calls_total{{method="POST",path="{path}",status="200"}}') == before + 6
        assert _value(text, "quire_time_to_first_token_seconds_count") == first + 6
        assert _value(text, 'quire_time_to_first_token_seconds_bucket{le="+Inf"}') == first + 6
        assert _value(text, "quire_ready") == 1
        of_processes = re.findall(r'^process_resident_memory_bytes\{process="(\w+)"\} \S+$', text, re.MULTILINE)
        assert sorted(of_processes) == ["1", "2", "3", "hub"]
        assert len(re.findall("^# TYPE quire_refused_total ", text, re.MULTILINE)) == 1


def _value(text: str, sample: str) -> float:
    (found,) = re.findall(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    return float(found)


def test_the_cache_and_health_answer_in_every_process(clients: dict[int, httpx.Client]) -> None:
    for client in clients.values():
        assert client.get("/v1/cache").json()["kinds"]
        assert client.delete("/v1/cache").status_code == 200
        assert client.get("/health/ready").json()["ready"]
        assert client.get("/health/progress").json()["progress"]


def test_what_was_chosen_is_said(server: RunningServer) -> None:
    assert server.told("started")[0]["http_processes"] == 3
    assert any(line.startswith("HTTP processes: 3") for line in server.report)
    assert {line["front"] for line in server.told("front_ready")} == set(FRONTS)


def test_a_turn_that_one_process_answered_is_continued_in_another(
    server: RunningServer, clients: dict[int, httpx.Client]
) -> None:
    """What is announced to one process is found through another, and so is the next turn of a conversation."""
    words = "the lazy dog sees the quick brown fox, and " * 6
    tokens = clients[1].post("/v1/cache/warm", json={"prompt": words}).json()["tokens"]
    server.until("it is computed", lambda: server.metric("quire_warm_tokens_total") >= (tokens - 1) // 64 * 64)
    answer = clients[2].post("/v1/completions", json={"model": "tiny", "prompt": words, "max_tokens": 1}).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == (tokens - 1) // 64 * 64
    first = chat(clients[1], messages=[{"role": "user", "content": words}], max_tokens=8, ignore_eos=True)
    assert first.status_code == 200
    server.until("the turn is known", lambda: server.metric("quire_turns_total") > 0)
