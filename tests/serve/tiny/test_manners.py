"""How the server treats clients that ask too much, ask oddly, leave early or never finish asking."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from running_server import RunningServer
from serve_kit import CHAT, body, chat, wait_for_tokens


def test_a_body_and_headers_beyond_their_limits_are_refused(client: httpx.Client) -> None:
    large = client.post(CHAT, content=b" " * 300_000)
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    pieces = client.post(CHAT, content=(b" " * 65_536 for _ in range(8)))
    assert (pieces.status_code, pieces.json()["error"]["code"]) == (413, "body_too_large")
    heads = client.get("/v1/models", headers={f"x-{i}": "v" * 1000 for i in range(20)})
    assert (heads.status_code, heads.json()["error"]["code"]) == (431, "headers_too_large")


def test_clients_that_send_too_slowly_are_sent_away(tiny_server: RunningServer, keys: Any) -> None:
    """One that stops in the middle of its body gets 408; one that does not finish its headers is cut off."""
    for head, expected in (
        (
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {keys.alice}\r\ncontent-length: 9\r\n\r\n{{",
            b" 408 ",
        ),
        ("GET /v1/models HTTP/1.1\r\nhost: ", b""),
    ):
        with _connected(tiny_server) as connection:
            connection.sendall(head.encode())
            assert expected in connection.recv(4096)


@pytest.mark.story
@pytest.mark.parametrize("first", ["", "GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_a_head_that_comes_byte_by_byte_is_cut_off_whichever_of_a_connection_it_is(
    tiny_server: RunningServer, first: str
) -> None:
    with _connected(tiny_server) as connection:
        if first:
            connection.sendall(first.encode())
            assert b" 200 " in connection.recv(4096)
        connection.sendall(b"GET /health/live HTTP/1.1\r\nx: ")
        assert _is_cut_off(connection)


def test_a_body_that_goes_on_behind_its_refusal_is_cut_off(tiny_server: RunningServer, keys: Any) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {keys.alice}\r\ncontent-length: 999999\r\n\r\n"
    with _connected(tiny_server) as connection:
        connection.sendall(head.encode())
        assert b" 413 " in connection.recv(4096)
        assert _is_cut_off(connection)


def _connected(server: RunningServer) -> socket.socket:
    host, port = server.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def _is_cut_off(connection: socket.socket) -> bool:
    """Sends a byte now and then, for long enough."""
    connection.settimeout(0.3)
    for _ in range(60):
        try:
            if not connection.recv(4096):
                return True
        except TimeoutError:
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(b"x")
        except ConnectionResetError:
            return True
    return False


def test_a_client_that_leaves_ends_its_request(tiny_server: RunningServer, client: httpx.Client) -> None:
    """In the middle of a stream, and before the answer to a whole one came. On a busy machine an answer can be complete
    before anybody has left, or not be begun: each is then asked for again."""

    def is_cancelled(leave: Callable[[], None]) -> bool:
        before = tiny_server.metric("quire_requests_ended_total", ending="cancelled")
        leave()
        tiny_server.until("it is idle", tiny_server.is_idle)
        return tiny_server.metric("quire_requests_ended_total", ending="cancelled") > before

    def leave_a_stream() -> None:
        with client.stream("POST", CHAT, json=body(max_tokens=450, stream=True, ignore_eos=True)) as stream:
            wait_for_tokens(stream.iter_lines(), 3)

    def leave_before_the_answer() -> None:
        with contextlib.suppress(httpx.ReadTimeout):
            client.post(CHAT, json=body(max_tokens=450, n=8, ignore_eos=True), timeout=0.2)

    tiny_server.until("it is idle", tiny_server.is_idle)
    tiny_server.until("a stream that is left is cancelled", lambda: is_cancelled(leave_a_stream), seconds=60)
    tiny_server.until("a call that is left is cancelled", lambda: is_cancelled(leave_before_the_answer), seconds=60)
    tiny_server.until("it is audited", tiny_server.is_audited)
    assert tiny_server.metric("quire_books_balance") == 1


def test_a_stop_string_ends_the_request_in_the_engine_too(tiny_server: RunningServer, client: httpx.Client) -> None:
    """What comes behind it is not computed for nobody."""
    text = chat(client, max_tokens=30, temperature=0, ignore_eos=True).json()["choices"][0]["message"]["content"]
    tiny_server.until("it is idle", tiny_server.is_idle)
    before = tiny_server.metric("quire_output_tokens_total")
    answer = chat(client, max_tokens=450, temperature=0, ignore_eos=True, stop=text[6:9]).json()["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert answer["message"]["content"] == text[: text.index(text[6:9])]
    tiny_server.until("it is idle", tiny_server.is_idle)
    assert tiny_server.metric("quire_output_tokens_total") - before < 100


def test_a_full_queue_says_when_to_come_back(tiny_server: RunningServer, client: httpx.Client) -> None:
    """32 rows and 256 in the queue: nineteen calls of sixteen choices are too many."""
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: chat(client, max_tokens=60, n=16, ignore_eos=True), range(20)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert all(answer.status_code in (200, 429) for answer in answers)
    assert all(answer.json()["error"]["code"] == "queue_full" for answer in refused)
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
    tiny_server.until("it is idle", tiny_server.is_idle)


def test_a_refusal_does_not_wait_for_those_who_stream(tiny_server: RunningServer, client: httpx.Client) -> None:
    """Fifty streams go on; what can never fit is told at once, by the process that has no model."""
    words = {"messages": [{"role": "user", "content": "the fox " * 400}]}

    def stream(_: int) -> bool:
        with client.stream("POST", CHAT, json=body(max_tokens=160, stream=True, ignore_eos=True)) as answer:
            return "[DONE]" in "".join(answer.iter_lines())

    with ThreadPoolExecutor(50) as pool:
        streams = [pool.submit(stream, i) for i in range(50)]
        tiny_server.until("they stream", lambda: tiny_server.metric("quire_requests_running") > 3)
        steps = tiny_server.metric("quire_steps_total")
        refused = [chat(client, **words) for _ in range(5)]
        assert {answer.json()["error"]["code"] for answer in refused} == {"context_length_exceeded"}
        assert all(one.result() for one in streams)
    tiny_server.until("its steps are counted", lambda: tiny_server.metric("quire_steps_total") > steps)


def test_a_request_explains_itself(tiny_server: RunningServer, client: httpx.Client, keys: Any) -> None:
    """While it runs and when it was left; one that ends before it is asked says nothing, so there are a few tries."""
    seen = [_explained(tiny_server, client, keys) for _ in range(5)]
    assert ("running", "cancelled") in seen


def _explained(server: RunningServer, client: httpx.Client, keys: Any) -> tuple[str, str]:
    """A request's status while its answer streams, and how it ended when the client left."""
    with client.stream("POST", CHAT, json=body(max_tokens=400, stream=True, ignore_eos=True)) as stream:
        lines = stream.iter_lines()  # kept: the stream closes with it, and a client that left is no longer served
        call = wait_for_tokens(lines, 2)["id"]
        (told,) = client.get(f"/v1/requests/{call}/explain").json()["choices"]
        with server.client(keys.bob) as bob, server.client(keys.admin) as admin:
            assert bob.get(f"/v1/requests/{call}/explain").status_code == 404
            assert admin.get(f"/v1/requests/{call}/explain").status_code == 200
    assert [event["what"] for event in told["events"]][:2] == ["accepted", "admitted"]
    assert told["status"] == "ended" or "known tokens computed" in told["reason"]
    server.until("it is idle", server.is_idle)
    (over,) = client.get(f"/v1/requests/{call}/explain").json()["choices"]
    assert over["status"] == "ended"
    return told["status"], over["events"][-1]["code"]


