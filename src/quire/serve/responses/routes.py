"""/v1/responses: a call, and what the store keeps of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from quire.serve.body_route import BodyRoute
from quire.serve.errors import ApiError, json_response
from quire.serve.generation import ANSWERS, answer
from quire.serve.responses.conversation import Conversation
from quire.serve.responses.form import PREFIX, ResponseFormat, head_of
from quire.serve.responses.items import ItemValue, ReferenceItem
from quire.serve.responses.output import Json
from quire.serve.responses.schemas import ResponseBody
from quire.serve.responses.store import ResponseStore, Stored
from quire.serve.responses.translation import NAMES, chat_of, item_document
from quire.serve.schemas import AsText
from quire.serve.service import Service

router = APIRouter(route_class=BodyRoute)
MOST_LISTED = 100


@router.post("/v1/responses", responses=ANSWERS)
async def respond(body: ResponseBody, request: Request) -> Response:
    service: Service = request.app.state.service
    tenant, store = request.state.tenant, service.responses
    stores, needs_time = is_stored(body, store), _needs_time(body)
    items = await _items(body, request)
    call = await service.open_call(lambda: service.reader.chat(chat_of(body, items), NAMES), request, needs_time)

    def keep(response: Json) -> None:
        store.keep(tenant, response, [item_document(item) for item in items])

    spelling = service.spelling if body.wants_logprobs else None
    form = ResponseFormat(call, head_of(body, stores), spelling, keep if stores else _forget)
    return await answer(request, bool(body.stream), form)


@router.post("/v1/responses/input_tokens")
async def input_tokens(body: ResponseBody, request: Request) -> Response:
    """Tokens of the prompt that the same call would have; the engine is not asked."""
    service, items = _service(request), await _items(body, request)

    def count() -> int:
        return len(service.reader.conversation(chat_of(body, items), NAMES)[1])

    counted = await service.read(count, request.state.tenant, len(await request.body()), _needs_time(body))
    return json_response({"object": "response.input_tokens", "input_tokens": counted})


async def _items(body: ResponseBody, request: Request) -> list[ItemValue]:
    """The whole conversation."""
    service, tenant = _service(request), request.state.tenant
    store, size = await service.responses.fetch(tenant, Conversation.responses(body)), len(await request.body())
    if body.previous_response_id is not None:
        _require_size(store.find(tenant, body.previous_response_id), size, service.settings.body_bytes)
    reading = Conversation(store, tenant)
    return await service.read(lambda: reading.items(body), tenant, size, _needs_time(body))


def _require_size(earlier: Stored | None, own_bytes: int, most_bytes: int) -> None:
    """A conversation that is continued may be as long as one that is sent whole."""
    size = own_bytes + (0 if earlier is None else earlier.size)
    if size > most_bytes:
        message = (
            f"the conversation has {size:,} bytes with what is stored of it, {most_bytes:,} may be: begin a new one"
        )
        raise ApiError(413, message, "body_too_large", "previous_response_id")


def _forget(response: Json) -> None:
    del response


def is_stored(body: ResponseBody, store: ResponseStore) -> bool:
    if body.store and not store.is_on:
        message = "store is true, and this server keeps no responses: leave it out, or start it with --store-bytes"
        raise ApiError(400, message, "unsupported_field", "store")
    return store.is_on if body.store is None else body.store


def _needs_time(body: ResponseBody) -> bool:
    """Whether a thread reads the body, however short it is: it has a grammar, or continues a conversation, which may
    be long."""
    has_format = body.text is not None and not isinstance(body.text.format, AsText | None)
    is_list = isinstance(body.input, list)
    refers = is_list and any(isinstance(item, ReferenceItem) for item in body.input)
    return bool(body.tools) or has_format or refers or body.previous_response_id is not None


@router.get("/v1/responses/{response}")
async def retrieve(
    response: str,
    request: Request,
    stream: Annotated[bool, Query(description="Only false: what is stored is returned whole.")] = False,
) -> Response:
    if stream:
        message = "a stored response is returned whole: leave stream out"
        raise ApiError(400, message, "unsupported_field", "stream")
    found = await _stored(request, response)
    return Response(found.response, media_type="application/json")


@router.delete("/v1/responses/{response}")
async def delete(response: str, request: Request) -> Response:
    await _store(request).remove(request.state.tenant, response)
    return json_response({"id": response, "object": "response", "deleted": True})


@router.post("/v1/responses/{response}/cancel")
async def cancel(response: str, request: Request) -> Response:
    """Ends a response in progress: its own client gets the error `aborted`, and nothing of it is stored."""
    service, tenant = _service(request), request.state.tenant
    own = replace(tenant, is_admin=False)  # for admins too, other keys' responses do not exist
    names = await service.calls.names_of(response, own) if response.startswith(PREFIX) else ()
    if names and await service.client.abort_anywhere(names):
        head = {"id": response, "object": "response", "status": "cancelled", "model": service.model}
        return json_response({**head, "output": [], "error": None, "incomplete_details": None, "usage": None})
    if not names:
        await _stored(request, response)
    message = "the response has ended, so it cannot be cancelled: ask for it by GET, or delete it"
    raise ApiError(409, message, "response_ended")


@router.get("/v1/responses/{response}/input_items")
async def input_items(
    response: str,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=128, description="The id of the last item that you have.")] = None,
) -> Response:
    """The items that a response answers, the conversation before them included; the newest first."""
    found = await _stored(request, response)
    items = await _service(request).read(found.input_items, request.state.tenant, len(found.input))
    if order == "desc":
        items.reverse()
    if after is not None:
        items = items[_number(items, after) + 1 :]
    page = items[:limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    more = len(items) > len(page)
    return json_response({"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": more})


def _number(items: list[Json], after: str) -> int:
    for number, item in enumerate(items):
        if item["id"] == after:
            return number
    raise ApiError(
        400, f"after names {after[:64]!r}: give the id of an item of this response", "invalid_value", "after"
    )


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _store(request: Request) -> ResponseStore:
    return _service(request).responses


async def _stored(request: Request, response: str) -> Stored:
    tenant = request.state.tenant
    return (await _store(request).fetch(tenant, [response])).get(tenant, response)
