"""Errors of the Messages API's paths in Anthropic's form, also those that arise before a route is found."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Scope

from quire.serve.errors import ApiError, json_response

PATH = "/v1/messages"
REQUEST_ID = "request-id"
"""The header in which Anthropic's clients look for a request's id."""
TYPES = {413: "request_too_large", 431: "request_too_large", 503: "overloaded_error", 504: "timeout_error"}
"""By status; others as in OpenAI's form, or api_error."""


class MessageErrorDetails(BaseModel):
    error_code: str


class MessageErrorDetail(BaseModel):
    type: str
    message: str
    details: MessageErrorDetails


class MessageErrorAnswer(BaseModel):
    type: Literal["error"]
    error: MessageErrorDetail
    request_id: str


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """The code goes where the official client looks for one."""
    kind = TYPES.get(error.status) or ("api_error" if error.status >= 500 else error.type)
    detail = {"type": kind, "message": error.message, "details": {"error_code": error.code}}
    return {"type": "error", "error": detail, "request_id": request_id}


def error_response(error: ApiError, scope: Scope) -> Response:
    """In the form of the API that the path belongs to."""
    if scope["path"] != PATH and not scope["path"].startswith(PATH + "/"):
        return error.response()
    request_id = scope["state"]["request_id"]
    return json_response(error_body(error, request_id), error.status, {**error.headers(), REQUEST_ID: request_id})
