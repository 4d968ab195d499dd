"""POST /v1/cache/warm: a client announces a conversation or a prompt, and an idle engine computes it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.core.request import Tokens
from quire.core.sampling import Sampling
from quire.serve.away import EngineAway
from quire.serve.body_route import BodyRoute
from quire.serve.calls import unavailable
from quire.serve.errors import ApiError, json_response
from quire.serve.keys import Tenant
from quire.serve.messages import WarmUp
from quire.serve.prefix_body import PrefixBody
from quire.serve.service import Service
from quire.text.question import Question
from quire.warm.work import announced

router = APIRouter(route_class=BodyRoute)


class WarmBody(PrefixBody):
    """A conversation or a prompt that a request will begin with."""


@router.post("/v1/cache/warm")
async def warm(body: WarmBody, request: Request) -> Response:
    """Computes these tokens while the engine has nothing else to do. Limits and refusals are those of a request with
    the same prompt."""
    service: Service = request.app.state.service
    tenant: Tenant = request.state.tenant
    if not service.computes_ahead:
        message = "this server computes nothing ahead: its model's prefixes are not reused, or --next-turn is off"
        raise ApiError(400, message, "warm_disabled")
    body.require_one()
    size = len(await request.body())
    tokens = await service.read(lambda: body.tokens(service.reader), tenant, size)
    service.reader.require_room(tokens, body.field)
    await _count(service, tenant, tokens)
    try:
        service.client.tell(WarmUp(announced(tokens, tenant.scope, tenant.name)))
    except EngineAway as error:
        raise unavailable(error) from None
    return json_response({"object": "cache.warm", "tokens": len(tokens)})


async def _count(service: Service, tenant: Tenant, tokens: Tokens) -> None:
    """As a request with this prompt: raises where such a request would be refused."""
    asked = Question((tokens,), ("",), (1,), Sampling())
    async with service.allowances.admitting(tenant, asked) as (_, allowances):
        allowances.enter(tenant, 1, asked.tokens)
        allowances.leave(tenant, 1, 1)
