"""The first checks of every call: limits on headers, body and time, the key, the request's id, the log's line."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.serve import inspector_pages, logs
from quire.serve.anthropic.errors import error_response
from quire.serve.bodies import Bodies, Body, header
from quire.serve.errors import ApiError, internal_error
from quire.serve.fields import Ignored, noting_ignored
from quire.serve.keys import EVERYBODY, KeyRing, Tenant
from quire.serve.logs import shown_path
from quire.serve.metrics import HttpMetrics
from quire.serve.origins import Headers, Origins
from quire.serve.settings import ServeSettings

if TYPE_CHECKING:
    from quire.serve.spans.spans import Spans

METRICS = "/metrics"
"""Needs a key if there are any, unless the operator opens it: sums over all tenants reveal the size of each request."""
OPEN_PATHS = (
    "/", "/docs", "/openapi.json", "/version", "/ping", "/health", "/health/live", "/health/ready", "/health/progress",
    *inspector_pages.OPEN_PATHS,
)  # fmt: skip
"""To read these, no key is needed, and no body is received."""
POLLED = (METRICS, "/v1/inspect")
"""Beginnings of paths that are asked for again and again: calls of them are not traced."""
OPEN_METHODS = ("GET", "HEAD")
LINGER_SECONDS = 1.0
"""How long a client may go on sending a refused body before its connection is closed."""
SMALL_BODY_BYTES = 65_536
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""Counted by name in the metrics; any other method is counted as `other`."""
_SANE_ID = re.compile(r"^[A-Za-z0-9._-]{1,64}$")


def _read_as_json(scope: Scope) -> None:
    """Treats every body as JSON, whatever its content type: curl declares a form by default."""
    if scope["method"] == "POST":
        others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
        scope["headers"] = [*others, (b"content-type", b"application/json")]


class Edge:
    def __init__(
        self,
        app: ASGIApp,
        settings: ServeSettings,
        ring: KeyRing,
        metrics: HttpMetrics,
        spans: Spans | None = None,
    ) -> None:
        self._app, self._settings, self._ring, self._metrics = app, settings, ring, metrics
        self._spans = spans
        self._bodies = Bodies(settings.body_bytes, settings.bodies_bytes, settings.body_seconds)
        self._origins = Origins(settings.host, settings.allow_origin, has_keys=not ring.is_open)
        self._open_paths = (*OPEN_PATHS, METRICS) if ring.is_open or settings.open_metrics else OPEN_PATHS
        self._key_problem = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        ignored = Ignored(self._settings.strict_fields)
        answer = _Answer(send, request_id_of(scope), self._origins.headers(scope), ignored)
        record: dict[str, Any] = {}
        begin = time.monotonic()
        scope["state"] = {**scope.get("state", {}), "record": record, "request_id": answer.request_id}
        if self._spans is not None:
            scope["state"]["begin_ns"] = time.time_ns()
        try:
            with noting_ignored(ignored):
                await self._let_in(scope, receive, answer)
        except ApiError as error:  # before the application has its body
            answer.is_last = _has_body(scope)
            await error_response(error, scope)(scope, receive, answer)
            record["error"] = error.code
        except Exception as error:
            logs.write_bug(error, request=answer.request_id)
            if not answer.status:
                await error_response(internal_error(), scope)(scope, receive, answer)
        self._note(scope, answer, record, time.monotonic() - begin)
        if answer.is_last:
            await answer.end(LINGER_SECONDS if _may_still_be_sent(scope) else 0)

    async def _let_in(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        self._check_headers(scope)
        if (preflight := self._origins.preflight(scope)) is not None:
            answer.is_last = _has_body(scope)
            await preflight(scope, receive, answer)
            return
        is_open = scope["path"] in self._open_paths and scope["method"] in OPEN_METHODS
        if not is_open:
            self._origins.check(scope)
        _read_as_json(scope)
        tenant = EVERYBODY if is_open else self._tenant(scope)
        scope["state"]["tenant"] = tenant
        scope["state"]["record"]["tenant"] = tenant.name
        if self._spans is not None and not is_open and not scope["path"].startswith(POLLED):
            self._trace(self._spans, scope, tenant)
        if is_open:
            answer.is_last = _has_body(scope)
            await self._answer(scope, Body(b"", receive), answer)
            return
        with self._bodies.receiving(scope, receive) as body:
            await self._answer(scope, await body.received(), answer)

    def _trace(self, spans: Spans, scope: Scope, tenant: Tenant) -> None:
        if (span := spans.call(scope, tenant.name, scope["state"]["begin_ns"])) is not None:
            scope["state"]["span"], scope["state"]["record"]["trace"] = span, span.trace

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """HEAD is answered as GET; uvicorn leaves the body out."""
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        inner = {**scope, "method": method}
        try:
            await self._app(inner, receive, answer)
        finally:
            scope["route"] = inner.get("route")

    # ── limits ────────────────────────────────────────────────────────────

    def _check_headers(self, scope: Scope) -> None:
        size = sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope.get("raw_path") or b"")
        if size > self._settings.header_bytes:
            message = f"the headers have {size:,} bytes, {self._settings.header_bytes:,} may be: send fewer"
            raise ApiError(431, message, "headers_too_large")

    # ── keys ──────────────────────────────────────────────────────────────

    def _tenant(self, scope: Scope) -> Tenant:
        if self._ring.is_open:
            return EVERYBODY
        key = key_of(scope)
        tenant = self._ring.find(key) if key else None
        self._tell_key_problem()
        if tenant is None:
            what = "this key is not known" if key else "there is no key"
            raise ApiError(401, f"{what}: send it as Authorization: Bearer … or as x-api-key", "invalid_api_key")
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
        shown = path if route is not None else shown_path(scope["path"])
        fields = {"request": answer.request_id, "method": method, "path": shown, "status": answer.status}
        logs.write("request", level, **fields, seconds=round(seconds, 4), **record)
        if (span := scope["state"].get("span")) is not None:
            span.end(answer.status, path, record)


