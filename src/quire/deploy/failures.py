"""The last event of a stream whose replica has ended, in the form of the API that the call used."""

from __future__ import annotations

from quire.serve.anthropic.errors import PATH as MESSAGES
from quire.serve.anthropic.errors import error_body
from quire.serve.errors import ApiError
from quire.serve.formats import event

RESPONSES = "/v1/responses"


def last_event(path: str, error: ApiError, request_id: str) -> bytes:
    """After an empty line, because the piece before may have ended within an event."""
    if path == MESSAGES:
        return b"\n\n" + event(error_body(error, request_id), "error")
    if path == RESPONSES:
        told = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return b"\n\n" + event(told, "error")
    return b"\n\n" + event(error.body())
