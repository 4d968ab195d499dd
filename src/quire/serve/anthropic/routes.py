"""/v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.serve.anthropic.errors import PATH, REQUEST_ID
from quire.serve.anthropic.formats import MessageFormat
from quire.serve.anthropic.schemas import CountBody, MessageBody
from quire.serve.anthropic.translation import chat_of
from quire.serve.body_route import BodyRoute
from quire.serve.errors import json_response
from quire.serve.generation import ANSWERS, answer
from quire.serve.service import Service
from quire.text.question import Question

router = APIRouter(route_class=BodyRoute)


@router.post(PATH, responses=ANSWERS)
async def message(body: MessageBody, request: Request) -> Response:
    service: Service = request.app.state.service
    has_format = body.output_config is not None and body.output_config.format is not None
    needs_grammar = has_format or bool(body.tools)
    call = await service.open_call(lambda: _question(body, service), request, needs_grammar)
    form = MessageFormat(call, service.model, request.state.request_id, body.max_tokens)
    return _with_id(await answer(request, bool(body.stream), form), request)


@router.post(f"{PATH}/count_tokens")
async def count_tokens(body: CountBody, request: Request) -> Response:
    """Tokens of the prompt that the same conversation would have; the engine is not asked."""
    service: Service = request.app.state.service
    count = await service.read(lambda: _count(body, service), request.state.tenant, len(await request.body()))
    return _with_id(json_response({"input_tokens": count}), request)


def _question(body: MessageBody, service: Service) -> Question:
    """Clients must send a length, and often send one that cannot fit: the answer then ends with the context."""
    return service.reader.chat(chat_of(body, service.reader.prompts.has_late_system), may_shorten=True)


def _count(body: CountBody, service: Service) -> int:
    _, prompt, _ = service.reader.conversation(chat_of(body, service.reader.prompts.has_late_system))
    return len(prompt)


def _with_id(response: Response, request: Request) -> Response:
    response.headers[REQUEST_ID] = request.state.request_id
    return response