def test_what_waits_names_what_it_lacks_and_no_stranger(tiny_server: RunningServer, keys: Any) -> None:
    """More than the rows hold: a waiting one tells why, and strangers have no names."""
    with tiny_server.client(keys.alice) as alice, tiny_server.client(keys.bob) as bob, ThreadPoolExecutor(2) as pool:
        crowd = [pool.submit(chat, alice, max_tokens=300, n=16, ignore_eos=True) for _ in range(2)]
        tiny_server.until("many wait", lambda: tiny_server.metric("quire_requests_waiting") > 8)
        with bob.stream("POST", CHAT, json=body(max_tokens=300, stream=True, ignore_eos=True), timeout=60) as stream:
            lines = stream.iter_lines()
            call = wait_for_tokens(lines, 1)["id"]
            told = bob.get(f"/v1/requests/{call}/explain").text
        calls = [one.result().json()["id"].partition("-")[2] for one in crowd]
        assert call.partition("-")[2] in told
        assert not any(name in told for name in calls)


def test_a_call_can_be_asked_about_before_its_answer_comes_under_the_id_that_its_client_gave(
    tiny_server: RunningServer, keys: Any
) -> None:
    path, own = "/v1/requests/bobs-own/explain", {"x-request-id": "bobs-own"}
    with tiny_server.client(keys.alice) as alice, tiny_server.client(keys.bob) as bob, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(bob.post, CHAT, json=body(max_tokens=300, n=16, ignore_eos=True), headers=own)
        tiny_server.until("it is known", lambda: bob.get(path).status_code == 200)
        told = bob.get(path).json()["choices"]
        assert alice.get(path).status_code == 404
        call = asked.result().json()["id"]
        assert [one["choice"] for one in told] == list(range(16))
        assert bob.get(path).json()["choices"] == bob.get(f"/v1/requests/{call}/explain").json()["choices"]
    with tiny_server.client(keys.admin) as admin:
        assert admin.get(path).status_code == 200


