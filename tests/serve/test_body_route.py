"""Where bodies are parsed and validated: long ones not on the event loop, on every path that takes one."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel, field_validator
from starlette.responses import Response

from quire.serve.app import ROUTERS, make_app
from quire.serve.body_route import BodyRoute, parsed
from quire.serve.direct import DirectRoutes
from quire.serve.errors import ApiError, json_response
from quire.serve.keys import EVERYBODY
from quire.serve.service import Service
from quire.serve.turns import SMALL_BYTES, Turns
from running_server import WAIT_SECONDS

IS_HELD_AFTER_SECONDS = 5.0


class Slow(BaseModel):
    """Its validation ends when something else has happened on the event loop."""

    text: str

    @field_validator("text")
    @classmethod
    def _wait(cls, text: str) -> str:
        HELD.append(not GOES_ON.wait(IS_HELD_AFTER_SECONDS))
        return text


GOES_ON, HELD = threading.Event(), list[bool]()
router = APIRouter(route_class=BodyRoute)


@router.post("/")
async def endpoint(body: Slow, request: Request) -> Response:
    del request
    return json_response({"characters": len(body.text)})


def app() -> FastAPI:
    """With as much of a service as reads bodies."""
    made, service = FastAPI(), SimpleNamespace(_turns=Turns())
    service.read = lambda *arguments: Service.read(service, *arguments)  # type: ignore[arg-type]
    made.state.service = service
    made.include_router(router)

    @made.middleware("http")
    async def let_in(request: Request, go_on: Any) -> Response:
        request.state.tenant = EVERYBODY
        answer: Response = await go_on(request)
        return answer

    return made


@pytest.mark.story
def test_the_loop_goes_on_while_a_long_body_is_validated() -> None:
    """Its validation waits for the loop: on the loop itself it would wait in vain."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app())
        async with httpx.AsyncClient(transport=transport, base_url="http://server", timeout=WAIT_SECONDS) as client:
            asking = asyncio.ensure_future(client.post("/", json={"text": "a" * SMALL_BYTES}))
            await asyncio.sleep(0.01)
            asyncio.get_running_loop().call_later(0.05, GOES_ON.set)
            return await asking

    GOES_ON.clear()
    HELD.clear()
    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()) == (200, {"characters": SMALL_BYTES})
    assert HELD == [False]


def test_every_path_that_takes_a_body_reads_it_this_way() -> None:
    """FastAPI reads the bodies of any other route on the loop."""
    routes: list[Any] = [route for one in ROUTERS for route in one.routes if getattr(route, "body_field", None)]
    paths = {route.path for route in routes}
    assert {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize"} <= paths
    assert not [route.path for route in routes if not isinstance(route, BodyRoute)]


@pytest.mark.parametrize(
    ("written", "code", "words"),
    [
        (b"", "invalid_value", "the body is empty"),
        (b"{", "invalid_json", "the body is not JSON"),
        (b'{"text": "\xff"}', "invalid_json", "send JSON in UTF-8"),
        (b"[" * 200_000, "invalid_json", "the body cannot be read"),
        (b'{"text": ' + b"1" * 5000 + b"}", "invalid_json", "the body cannot be read"),
        (b"null", "invalid_value", "the body is null: give an object"),
        (b"[]", "invalid_value", "the body is []: give an object"),
        (json.dumps({"text": 1}).encode(), "invalid_value", "text is 1: give text"),
        (b"{}", "invalid_value", "text is missing: give it"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_what_to_send(written: bytes, code: str, words: str) -> None:
    with pytest.raises(ApiError) as refused:
        parsed(Slow, written)
    assert (refused.value.status, refused.value.code) == (400, code)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("problem", "status", "code"),
    [
        (ApiError(429, "later", "queue_full", retry_seconds=3), 429, "queue_full"),
        (KeyError("x"), 500, "internal_error"),
    ],
)
def test_a_call_without_the_layers_of_fastapi_is_refused_as_with_them(
    problem: Exception, status: int, code: str
) -> None:
    """Also where FastAPI has it: a POST that generates takes the short way, any other method the long one."""

    async def fail(*_arguments: Any) -> None:
        raise problem

    service = SimpleNamespace(read=fail)
    app = make_app(service)  # type: ignore[arg-type]

    async def ask(asgi: Any, method: str) -> tuple[int, Any, dict[str, Any]]:
        record: dict[str, Any] = {}

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await asgi({**scope, "state": {"record": record, "tenant": EVERYBODY, "request_id": "r"}}, receive, send)

        transport = httpx.ASGITransport(with_state, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.request(method, "/v1/chat/completions", json={})
        return answer.status_code, answer.json(), record

    direct = DirectRoutes(app)
    short, long = (asyncio.run(ask(asgi, "POST")) for asgi in (direct, app))
    assert short == long
    assert (short[0], short[1]["error"]["code"], short[2]) == (status, code, {"error": code})
    assert asyncio.run(ask(direct, "PUT"))[0] == 405
    assert {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"} <= set(direct._routes)
