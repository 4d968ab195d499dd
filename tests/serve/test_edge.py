"""The first checks of a call: what is read of it before it is refused, and how much all calls may hold."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from edge_kit import Call, edge
from quire.core.errors import InputError
from quire.serve import edge as module
from quire.serve.edge import OPEN_PATHS, Edge
from quire.serve.keys import Tenant, add_key
from quire.serve.settings import ServeSettings


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    add_key(tmp_path / "keys.json", Tenant("alice", "alice"))
    return tmp_path / "keys.json"


@pytest.fixture(autouse=True)
def no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.0)


def made(call: Call, first: Edge) -> Call:
    asyncio.run(call.make(first))
    return call


@pytest.mark.story
@pytest.mark.parametrize("path", OPEN_PATHS)
def test_no_body_is_read_where_no_key_is_needed(path: str, key_file: Path) -> None:
    """The answer comes all the same, and the connection ends with it."""
    for method in ("GET", "HEAD"):
        call = made(Call(method, path, {"content-length": "4194304"}, [b"x"] * 9), edge(key_file))
        assert (call.status, call.received, call.body) == (200, 0, b"")
        assert call.header("connection") == "close"
    plain = made(Call("GET", path), edge(key_file))
    assert plain.header("connection") is None


@pytest.mark.story
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/health"), ("GET", "/healthy"), ("GET", "/health/x"), ("PUT", "/metrics")]
)
def test_only_reading_the_open_paths_themselves_needs_no_key(method: str, path: str, key_file: Path) -> None:
    call = made(Call(method, path, {"transfer-encoding": "chunked"}, [b"x"] * 9), edge(key_file))
    assert (call.status, call.received) == (401, 0)


@pytest.mark.story
def test_metrics_need_a_key_where_there_are_keys_unless_they_are_opened(tmp_path: Path) -> None:
    """They reveal how long each request is. Any key will do, for scrapers have one place for it."""
    key = add_key(tmp_path / "keys.json", Tenant("prometheus", "none"))
    closed, with_key = edge(tmp_path / "keys.json"), {"authorization": f"Bearer {key}"}
    assert made(Call("GET", "/metrics"), closed).status == 401
    assert made(Call("GET", "/metrics", with_key, [b""]), closed).status == 200
    for opened in (edge(tmp_path / "keys.json", open_metrics=True), edge()):
        call = made(Call("GET", "/metrics", {"content-length": "9", "host": "any.example"}, [b"x"] * 9), opened)
        assert (call.status, call.received) == (200, 0)


@pytest.mark.story
def test_a_refused_call_is_not_read_on(key_file: Path) -> None:
    """Its answer says that the connection closes, and comes whole before it does."""
    call = made(Call("POST", headers={"transfer-encoding": "chunked"}, pieces=[b"a"] * 10_000), edge(key_file))
    assert (call.status, call.received) == (401, 0)
    assert call.header("connection") == "close"
    assert json.loads(call.answer)["error"]["code"] == "invalid_api_key"
    assert [message.get("more_body") for message in call.sent[1:]] == [True, False]


def test_a_body_beyond_its_limit_is_read_no_further() -> None:
    call = made(Call("POST", headers={"transfer-encoding": "chunked"}, pieces=[b"12345"] * 100), edge(body_bytes=12))
    assert (call.status, call.received, call.body) == (413, 3, None)
    declared = made(Call("POST", headers={"content-length": "13"}, pieces=[b"1" * 13]), edge(body_bytes=12))
    assert (declared.status, declared.received) == (413, 0)


def test_the_pieces_of_a_body_reach_the_application_as_one() -> None:
    call = made(Call("POST", pieces=[b"a", b"", b"bc"]), edge())
    assert (call.status, call.body) == (200, b"abc")


def test_a_body_whose_client_leaves_never_reaches_the_application() -> None:
    class Leaving(Call):
        async def receive(self) -> dict[str, Any]:
            return {**await super().receive(), "more_body": True}

    call = made(Leaving("POST", pieces=[b"{}"]), edge())
    assert (call.status, call.body) == (400, None)
    assert json.loads(call.answer)["error"]["code"] == "body_incomplete"


@pytest.mark.story
def test_all_bodies_together_have_a_limit() -> None:
    """Each counts until its call has ended; the one that is too much comes back later."""

    async def statuses() -> list[Call]:
        go_on = asyncio.Event()

        async def waiting(_scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await go_on.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        first = edge(app=waiting, body_bytes=10, bodies_bytes=20)
        calls = [Call("POST", pieces=[b"1234", b"5678"]) for _ in range(4)]
        running = [asyncio.ensure_future(call.make(first)) for call in calls[:2]]
        await asyncio.sleep(0)
        await calls[2].make(first)
        go_on.set()
        await asyncio.gather(*running)
        await calls[3].make(first)
        return calls

    calls = asyncio.run(statuses())
    assert [call.status for call in calls] == [200, 200, 503, 200]
    assert calls[2].header("retry-after") == "1"
    assert json.loads(calls[2].answer)["error"]["code"] == "bodies_full"


def test_the_limit_of_all_bodies_admits_the_largest_one() -> None:
    with pytest.raises(InputError, match="bodies_bytes is 9: give at least body_bytes, 10"):
        ServeSettings(body_bytes=10, bodies_bytes=9)


@pytest.mark.story
def test_a_strange_method_is_logged_as_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log line is not as long as a client likes."""
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(module.logs, "write", lambda _event, _level, **fields: lines.append(fields))
    made(Call("A" * 9000), edge())
    assert lines[0]["method"] == "other"
