"""The application: routes, errors in one form, the OpenAPI document."""

from __future__ import annotations

import difflib
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route

from quire import __version__
from quire.serve import generation, inspector, inspector_pages, leases, operations, pages, room, tokens, warm
from quire.serve.anthropic import routes as messages
from quire.serve.anthropic.errors import MessageErrorAnswer, error_response
from quire.serve.errors import ApiError, internal_error
from quire.serve.invalid import refusal_of
from quire.serve.responses import routes as responses
from quire.serve.schemas import LARGEST_TOKEN
from quire.serve.service import Service


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    numbers: dict[str, int] | None = None


class ErrorAnswer(BaseModel):
    error: ErrorDetail


ROUTERS = (
    generation.router,
    messages.router,
    responses.router,
    leases.router,
    warm.router,
    room.router,
    operations.router,
    inspector.router,
    inspector_pages.router,
    tokens.router,
    pages.router,
)
STATUSES = {
    400: "It cannot be done as asked",
    401: "No key, or one that is not known",
    403: "The key may not do this",
    404: "Not here",
    405: "The path takes other methods: Allow says which",
    409: "It has ended",
    413: "The body is too large",
    415: "The body has an encoding that is not supported: Accept-Encoding says which are",
    422: "As 400",
    429: "Come back later: Retry-After says when",
    503: "The engine starts, is gone or drains",
}


def _errors(form: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": form, "description": text} for status, text in STATUSES.items()}


def make_app(service: Service) -> FastAPI:
    app = FastAPI(
        title="Quire", version=__version__, docs_url=None, redoc_url=None,
        description="Language models on a memory that explains itself: OpenAI's and Anthropic's protocols, and more.",
    )  # fmt: skip
    app.state.service = service
    for router in ROUTERS:
        form = MessageErrorAnswer if router is messages.router else ErrorAnswer
        app.include_router(router, responses=_errors(form))
    app.openapi = lambda: _document(app, service)  # type: ignore[method-assign]
    app.add_exception_handler(ApiError, answer_refusal)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _not_here)
    app.add_exception_handler(Exception, answer_bug)
    return app


def _document(app: FastAPI, service: Service) -> dict[str, Any]:
    """The OpenAPI document, with this server's model name and range of tokens."""
    if app.openapi_schema is None:
        app.openapi_schema = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        for body in app.openapi_schema["components"]["schemas"].values():
            if "model" in body.get("properties", {}):
                body["properties"]["model"] = {"type": "string", "enum": list(service.models)}
        _narrow(app.openapi_schema["components"], service.reader.prompts.vocabulary_tokens - 1)
    return app.openapi_schema


def _narrow(part: Any, largest_token: int) -> None:
    """Limits token numbers to the model's, wherever they appear."""
    if isinstance(part, dict) and part.get("maximum") == LARGEST_TOKEN:
        part["maximum"] = largest_token
    for one in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _narrow(one, largest_token)


async def answer_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    request.state.record["error"] = error.code
    return error_response(error, request.scope)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await answer_refusal(request, refusal_of(error.errors(), error.body))


async def answer_bug(request: Request, _error: Exception) -> Response:
    """Answers 500; the error is passed on to the log."""
    return await answer_refusal(request, internal_error())


async def _not_here(request: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        refusal = ApiError(404, f"the path is not known: {_near(request)}see /docs for all paths", "not_found")
    else:
        allow = _methods(request)
        message = f"the path does not take {request.method}: it takes {allow}"
        refusal = ApiError(405, message, "method_not_allowed", allow=allow)
    return await answer_refusal(request, refusal)


def _methods(request: Request) -> str:
    """Of all routes with this path: one path may have a route for each method."""
    routes = [route for router in (request.app, *ROUTERS) for route in router.routes if isinstance(route, Route)]
    found = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for methods in found for method in methods}))


def _near(request: Request) -> str:
    """The path that was probably meant: with /v1 before it, or with a similar spelling."""
    path, known = request.url.path, list(request.app.openapi()["paths"])
    near = [f"/v1{path}"] if f"/v1{path}" in known else difflib.get_close_matches(path, known, 1, 0.75)
    return f"did you mean {near[0]}? " if near else ""
