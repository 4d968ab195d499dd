"""Web pages: which may use a server, and how browsers are answered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from edge_kit import Call, edge
from quire.core.errors import InputError
from quire.serve.edge import Edge
from quire.serve.keys import Tenant, add_key
from quire.serve.settings import ServeSettings

PAGE, OTHER = "https://page.example", "https://other.example"
ASK = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, x-stainless-os"}


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, str]:
    return tmp_path / "keys.json", add_key(tmp_path / "keys.json", Tenant("alice", "alice"))


def made(call: Call, first: Edge) -> Call:
    asyncio.run(call.make(first))
    return call


def code(call: Call) -> str:
    return str(json.loads(call.answer)["error"]["code"])


@pytest.mark.story
@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil", "[x"]
)
def test_a_server_without_keys_is_not_called_under_a_foreign_name(name: str) -> None:
    """A page whose name resolves to this machine could else read every answer, and drop caches."""
    call = made(Call("POST", headers={"host": name}, pieces=[b"{}"]), edge())
    assert (call.status, code(call), call.body) == (403, "host_refused", None)


@pytest.mark.parametrize(
    "name",
    [
        "127.0.0.1:8000",
        "10.1.2.3",
        "[::1]:8000",
        "localhost",
        "LOCALHOST:1",
        "localhost.",
        "mine.example:8000",
        "page.example",
    ],
)
def test_addresses_localhost_and_names_that_the_operator_gave_are_its_own(name: str) -> None:
    first = edge(host="mine.example", allow_origin=(PAGE,))
    assert made(Call("POST", headers={"host": name}, pieces=[b"{}"]), first).status == 200


@pytest.mark.story
@pytest.mark.parametrize("origin", [OTHER, "http://localhost:3000", "null", "http://localhost", "http://[x"])
def test_a_server_without_keys_refuses_pages_of_other_origins(origin: str) -> None:
    """A browser says whose page it is; curl and libraries say nothing. The server's own origin is that of its Host."""
    headers = {"host": "localhost:8000", "origin": origin}
    call = made(Call("POST", headers=headers, pieces=[b"{}"]), edge())
    assert (call.status, code(call), call.body) == (403, "origin_refused", None)
    assert made(Call("POST", headers=headers, pieces=[b"{}"]), edge(allow_origin=("*",))).status == 200
    own = {"host": "localhost:8000", "origin": "http://localhost:8000"}
    assert made(Call("POST", headers=own, pieces=[b"{}"]), edge()).status == 200


def test_health_is_answered_under_any_name() -> None:
    """Probes use names of their own, and learn nothing there that needs a key elsewhere."""
    headers = {"host": "quire.default.svc", "origin": OTHER}
    assert made(Call("GET", "/health", headers), edge()).status == 200


def test_with_keys_neither_host_nor_origin_is_looked_at(keys: tuple[Path, str]) -> None:
    """A page of another origin has no key, and a browser sends none by itself."""
    file, key = keys
    headers = {"host": "api.example", "origin": OTHER, "authorization": f"Bearer {key}"}
    call = made(Call("POST", headers=headers, pieces=[b"{}"]), edge(file))
    assert call.status == 200
    assert call.header("access-control-allow-origin") is None


@pytest.mark.parametrize(("allowed", "named"), [((PAGE, OTHER), PAGE), (("*",), "*")])
def test_a_browser_asks_first_without_a_key(allowed: tuple[str, ...], named: str, keys: tuple[Path, str]) -> None:
    """It may then send the method and the headers that it asked for."""
    call = made(Call("OPTIONS", "/v1/chat/completions", {"origin": PAGE, **ASK}), edge(keys[0], allow_origin=allowed))
    assert (call.status, call.body, call.answer) == (204, None, b"")
    assert call.header("access-control-allow-origin") == named
    assert call.header("access-control-allow-headers") == "authorization, x-stainless-os"
    assert {"POST", "DELETE"} <= set((call.header("access-control-allow-methods") or "").split(", "))


@pytest.mark.parametrize("allowed", [(), (OTHER,)])
def test_a_page_of_an_origin_that_is_not_allowed_gets_no_permission(
    allowed: tuple[str, ...], keys: tuple[Path, str]
) -> None:
    call = made(Call("OPTIONS", "/v1/models", {"origin": PAGE, **ASK}), edge(keys[0], allow_origin=allowed))
    assert (call.status, code(call)) == (403, "origin_refused")
    assert call.header("access-control-allow-origin") is None


def test_answers_to_an_allowed_page_can_be_read_also_streams_and_refusals(keys: tuple[Path, str]) -> None:
    """And caches keep answers to different origins apart."""
    file, key = keys

    async def streaming(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    first = edge(file, app=streaming, allow_origin=(PAGE,))
    for headers, status in (({"authorization": f"Bearer {key}"}, 200), ({}, 401)):
        call = made(Call("POST", headers={**headers, "origin": PAGE}, pieces=[b"{}"]), first)
        assert (call.status, call.header("access-control-allow-origin"), call.header("vary")) == (
            status,
            PAGE,
            "Origin",
        )
    plain = made(Call("POST", headers={"authorization": f"Bearer {key}"}, pieces=[b"{}"]), first)
    assert (plain.header("access-control-allow-origin"), plain.header("vary")) == (None, "Origin")


def test_an_origin_that_is_none_is_refused_at_the_start() -> None:
    for wrong in (
        "page.example",
        "https://page.example/",
        "https://me@page.example",
        "https://[x",
        "HTTPS://page.example",
    ):
        with pytest.raises(InputError, match="--allow-origin"):
            ServeSettings(allow_origin=(wrong,))


def test_head_is_answered_where_get_is() -> None:
    """The application sees GET; the server's protocol leaves the body out."""
    methods: list[str] = []

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        methods.append(scope["method"])
        scope["route"] = "found"
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"fine"})

    call = made(Call("HEAD", pieces=[b""]), edge(app=noting))
    assert (call.status, methods) == (200, ["GET"])
