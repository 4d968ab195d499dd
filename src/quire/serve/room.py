"""/v1/room: what would happen to a request if it came now, for routers that choose between servers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import numpy as np
from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import Field
from starlette.responses import Response

from quire.core.request import Request, Tokens
from quire.explain.room import Room
from quire.serve.away import EngineAway
from quire.serve.body_route import BodyRoute
from quire.serve.calls import unavailable
from quire.serve.client import ROOM_SECONDS
from quire.serve.errors import json_response
from quire.serve.keys import Tenant
from quire.serve.prefix_body import PrefixBody
from quire.serve.service import Service

router = APIRouter(route_class=BodyRoute)
ONE_TOKEN: Tokens = np.zeros(1, dtype=np.int32)


class RoomBody(PrefixBody):
    """A conversation or a prompt that may be sent here."""

    max_tokens: Annotated[int, Field(ge=1, le=1 << 31)] = 16


@router.get("/v1/room", operation_id="room_of_any")
async def of_any(request: HttpRequest) -> Response:
    """What is ahead of a request of one token, which reuses nothing."""
    return await _room(request, ONE_TOKEN, 1)


@router.post("/v1/room", operation_id="room")
async def of_prompt(body: RoomBody, request: HttpRequest) -> Response:
    """Whether a request with this prompt would ever fit, what it would reuse, and what is ahead of it. Nothing is
    computed, kept or counted."""
    service: Service = request.app.state.service
    body.require_one()
    size = len(await request.body())
    tokens = await service.read(lambda: body.tokens(service.reader), request.state.tenant, size)
    return await _room(request, tokens, body.max_tokens)


async def _room(request: HttpRequest, prompt: Tokens, max_tokens: int) -> Response:
    service: Service = request.app.state.service
    tenant: Tenant = request.state.tenant
    asked = Request("room", prompt, max_tokens, scope=tenant.scope, tenant=tenant.name)
    try:
        found = await service.client.room(asked, ROOM_SECONDS)
    except EngineAway as error:
        raise unavailable(error) from None
    return json_response(_document(found))


def _document(found: Room) -> dict[str, object]:
    numbers = asdict(found)
    head = {"object": "room", "fits": numbers.pop("fits"), "queue_full": numbers.pop("is_queue_full")}
    return head | numbers | {"reused_tokens": found.reused_tokens}
