"""The first checks of every call: limits on headers, body and time, the key, the request's id, the log's line."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.serve import logs
from quire.serve.errors import ApiError, internal_error
from quire.serve.fields import Ignored, noting_ignored
from quire.serve.keys import EVERYBODY, KeyRing, Tenant
from quire.serve.metrics import Metrics
from quire.serve.settings import ServeSettings

OPEN_PATHS = ("/health", "/metrics", "/openapi.json")
"""No key is needed: they reveal nothing about requests."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""Counted by name in the metrics; any other method is counted as `other`."""
_SANE_ID = re.compile(r"^[A-Za-z0-9._-]{1,64}$")


def _read_as_json(scope: Scope) -> None:
    """Treats every body as JSON, whatever its content type: curl declares a form by default."""
    if scope["method"] == "POST":
        others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
        scope["headers"] = [*others, (b"content-type", b"application/json")]


class Edge:
    def __init__(self, app: ASGIApp, settings: ServeSettings, ring: KeyRing, metrics: Metrics) -> None:
        self._app, self._settings, self._ring, self._metrics = app, settings, ring, metrics
        self._key_problem = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        ignored = Ignored(self._settings.strict_fields)
        answer = _Answer(send, _request_id(scope), ignored)
        record: dict[str, Any] = {}
        begin = time.monotonic()
        scope["state"] = {**scope.get("state", {}), "record": record, "request_id": answer.request_id}
        try:
            with noting_ignored(ignored):
                await self._let_in(scope, receive, answer)
        except ApiError as error:
            await error.response()(scope, receive, answer)
            record["error"] = error.code
        except Exception as error:
            logs.write_bug(error, request=answer.request_id)
            if not answer.status:
                await internal_error().response()(scope, receive, answer)
        self._note(scope, answer, record, time.monotonic() - begin)

    async def _let_in(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        self._check_headers(scope)
        _read_as_json(scope)
        tenant = self._tenant(scope)
        scope["state"]["tenant"] = tenant
        scope["state"]["record"]["tenant"] = tenant.name
        await self._app(scope, await self._with_body(scope, receive), answer)

    # ── limits ────────────────────────────────────────────────────────────

    def _check_headers(self, scope: Scope) -> None:
        size = sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope.get("raw_path") or b"")
        if size > self._settings.header_bytes:
            message = f"the headers have {size:,} bytes, {self._settings.header_bytes:,} may be: send fewer"
            raise ApiError(431, message, "headers_too_large")

    async def _with_body(self, scope: Scope, receive: Receive) -> Receive:
        """Reads the body within its limits and passes it on in one piece; a later message means the client has left."""
        most, seconds = self._settings.body_bytes, self._settings.body_seconds
        length = _header(scope, b"content-length")
        if length.isdigit() and int(length) > most:
            raise _too_large(int(length), most)
        body, is_over = b"", False
        try:
            async with asyncio.timeout(seconds):
                while not is_over:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    body += message.get("body", b"")
                    is_over = not message.get("more_body", False)
                    if len(body) > most:
                        raise _too_large(len(body), most)
        except TimeoutError:
            raise ApiError(408, f"the body was not here after {seconds:g} s: send it faster", "body_timeout") from None
        return _Body(body, receive)

    # ── keys ──────────────────────────────────────────────────────────────

    def _tenant(self, scope: Scope) -> Tenant:
        if self._ring.is_open or scope["path"].startswith(OPEN_PATHS):
            return EVERYBODY
        key = _key(scope)
        tenant = self._ring.find(key) if key else None
        self._tell_key_problem()
        if tenant is None:
            what = "this key is not known" if key else "there is no key"
            raise ApiError(401, f"{what}: send it as Authorization: Bearer …", "invalid_api_key")
        return tenant

    def _tell_key_problem(self) -> None:
        if self._ring.problem and self._ring.problem != self._key_problem:
            logs.write("keys_unreadable", "error", message=self._ring.problem)
        self._key_problem = self._ring.problem

    def _note(self, scope: Scope, answer: _Answer, record: dict[str, Any], seconds: float) -> None:
        route = scope.get("route")
        path = getattr(route, "path_format", None) or ("unknown" if not record.get("error") else "refused")
        if record.get("error"):
            self._metrics.refused.labels(record["error"]).inc()
        if record.get("left"):
            self._metrics.disconnects.inc()
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.note_response(path, method if path != "unknown" else "any", answer.status, seconds)
        level = "debug" if path.startswith(("/health", "/metrics")) else "info"
        fields = {"request": answer.request_id, "method": scope["method"], "path": path, "status": answer.status}
        logs.write("request", level, **fields, seconds=round(seconds, 4), **record)


class _Answer:
    """Passes an answer on, with the request's id and the names of ignored fields in its headers, and remembers its
    status."""

    def __init__(self, send: Send, request_id: str, ignored: Ignored) -> None:
        self._send, self.request_id, self.status, self._ignored = send, request_id, 0, ignored

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            more = [(b"x-request-id", self.request_id.encode()), (b"x-content-type-options", b"nosniff")]
            if self._ignored.names:
                more.append((b"x-quire-ignored", self._ignored.header().encode()))
            message = {**message, "headers": [*message.get("headers", []), *more]}
        await self._send(message)


class _Body:
    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


def _key(scope: Scope) -> str:
    """The key without the word before it; from x-api-key if there is no bearer key."""
    given = _header(scope, b"authorization")
    word, _, key = given.partition(" ")
    return key.strip() if word.lower() == "bearer" else _header(scope, b"x-api-key")


def _request_id(scope: Scope) -> str:
    """The client's own id if it is valid."""
    given = _header(scope, b"x-request-id")
    return given if _SANE_ID.match(given) else f"req_{secrets.token_hex(12)}"


def _too_large(size: int, most: int) -> ApiError:
    return ApiError(413, f"the body has at least {size:,} bytes, {most:,} may be: send less", "body_too_large")
