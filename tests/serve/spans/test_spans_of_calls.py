"""Spans as a collector receives them: a tree for each call, whose phases add up to the request's time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from collector import Collector, collector
from fronts_kit import client_of_each, three_fronts
from running_server import RunningServer
from serve_kit import CHAT, body, chat
from span_kit import SOON, Keys, by_request, parent_headers, tree

pytestmark = pytest.mark.servers

SECRET = "zebra-crossing"


def ask(client: httpx.Client, headers: dict[str, str], **change: Any) -> dict[str, Any]:
    answer = client.post(CHAT, json=body(**change), headers=headers)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_phases_follow_one_another_within_the_call(server: RunningServer, keys: Keys, spans: Collector) -> None:
    """Each begins where the one before ends; the first begins after the call, the last ends before it."""
    trace, headers = parent_headers()
    with server.client(keys.alice) as client:
        usage = ask(client, headers, max_tokens=9)["usage"]
    root, phases = tree(spans.until(trace, 4))
    assert [one.name for one in phases] == ["queue", "prefill", "decode"]
    assert [one.begin_ns for one in phases[1:]] == [one.end_ns for one in phases[:-1]]
    whole = phases[-1].end_ns - phases[0].begin_ns
    assert sum(one.end_ns - one.begin_ns for one in phases) == whole
    assert root.begin_ns <= phases[0].begin_ns < phases[-1].end_ns <= root.end_ns
    assert phases[-1].attributes["quire.outputs"] == usage["completion_tokens"]


def test_a_call_says_what_the_conventions_name(server: RunningServer, keys: Keys, spans: Collector) -> None:
    trace, headers = parent_headers()
    with server.client(keys.alice) as client:
        usage = ask(client, headers, max_tokens=7, temperature=0.5, top_p=0.9)["usage"]
    root, _ = tree(spans.until(trace, 4))
    assert (root.name, root.parent) == (f"POST {CHAT}", "c" * 16)
    told = root.attributes
    assert told["http.request.method"] == "POST"
    assert told["http.route"] == told["url.path"] == CHAT
    assert told["http.response.status_code"] == 200
    assert (told["gen_ai.operation.name"], told["gen_ai.request.model"]) == ("chat", "tiny")
    assert told["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 7
    assert told["gen_ai.usage.cache_read.input_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert told["gen_ai.response.finish_reasons"] == ["length"]
    assert told["gen_ai.request.max_tokens"] == 7
    assert (told["gen_ai.request.temperature"], told["gen_ai.request.top_p"]) == (0.5, 0.9)
    assert 0 < told["gen_ai.response.time_to_first_chunk"] <= (root.end_ns - root.begin_ns) / 1e9
    assert told["quire.tenant"] == "alice"
    assert root.resource["service.name"] == "quire"


def test_a_call_without_a_parent_has_a_trace_of_its_own_that_the_log_names(
    server: RunningServer, keys: Keys, spans: Collector
) -> None:
    """Also when its answer is a stream, and for each of several choices."""
    with server.client(keys.alice) as client:
        headers = {"x-request-id": "own-trace"}
        with client.stream("POST", CHAT, json=body(max_tokens=5, n=2, stream=True), headers=headers) as stream:
            assert "[DONE]" in list(stream.iter_lines())[-2]
    server.until("it is logged", lambda: any(one["request"] == "own-trace" for one in server.told("request")))
    (line,) = (one for one in server.told("request") if one["request"] == "own-trace")
    root, phases = tree(spans.until(line["trace"], 7))
    assert root.parent == ""
    assert root.attributes["quire.call"] == line["call"]
    assert root.attributes["gen_ai.request.choice.count"] == 2
    assert {name: [one.name for one in own] for name, own in by_request(phases).items()} == {
        f"{line['call']}-{number}": ["queue", "prefill", "decode"] for number in (0, 1)
    }


def test_a_parent_that_is_not_sampled_leaves_no_spans(server: RunningServer, keys: Keys, spans: Collector) -> None:
    """And one that is not valid starts a new trace."""
    unsampled, headers = parent_headers("00")
    sampled, later = parent_headers()
    with server.client(keys.alice) as client:
        ask(client, headers, max_tokens=3)
        ask(client, {"traceparent": "00-zz-1"}, max_tokens=3)
        ask(client, later, max_tokens=3)
    spans.until(sampled, 4)
    assert not spans.of(unsampled)


def test_a_preempted_request_has_its_span_with_the_cause_and_without_others_names(
    server: RunningServer, keys: Keys, spans: Collector
) -> None:
    """Alice takes every row; bob's call takes one back, and is named in no span of alice."""
    trace, headers = parent_headers()
    bobs, his = parent_headers()
    with server.client(keys.alice) as alice, server.client(keys.bob) as bob, ThreadPoolExecutor(1) as pool:
        long = pool.submit(ask, alice, headers, n=4, max_tokens=200, ignore_eos=True)
        server.until("alice has all rows", lambda: server.metric("quire_requests_running") == 4)
        call = ask(bob, his, max_tokens=2)["id"].partition("-")[2]
        long.result()
    assert server.metric("quire_preemptions_total", reason="needs_row") > 0
    root, phases = tree(spans.until(trace, 1 + 4 * 3 + 2))
    assert root.end_ns >= max(one.end_ns for one in phases)
    (pause,) = (one for one in phases if one.name == "preempted")
    assert pause.attributes["quire.reason"] == "needs_row"
    assert pause.attributes["quire.because"].startswith("another gets its row")
    own = by_request(phases)[pause.attributes["quire.request"]]
    names = [one.name for one in own]
    assert names[names.index("preempted") :][:2] == ["preempted", "prefill"]
    assert [one.begin_ns for one in own[1:]] == [one.end_ns for one in own[:-1]]
    assert call not in str(phases)
    _, others = tree(spans.until(bobs, 4))
    assert root.attributes["quire.call"] not in str(others)


