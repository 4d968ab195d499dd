"""The inspector over HTTP shows what the plan, the metrics and the books say, and only to whom it belongs."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.inspect.difference import applied
from quire.inspect.document import VIEWS
from quire.inspect.page import FILES
from running_server import RunningServer
from serve_kit import CHAT, body, chat, wait_for_tokens

INSPECT = "/v1/inspect"
LONG = {"max_tokens": 400, "stream": True, "ignore_eos": True}


def state(client: httpx.Client) -> str:
    return str(client.get(f"{INSPECT}/status").json()["status"]["state"])


def frames(client: httpx.Client, count: int) -> list[Any]:
    """The document after each of the first events of a stream."""
    found: list[Any] = [None]
    with client.stream("GET", f"{INSPECT}/stream", params={"frames": count}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                found.append(applied(found[-1], json.loads(line.removeprefix("data: "))))
    return found[1:]


def test_the_page_needs_no_key_and_its_data_does(tiny_server: RunningServer) -> None:
    with tiny_server.client() as client:
        for path in ("/inspect", *(f"/inspect/{name}" for name in FILES)):
            answer = client.get(path)
            assert answer.status_code == 200
            assert "default-src 'none'" in answer.headers["content-security-policy"]
        for path in ("", "/stream", "/pool", "/requests/x", "/sheets/0/0", "/what-if"):
            assert client.get(INSPECT + path).status_code == 401
        assert client.get("/inspect/nothing.js").status_code == 401


def test_the_index_links_to_it(tiny_server: RunningServer) -> None:
    with tiny_server.client() as client:
        assert client.get("/").json()["inspect"] == "/inspect"
        assert 'href="/inspect"' in client.get("/", headers={"accept": "text/html"}).text


def test_squares_are_the_plans_sheets_and_bytes_are_those_of_the_metrics(tiny_server: RunningServer, keys: Any) -> None:
    """Read when nothing runs: the document, the plan and the metrics are of the same step."""
    with tiny_server.client(keys.admin) as admin:
        chat(admin, max_tokens=40)
        tiny_server.until("it is audited", tiny_server.is_audited)
        plan, found = admin.get("/v1/plan").json(), admin.get(INSPECT).json()
        assert [len(stage["squares"]["kind"]) for stage in found["pool"]["stages"]] == [plan["sheets"]]
        assert found["plan"] == plan["fingerprint"]
        assert found["step"] == found["status"]["steps"]
        (stage,) = found["pool"]["stages"]
        for kind in stage["kinds"]:
            for name in ("used", "cached", "pinned", "backend", "free"):
                pages = tiny_server.metric("quire_pages", kind=kind["kind"], state=name)
                assert kind[f"{name}_pages"] == pages
                if name != "free":
                    assert found["memory"]["pool"][name] == pages * kind["page_bytes"]
        planned = dict(zip(found["memory"]["planned"]["use"], found["memory"]["planned"]["bytes"], strict=True))
        assert planned == {line["name"]: line["bytes"] for line in plan["ledger"]}
        assert planned["pool"] == tiny_server.metric("quire_ledger_bytes", use="pool")
        assert (found["status"]["audit"], found["status"]["audit_step"]) == ("ok", found["step"])


def test_each_view_is_a_part_of_the_whole(tiny_server: RunningServer, keys: Any) -> None:
    tiny_server.until("it is audited", tiny_server.is_audited)
    with tiny_server.client(keys.admin) as admin:
        whole = admin.get(INSPECT).json()
        for view in VIEWS:
            part = admin.get(f"{INSPECT}/{view}").json()
            assert part["schema"] == whole["schema"]
            if view not in ("status", "memory"):  # they have times and sizes of a process
                assert part[view] == whole[view]
        refused = admin.get(f"{INSPECT}/nothing")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
        shown = admin.get(f"{INSPECT}/pool", headers={"accept": "text/html,*/*"})
        assert (shown.status_code, shown.headers["location"]) == (303, "/inspect#pool")


def test_a_running_request_is_shown_with_its_sheets_its_events_and_why(tiny_server: RunningServer, keys: Any) -> None:
    asked = {"x-request-id": "shown-one"}
    with (
        tiny_server.client(keys.alice) as client,
        client.stream("POST", CHAT, json=body(**LONG), headers=asked) as stream,
        tiny_server.slowed(),
    ):
        wait_for_tokens(_lines := stream.iter_lines(), 2)  # kept: the client would leave without it
        tiny_server.until("it is shown", lambda: "shown-one" in client.get(f"{INSPECT}/requests").text)
        status = client.get(f"{INSPECT}/status").json()["status"]
        assert status["audit"] == "due"
        assert status["audit_step"] is None or status["audit_step"] < status["steps"]
        table = client.get(f"{INSPECT}/requests").json()["requests"]["table"]
        place = table["client_id"].index("shown-one")
        name = table["name"][place]
        assert table["tenant"][place] == "alice"
        assert table["bytes"][place] > 0
        explained = client.get(f"/v1/requests/{name}/explain").json()["choices"]
        assert [choice["status"] for choice in explained] == ["running"]
        with tiny_server.client(keys.bob) as bob:
            assert bob.get(f"/v1/requests/{name}/explain").status_code == 404
        one = client.get(f"{INSPECT}/requests/{name}").json()
        assert (one["status"], one["events"][0]["what"]) == ("running", "accepted")
        assert one["held"][0]["sheets"]
        held = client.get(f"{INSPECT}/sheets/0/{one['held'][0]['sheets'][0]}").json()
        assert name in [holder["name"] for holder in held["holders"]]


def test_not_one_byte_of_another_tenant_is_sent(tiny_server: RunningServer, keys: Any) -> None:
    """Neither its name, nor those of its requests and sessions, in any view, frame, sheet or explanation."""
    named = {"x-request-id": "bobs-secret-call"}
    with tiny_server.client(keys.bob) as bob, tiny_server.client(keys.alice) as alice, ExitStack() as stack:
        stack.enter_context(tiny_server.slowed())
        prompt = [{"role": "user", "content": "the quick brown fox sees the lazy dog " * 12}]
        answer = chat(bob, messages=prompt, max_tokens=4, retain={"seconds": 600, "session": "bobs-session"}).json()
        assert answer["lease"]["granted"], answer["lease"]
        lines = stack.enter_context(bob.stream("POST", CHAT, json=body(**LONG), headers=named)).iter_lines()
        running = wait_for_tokens(lines, 2)["id"].partition("-")[2]
        mine = stack.enter_context(alice.stream("POST", CHAT, json=body(**LONG))).iter_lines()
        own = wait_for_tokens(mine, 2)["id"].partition("-")[2] + "-0"
        tiny_server.until("it is shown", lambda: own in alice.get(INSPECT).text)
        secrets = ("bob", running, answer["id"].partition("-")[2])
        sent = [alice.get(path).text for path in (INSPECT, *(f"{INSPECT}/{view}" for view in VIEWS))]
        sent += [json.dumps(one) for one in frames(alice, 3)]
        sheets = alice.get(f"{INSPECT}/pool").json()["pool"]["stages"][0]["sheets"]
        sent += [alice.get(f"{INSPECT}/sheets/0/{sheet}").text for sheet in range(sheets)]
        sent.append(alice.get(f"{INSPECT}/requests/{own}").text)
        assert not [(secret, text[:80]) for secret in secrets for text in sent if secret in text]
        assert any(own in text for text in sent)
        refused = alice.get(f"{INSPECT}/requests/{running}-0")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "request_not_found")
        with tiny_server.client(keys.admin) as admin:
            everything = admin.get(INSPECT).text
        assert all(secret in everything for secret in ("bob", running, "bobs-session"))


def test_a_stream_sends_the_whole_and_then_differences(tiny_server: RunningServer, keys: Any) -> None:
    """What a reader has after the last event is what the server answers then."""
    with tiny_server.client(keys.admin) as admin:
        with admin.stream("POST", CHAT, json=body(**LONG)) as stream:
            wait_for_tokens(lines := stream.iter_lines(), 1)
            with tiny_server.slowed():
                found = frames(admin, 3)
            assert "[DONE]" in "".join(lines)
        assert len(found) == 3
        assert found[0]["schema"] == "quire.inspect/1"
        assert found[-1]["at"] > found[0]["at"]
        tiny_server.until("it is audited", tiny_server.is_audited)
        (last,) = frames(admin, 1)
        assert last["pool"] == admin.get(INSPECT).json()["pool"]


def test_a_key_with_all_its_streams_open_leaves_room_for_others(tiny_server: RunningServer, keys: Any) -> None:
    """One more is refused with a code, and Bob and an admin are not; when one leaves, there is room again."""
    path = f"{INSPECT}/stream"
    with tiny_server.client(keys.alice) as alice:
        with ExitStack() as stack:
            reading = [stack.enter_context(alice.stream("GET", path)).iter_lines() for _ in range(8)]
            for lines in reading:
                assert next(lines).startswith("data: ")
            refused = alice.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_watchers")
            assert "8 streams" in refused.json()["error"]["message"]
            for key in (keys.bob, keys.admin):
                with tiny_server.client(key) as other:
                    assert other.get(path, params={"frames": 1}).status_code == 200
        tiny_server.until("there is room", lambda: alice.get(path, params={"frames": 1}).status_code == 200)


def test_questions_to_the_planner_are_limited_by_key_and_size(tiny_server: RunningServer, keys: Any) -> None:
    path = f"{INSPECT}/what-if"
    with tiny_server.client(keys.hoarder) as client:
        for asked in ({"length": 0}, {"length": 1 << 32}, {"pool_bytes": 0}, {"pool_bytes": 1 << 51}):
            assert client.get(path, params=asked).status_code == 400
        largest = client.get(path, params={"length": 1 << 31, "pool_bytes": 1 << 50}).json()
        assert largest["length"] == client.get("/v1/plan").json()["max_length"]
        answers = (client.get(path) for _ in range(99))
        refused = next(answer for answer in answers if answer.status_code != 200)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "planner_limit")
        assert refused.headers["retry-after"] == "1"
        with tiny_server.client(keys.alice) as alice:
            assert alice.get(path).status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [("/sheets/0/999999", 404), ("/sheets/7/0", 404), ("/sheets/x/0", 400), ("/requests/nobody", 404)],
)
def test_what_is_not_there_is_refused(tiny_server: RunningServer, keys: Any, path: str, status: int) -> None:
    with tiny_server.client(keys.admin) as admin:
        answer = admin.get(INSPECT + path)
        assert answer.status_code == status
        assert answer.json()["error"]["message"]


def test_what_if_asks_the_planner(tiny_server: RunningServer, keys: Any) -> None:
    with tiny_server.client(keys.alice) as client:
        plan = client.get("/v1/plan").json()
        length = plan["max_length"]
        found = client.get(f"{INSPECT}/what-if", params={"length": length, "pool_bytes": 1 << 20}).json()
        now = dict(zip(found["table"]["option"], found["table"]["requests"], strict=True))
        assert now["as planned"] == plan["concurrency"][str(length)]
        assert now["half the pool"] < now["as planned"] < now["twice the pool"]
        assert {"--pool 1.00 MiB", "--kv-dtype fp8"} <= set(now)


@pytest.mark.servers
def test_a_frozen_engine_is_shown_as_frozen_with_the_last_document(
    tiny_server: RunningServer, keys: Any, freeze_file: Path
) -> None:
    tiny_server.until("it is audited", tiny_server.is_audited)
    with tiny_server.client(keys.admin) as admin:
        before = admin.get(INSPECT).json()
        freeze_file.touch()
        try:
            with admin.stream("POST", CHAT, json=body(max_tokens=3, stream=True)) as stream:
                tiny_server.until("it is frozen", lambda: state(admin) == "frozen")
                found = admin.get(INSPECT).json()
                assert found["status"]["seconds_since_step"] >= 5
                assert "finished no step" in found["status"]["reason"]
                assert found["pool"] == before["pool"]
                (streamed,) = frames(admin, 1)
                assert streamed["status"]["state"] == "frozen"
                freeze_file.unlink()
                assert "[DONE]" in "".join(stream.iter_lines())
        finally:
            freeze_file.unlink(missing_ok=True)
        tiny_server.until("it is ready", lambda: state(admin) == "ready")


def test_a_dead_engine_leaves_its_last_document_and_its_last_words(tiny_server: RunningServer, keys: Any) -> None:
    """Until the next one is ready; then the document is its own, and the restart is counted."""
    with tiny_server.client(keys.admin) as admin:
        before = admin.get(INSPECT).json()
        os.kill(tiny_server.engine, signal.SIGKILL)
        tiny_server.until("it is dead", lambda: state(admin) != "ready")
        found = admin.get(INSPECT).json()
        assert found["status"]["state"] in ("dead", "starting")
        assert "SIGKILL" in found["status"]["reason"]
        assert found["pool"] == before["pool"]
        assert admin.get(f"{INSPECT}/sheets/0/0").status_code == 503
        tiny_server.until("it is ready", lambda: state(admin) == "ready")
        tiny_server.until("it is its own", lambda: admin.get(INSPECT).json()["step"] == 0)
        again = admin.get(INSPECT).json()
        assert again["status"]["restarts"] == before["status"]["restarts"] + 1
        assert again["pool"]["stages"][0]["free_sheets"] == again["pool"]["stages"][0]["sheets"]