class _Answer:
    """Passes an answer on, with headers of its own and the names of ignored fields, and remembers its status."""

    def __init__(self, send: Send, request_id: str, more_headers: Headers, ignored: Ignored) -> None:
        self._send, self.request_id, self.status, self._ignored = send, request_id, 0, ignored
        own = [(b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff")]
        self._headers = [*own, *more_headers]
        self.is_last = False
        """The body was not read: the connection closes after this answer, whose end is sent by `end`."""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            last = [(b"connection", b"close")] if self.is_last else []
            if self._ignored.names:
                last.append((b"x-quire-ignored", self._ignored.header().encode()))
            message = {**message, "headers": [*message.get("headers", []), *self._headers, *last]}
        elif self.is_last:
            message = {**message, "more_body": True}
        await self._send(message)

    async def end(self, seconds: float) -> None:
        """Not at once if the client may still send: closing while bytes arrive could discard the answer before it is
        read. What arrives meanwhile is not read, so that the client has to stop."""
        await asyncio.sleep(seconds)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _has_body(scope: Scope) -> bool:
    return header(scope, b"content-length") not in ("", "0") or bool(header(scope, b"transfer-encoding"))


def _may_still_be_sent(scope: Scope) -> bool:
    """Whether the body may not have arrived with its head."""
    length = header(scope, b"content-length")
    return not length.isdigit() or int(length) > SMALL_BODY_BYTES


def key_of(scope: Scope) -> str:
    """The key without the word before it; from x-api-key if there is no bearer key."""
    given = header(scope, b"authorization")
    word, _, key = given.partition(" ")
    return key.strip() if word.lower() == "bearer" else header(scope, b"x-api-key")


def request_id_of(scope: Scope) -> str:
    """The client's own id if it is valid."""
    given = header(scope, b"x-request-id")
    return given if _SANE_ID.match(given) else f"req_{secrets.token_hex(12)}"