def test_spans_contain_no_prompt_no_answer_and_no_key(server: RunningServer, keys: Keys, spans: Collector) -> None:
    """In no byte that the collector got."""
    trace, headers = parent_headers()
    with server.client(keys.alice) as client:
        messages = [{"role": "user", "content": f"say {SECRET}"}]
        answer = ask(client, headers, messages=messages, max_tokens=24, user=SECRET)
    spans.until(trace, 4)
    text = answer["choices"][0]["message"]["content"]
    received = b"".join(spans.bodies)
    assert len(text) > 8
    assert SECRET.encode() not in received
    assert text.encode() not in received
    assert keys.alice.encode() not in received
    assert set(spans.paths) == {"/v1/traces"}


@pytest.mark.story
def test_a_path_that_a_client_made_up_is_short(server: RunningServer, keys: Keys, spans: Collector) -> None:
    """Each span had as much of it as a head may have, 16 KiB, and whatever letters."""
    trace, headers = parent_headers()
    with server.client() as client:
        client.get("/v1/" + "a" * 5000, headers={**headers, "authorization": f"Bearer {keys.alice}"})
    (span,) = spans.until(trace, 1)
    assert len(span.attributes["url.path"]) < 300


def test_a_refused_call_has_an_error_and_no_phases(server: RunningServer, keys: Keys, spans: Collector) -> None:
    """By the conventions a status of 4xx is the client's mistake, and no error of the server."""
    trace, headers = parent_headers()
    with server.client(keys.alice) as client:
        assert client.post(CHAT, json=body(max_tokens=10_000), headers=headers).status_code == 400
    root, phases = tree(spans.until(trace, 1))
    assert not phases
    assert root.attributes["error.type"] == "context_length_exceeded"
    assert (root.attributes["http.response.status_code"], root.status) == (400, 0)


def test_calls_without_a_key_and_probes_leave_no_spans(server: RunningServer, keys: Keys, spans: Collector) -> None:
    """Strangers cannot fill the collector."""
    stranger, headers = parent_headers()
    known, own = parent_headers()
    with server.client("sk-unknown") as client:
        assert chat(client, max_tokens=3).status_code == 401
        assert client.post(CHAT, json=body(), headers=headers).status_code == 401
    with server.client(keys.alice) as client:
        for path in ("/health/ready", "/health/progress", "/metrics", "/v1/inspect/status", "/inspect"):
            assert client.get(path, headers=headers).status_code == 200
        assert client.get("/v1/models", headers=own).status_code == 200
    root, _ = tree(spans.until(known, 1))
    assert root.name == "GET /v1/models"
    assert not spans.of(stranger)


def test_a_client_that_leaves_has_the_phases_that_there_were(
    server: RunningServer, keys: Keys, spans: Collector
) -> None:
    trace, headers = parent_headers()
    with server.client(keys.alice) as client:
        asked = body(max_tokens=900, ignore_eos=True, stream=True)
        with client.stream("POST", CHAT, json=asked, headers=headers) as stream:
            next(line for line in stream.iter_lines() if '"content"' in line)
    root, phases = tree(spans.until(trace, 4))
    assert root.attributes["quire.client_left"] is True
    assert [one.name for one in phases] == ["queue", "prefill", "decode"]
    assert phases[-1].attributes["quire.outputs"] < 900


def test_several_processes_make_one_tree(tiny_folder: Path) -> None:
    """The call's span comes from the process that answers, its phases from the one that has the engine. The address
    comes from the environment."""
    with collector() as spans:
        environment = {**SOON, "OTEL_EXPORTER_OTLP_ENDPOINT": spans.address, "OTEL_SERVICE_NAME": "three"}
        with three_fronts(tiny_folder, environment=environment) as server, client_of_each(server) as clients:
            traces = []
            for number, client in clients.items():
                trace, headers = parent_headers()
                traces.append((number, trace, ask(client, headers, max_tokens=4)))
            found = [tree(spans.until(trace, 4)) for _, trace, _ in traces]
            sent = len(spans.spans)
            server.until("they are counted", lambda: server.metric("quire_spans_total", result="sent") >= sent)
        processes = {root.resource["service.instance.id"] for root, _ in found}
        assert len(processes) == 3
        engines = {one.resource["service.instance.id"] for _, phases in found for one in phases}
        assert len(engines) == 1
        assert not engines & processes
        assert {root.resource["service.name"] for root, _ in found} == {"three"}
        for root, phases in found:
            assert [one.name for one in phases] == ["queue", "prefill", "decode"]
            assert root.begin_ns <= phases[0].begin_ns
            assert phases[-1].end_ns <= root.end_ns
