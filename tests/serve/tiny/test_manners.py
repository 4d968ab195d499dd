"""How the server treats clients that ask too much, ask oddly, leave early or never finish asking."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from running_server import RunningServer
from serve_kit import CHAT, body, chat, wait_for_tokens

COMPLETIONS = "/v1/completions"
ENDLESS = "the fox " * 25_000
"""Not read to its end."""


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


SHORT = said("the quick fox")


@pytest.fixture
def client(tiny_server: RunningServer, keys: Any) -> Iterator[httpx.Client]:
    with tiny_server.client(keys.alice) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("/heath/ready", "did you mean /health/ready?"),
        ("/favicon.ico", "there is no such path: /openapi.json has all of them"),
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lora": "x"}, "lora is not supported"),
        ({"modalities": ["audio"]}, "modalities is not supported"),
        ({"messages": [{"role": "user", "content": "x", "images": []}]}, "messages.0.images is not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "'input_audio' is not supported"),
        ({"messages": [{"role": "user", "content": "half \ud83d"}]}, "half of a surrogate pair"),
        ({"temperature": -1}, "temperature is -1: give at least 0"),
        ({"temperature": float("nan")}, "temperature is NaN: give at most 2"),
        ({"temperature": "hot"}, 'temperature is "hot": give a number'),
        ({"model": None}, "model is null: give text"),
        ({"messages": []}, "messages is []: give at least 1 item"),
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
        ({"store": True}, "store is true: give one of false"),
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
        (b"", "the body is missing: give it"),
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


def test_a_client_that_leaves_ends_its_request(tiny_server: RunningServer, client: httpx.Client) -> None:
    """In the middle of a stream, and before the answer to a whole one came."""
    tiny_server.until("it is idle", tiny_server.is_idle)
    before = tiny_server.metric("quire_requests_ended_total", ending="cancelled")
    with client.stream("POST", CHAT, json=body(max_tokens=450, stream=True, ignore_eos=True)) as stream:
        wait_for_tokens(stream.iter_lines(), 3)
    with pytest.raises(httpx.ReadTimeout):
        client.post(CHAT, json=body(max_tokens=450, n=8, ignore_eos=True), timeout=0.2)
    tiny_server.until("it is idle", tiny_server.is_idle)
    assert tiny_server.metric("quire_requests_ended_total", ending="cancelled") >= before + 2
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
        with client.stream("POST", CHAT, json=body(max_tokens=80, stream=True, ignore_eos=True)) as answer:
            return "[DONE]" in "".join(answer.iter_lines())

    with ThreadPoolExecutor(50) as pool:
        streams = [pool.submit(stream, i) for i in range(50)]
        tiny_server.until("they stream", lambda: tiny_server.metric("quire_requests_running") > 8)
        steps = tiny_server.metric("quire_steps_total")
        refused = [chat(client, **words) for _ in range(5)]
        assert {answer.json()["error"]["code"] for answer in refused} == {"context_length_exceeded"}
        assert all(one.result() for one in streams)
    assert tiny_server.metric("quire_steps_total") > steps


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
        tiny_server.until("rows are full", lambda: tiny_server.metric("quire_requests_running") >= 8)
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
    assert tiny_server.told("http")[-1]["message"] == "Invalid HTTP request received."


@pytest.mark.story
def test_methods_that_there_are_none_of_are_counted_together(client: httpx.Client, tiny_server: RunningServer) -> None:
    """Whoever makes up new ones does not make the metrics grow."""
    before = tiny_server.metric("quire_http_calls_total", method="other")
    for number in range(3):
        for path in (CHAT, "/nowhere"):
            assert client.request(f"INVENTED{number}", path).status_code in (404, 405)
    assert tiny_server.metric("quire_http_calls_total", method="other") == before + 6
    assert "INVENTED" not in tiny_server.get("/metrics").text


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
