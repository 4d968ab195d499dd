"""Routes with a body: it is parsed and validated where long bodies are read, in a thread next to the event loop.

FastAPI itself does both on the loop, where a body of some megabytes would hold up all other calls for half a second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from quire.serve.errors import ApiError
from quire.serve.invalid import refusal_of
from quire.serve.service import Service

Endpoint = Callable[[Any, Request], Coroutine[Any, Any, Response]]


class BodyRoute(APIRoute):
    """Of an endpoint whose parameters are a body and the request."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if self.body_field is None:
            return super().get_route_handler()
        endpoint: Endpoint = self.endpoint
        form: type[BaseModel] = self.body_field.field_info.annotation  # type: ignore[assignment]

        async def handle(request: Request) -> Response:
            service: Service = request.app.state.service
            written = await request.body()
            body = await service.read(lambda: parsed(form, written), request.state.tenant, len(written))
            return await endpoint(body, request)

        return handle


def parsed(form: type[BaseModel], written: bytes) -> BaseModel:
    """Raises an error that names the field which is wrong."""
    if not written:
        raise ApiError(400, "the body is empty: send a JSON object", "invalid_value")
    try:
        value = json.loads(written)
    except json.JSONDecodeError:
        raise ApiError(400, "the body is not JSON: send an object as application/json", "invalid_json") from None
    except (ValueError, RecursionError):  # not UTF-8, a number of too many digits, nested too deeply
        raise ApiError(400, "the body cannot be read: send JSON in UTF-8", "invalid_json") from None
    try:
        return form.model_validate(value)
    except ValidationError as error:
        mistakes = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
        raise refusal_of(mistakes, value) from None
