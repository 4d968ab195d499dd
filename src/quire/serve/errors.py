"""Errors as clients of the API read them: a status, and a body in OpenAI's form.

400 invalid_request_error    what was asked cannot be done: context_length_exceeded, unsupported_field, …
401 authentication_error     no key, or one that is not known
403 permission_error         a key that may not do this
404 not_found_error          a path, a model or a request that is not here
405 invalid_request_error    a path that takes other methods (with Allow)
408, 413, 431                a body or headers too slow or too large
409 invalid_request_error    the response has ended
410 invalid_request_error    the call was aborted by another call
415 invalid_request_error    a body in an encoding that is not supported (with Accept-Encoding)
429 rate_limit_error         come back later: queue_full, requests_limit, tokens_limit (with Retry-After)
503 server_error             the engine starts, is gone, or drains (with Retry-After); 504 it took too long; 500 a bug
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from quire.core.errors import InputError, QuireError

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


@dataclass(eq=False)
class ApiError(QuireError):
    status: int
    message: str
    code: str
    param: str | None = None
    retry_seconds: int | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)
    allow: str | None = None
    """Methods that the path takes."""
    accept_encoding: str | None = None
    """Encodings that a body may have."""

    def __str__(self) -> str:
        return self.message

    @property
    def type(self) -> str:
        fallback = "server_error" if self.status >= 500 else "invalid_request_error"
        return TYPES.get(self.status, fallback)

    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error | ({"numbers": dict(self.numbers)} if self.numbers else {})}

    def headers(self) -> dict[str, str]:
        found = {"retry-after": self.retry_seconds, "allow": self.allow, "accept-encoding": self.accept_encoding}
        return {name: str(value) for name, value in found.items() if value is not None}

    def response(self) -> Response:
        return json_response(self.body(), self.status, self.headers())


class naming_field:  # noqa: N801 as a function, which would take five times as long
    """Turns an error in a client's input into a refusal that names its field."""

    __slots__ = ("_code", "_name")

    def __init__(self, name: str | None, code: str = "invalid_value") -> None:
        self._name, self._code = name, code

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, InputError):
            raise ApiError(400, str(error), self._code, self._name) from None


def internal_error() -> ApiError:
    """A bug, as clients see it; the log says where."""
    return ApiError(500, "something went wrong inside the server; the log has more", "internal_error")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """In ASCII: an invalid character from a client that a message quotes must not break the answer."""
    return Response(dumps(value), status, headers, media_type="application/json")


dumps = json.JSONEncoder(separators=(",", ":")).encode
quoted = json.encoder.encode_basestring_ascii
"""The same as `dumps` of a text, without looking at what sort of value it is."""