def test_tokens_and_the_plan_can_be_asked_for(client: httpx.Client) -> None:
    tokens = client.post("/v1/tokenize", json={"prompt": "the quick fox"}).json()
    assert tokens["count"] == len(tokens["tokens"]) > 0
    said = client.post("/v1/tokenize", json={"messages": [{"role": "user", "content": "the quick fox"}]}).json()
    assert said["count"] > tokens["count"]
    assert client.post("/v1/tokenize", json={}).status_code == 400
    plan = client.get("/v1/plan").json()
    assert plan["schema"] == "quire.plan/3"
    assert plan["max_length"] == 512
    assert plan["fits"] is True


def test_logs_are_objects_with_ids_and_without_anything_said(
    tiny_server: RunningServer, client: httpx.Client, keys: Any
) -> None:
    secret = "the-secret-word-of-the-prompt"
    answer = chat(client, messages=[{"role": "user", "content": secret}], max_tokens=5, ignore_eos=True)
    named = client.post(CHAT, json=body(max_tokens=2), headers={"x-request-id": "my-own-id"})
    assert named.headers["x-request-id"] == "my-own-id"
    client.post(CHAT, json=body(temperature=99, messages=[{"role": "user", "content": secret}]))
    client.get(f"/v1/models/{secret}")
    ids = {answer.headers["x-request-id"], "my-own-id"}
    tiny_server.until("they are logged", lambda: ids <= {line.get("request") for line in tiny_server.logs})
    (line,) = [line for line in tiny_server.told("request") if line["request"] == answer.headers["x-request-id"]]
    assert line["output_tokens"] == 5
    assert line["tenant"] == "alice"
    text = "".join(tiny_server.raw_logs)
    assert secret not in text
    assert not any(key in text for key in (keys.alice, keys.bob, keys.admin))
    assert not tiny_server.told("internal_error")


def test_bytes_that_are_no_http_are_an_event_of_the_log(tiny_server: RunningServer) -> None:
    with _connected(tiny_server) as connection:
        connection.sendall(b"the quick fox\r\n\r\n")
        assert b" 400 " in connection.recv(4096)
    tiny_server.until("it is logged", lambda: tiny_server.told("http"))
    assert tiny_server.told("http")[-1]["message"] == "a connection was closed: this is not valid HTTP/1.1"


@pytest.mark.story
def test_methods_that_there_are_none_of_are_counted_together(client: httpx.Client, tiny_server: RunningServer) -> None:
    """Methods of other protocols on top of HTTP do not make the metrics grow; those of none are not even calls."""
    before = tiny_server.metric("quire_http_calls_total", method="other")
    for method in ("PROPFIND", "MKCOL", "REPORT"):
        for path in (CHAT, "/nowhere"):
            assert client.request(method, path).status_code in (404, 405)
    assert client.request("INVENTED", CHAT).status_code == 400
    assert tiny_server.metric("quire_http_calls_total", method="other") == before + 6
    assert "MKCOL" not in tiny_server.get("/metrics").text


def test_head_is_answered_as_get_without_the_body(client: httpx.Client, tiny_server: RunningServer) -> None:
    for path in ("/v1/models", "/v1/plan", "/health/live"):
        whole, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == whole.headers["content-length"]
    assert tiny_server.metric("quire_http_calls_total", method="HEAD", path="/v1/models") == 1


@pytest.mark.story
def test_a_models_name_may_have_a_slash(client: httpx.Client) -> None:
    for name in ("some/model", "some%2Fmodel"):
        error = client.get(f"/v1/models/{name}").json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_times_are_measured(tiny_server: RunningServer, client: httpx.Client) -> None:
    before = tiny_server.metric("quire_time_between_tokens_seconds_count")
    first = tiny_server.metric("quire_time_to_first_token_seconds_count")
    chat(client, max_tokens=6, ignore_eos=True)
    assert tiny_server.metric("quire_time_between_tokens_seconds_count") == before + 5
    assert tiny_server.metric("quire_time_to_first_token_seconds_count") == first + 1
    assert tiny_server.metric("quire_ledger_bytes", use="pool") > 0
