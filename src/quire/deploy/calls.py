"""Calls as the gateway reads them: the key first, then the body, a long one in a thread next to the event loop.

call ──▶ key known? ──▶ body, within its limits ──▶ its JSON object ──▶ what the router asks about it
             └─ no: passed on without its body. A replica answers what needs no key, and refuses all else
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.types import Receive, Scope

from quire.deploy.destinations import Json, is_generating
from quire.deploy.prompts import Asked, asked_about
from quire.deploy.upstream import Headers, Outgoing
from quire.serve.bodies import Bodies
from quire.serve.edge import key_of
from quire.serve.errors import ApiError
from quire.serve.keys import EVERYBODY, KeyRing, Tenant
from quire.serve.settings import ServeSettings
from quire.serve.turns import Turns

REPLICA_HEADER = b"x-quire-replica"
"""Of an answer: which replica gave it. Of a call: which one is to answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    scope: Scope
    outgoing: Outgoing
    body: Json | None
    """Its JSON object, if it has one."""
    tenant: str
    """Of its key; empty: it has none that is known."""

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    @property
    def asking_headers(self) -> Headers:
        """For questions about it: with its key, without its id."""
        return [pair for pair in self.outgoing.headers if pair[0] in (b"authorization", b"host", b"x-api-key")]


class CallReader:
    def __init__(self, settings: ServeSettings) -> None:
        self._ring = KeyRing(settings.keys, key_sha256=settings.api_key_sha256)
        self._bodies = Bodies(settings.body_bytes, settings.bodies_bytes, settings.body_seconds)
        self._turns = Turns()

    @asynccontextmanager
    async def reading(self, scope: Scope, receive: Receive) -> AsyncIterator[Call]:
        """The call. Its body counts as held until the end."""
        target, headers = _target(scope), [pair for pair in scope["headers"] if pair[0] != REPLICA_HEADER]
        tenant = self._tenant(scope)
        if tenant is None:
            yield Call(scope, Outgoing(scope["method"], target, headers, b""), None, "")
            return
        with self._bodies.receiving(scope, receive) as receiving:
            content = (await (await receiving.received())())["body"]
            body = await self._turns.read_body(lambda: json_object(content), tenant.name, len(content))
            yield Call(scope, Outgoing(scope["method"], target, headers, content), body, tenant.name)

    async def asked_about(self, call: Call) -> Asked | None:
        """None: any replica may refuse it."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.outgoing.headers}
        has_session = is_generating(call.outgoing.method, call.path)
        size = len(call.outgoing.body)
        return await self._turns.read_body(
            lambda: asked_about(call.path, headers, call.body, has_session), call.tenant, size
        )

    def _tenant(self, scope: Scope) -> Tenant | None:
        if self._ring.is_open:
            return EVERYBODY
        key = key_of(scope)
        return self._ring.find(key) if key else None


def _target(scope: Scope) -> str:
    """Path and query as they came. With a target of another form, the address of the replica would not end here."""
    raw = scope.get("raw_path") or quote(scope["path"]).encode()
    if not raw.startswith(b"/"):
        raise ApiError(400, "the target of the call is no path: send one such as /v1/models", "invalid_value")
    query = scope.get("query_string") or b""
    return str((raw + (b"?" + query if query else b"")).decode("latin-1"))


def json_object(content: bytes) -> Json | None:
    try:
        found: Any = json.loads(content) if content else None
    except (ValueError, RecursionError):  # the replica says what is wrong
        return None
    return found if isinstance(found, dict) else None
