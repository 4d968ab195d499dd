"""The gateway: an ASGI application that passes each call to a replica and its answer back, both as they are.

    call ──▶ key, body (`calls.py`) ──▶ destination ──▶ replicas in order ──▶ the first that takes it ──▶ answer

A call goes on to the next replica only if the one before has computed nothing for it: it takes no connections, drains,
starts, or its queue is full. A client that leaves ends its call there too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from quire.deploy.calls import REPLICA_HEADER, Call, CallReader, json_object
from quire.deploy.destinations import Destination, Kind, destination, is_generating
from quire.deploy.failures import last_event
from quire.deploy.members import Members, Replica
from quire.deploy.merging import merged
from quire.deploy.placing import Placing, most_reused
from quire.deploy.upstream import Answer, Broken, Headers, Unreachable, Upstream
from quire.serve import logs
from quire.serve.anthropic.errors import error_response
from quire.serve.bodies import header
from quire.serve.edge import request_id_of
from quire.serve.errors import ApiError, internal_error
from quire.serve.settings import ServeSettings
from quire.serve.streams import ClientLeft, ClientWatch

READY = ("/health", "/health/ready", "/ping")
RETRY_SECONDS = 2
ELSEWHERE = ("draining", "engine_starting", "queue_full")
"""Errors after which another replica may take the call: nothing was computed."""
NOT_HERE = ("previous_response_not_found", "item_not_found")
"""Errors, besides 404, of a replica that does not have what a call names."""
SMALL = (400, 404, 429, 503)
"""Statuses whose code decides."""


class Gateway:
    def __init__(
        self,
        members: Members,
        settings: ServeSettings,
        placing: Placing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._members, self._placing, self._clock = members, placing or Placing(), clock
        self._reader = CallReader(settings)
        self._upstream: Upstream | None = None
        self.is_draining = False
        self.calls = 0
        """In progress."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            self.calls += 1
            try:
                await self._serve(scope, receive, send)
            finally:
                self.calls -= 1

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            if kind == "lifespan.shutdown" and self._upstream is not None:
                await self._upstream.close()
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = request_id_of(scope)
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        writer = _Writer(send)
        try:
            async with self._reader.reading(scope, receive) as call:
                await self._answer_unless_left(call, receive, writer)
        except ApiError as error:
            if writer.has_begun:
                raise  # the connection is closed: the answer is not complete
            await writer.refuse(error, scope, receive)
        except Exception as error:
            logs.write_bug(error, request=request_id)
            if writer.has_begun:
                raise  # as above
            await writer.refuse(internal_error(), scope, receive)

    async def _answer_unless_left(self, call: Call, receive: Receive, writer: _Writer) -> None:
        watch = ClientWatch(receive)
        try:
            with contextlib.suppress(ClientLeft):
                await watch.unless_it_leaves(self._answer(call, writer))
        finally:
            watch.end()

    # ── which replicas ────────────────────────────────────────────────────

    async def _answer(self, call: Call, writer: _Writer) -> None:
        goal = destination(call.outgoing.method, call.path, call.body)
        if self.is_draining and (is_generating(call.outgoing.method, call.path) or call.path in READY):
            raise ApiError(
                503, "the server stops: send the request to another one", "draining", retry_seconds=RETRY_SECONDS
            )
        replicas = self._named(call) or self._members.least_busy()
        if not replicas:
            raise _no_replica()
        if goal.kind is Kind.TOGETHER:
            await self._merge(call, replicas, writer)
            return
        if goal.kind is Kind.PLACED and len(replicas) > 1:
            replicas = await self._placed(call, goal, replicas)
        await self._pass(call, goal, replicas, writer)

    def _named(self, call: Call) -> list[Replica]:
        """The one that the client names."""
        name = header(call.scope, REPLICA_HEADER)
        found = [one for one in self._members.least_busy() if one.name == name]
        if name and not found:
            raise ApiError(404, f"no replica {name[:64]!r} is here: leave the header out", "replica_not_found")
        return found

    async def _placed(self, call: Call, goal: Destination, replicas: list[Replica]) -> list[Replica]:
        """The one for this prompt first, then the others."""
        if goal.lease and (home := await self._home(call, goal.lease, replicas)):
            return _first(home, replicas)
        asked = await self._reader.asked_about(call)
        if asked is None:
            return replicas
        asking = [self._up().room(one, asked.question, call.asking_headers) for one in replicas]
        rooms = dict(zip((one.name for one in replicas), await asyncio.gather(*asking), strict=True))
        if goal.by_reuse:
            chosen = most_reused(rooms)
        else:
            chosen = self._placing.choose(asked.session, rooms, self._members.calls, self._clock())
        return _first(chosen, replicas)

    async def _home(self, call: Call, lease: str, replicas: Sequence[Replica]) -> str | None:
        path = f"/v1/leases/{quote(lease, safe='')}"
        found = await asyncio.gather(*(self._up().has(one, path, call.asking_headers) for one in replicas))
        return next((one.name for one, has in zip(replicas, found, strict=True) if has), None)

    # ── their answers ─────────────────────────────────────────────────────

    async def _pass(self, call: Call, goal: Destination, replicas: Sequence[Replica], writer: _Writer) -> None:
        """The answer of the first replica that does not leave the call to another; else of the last."""
        refusal: tuple[Replica, Answer, bytes] | None = None
        for replica in replicas:
            try:
                with self._members.calling(replica):
                    async with self._up().calling(replica, call.outgoing) as answer:
                        content = await answer.whole() if answer.status in SMALL and not answer.is_stream else None
                        if content is None:
                            await writer.stream(replica, answer, call)
                            return
                        if not _leaves_it(goal, answer.status, content):
                            await writer.whole(replica, answer, content)
                            return
                        refusal = replica, answer, content
            except Unreachable:
                self._members.lose(replica)
            except Broken:
                if writer.has_begun or goal.kind is not Kind.HELD or call.outgoing.method == "POST":
                    raise _gone(replica) from None
        if refusal is None:
            raise _no_replica()
        await writer.whole(*refusal)

    async def _merge(self, call: Call, replicas: Sequence[Replica], writer: _Writer) -> None:
        """One answer of all; a refusal of any of them is the answer."""
        answers = await asyncio.gather(*(self._fetch(call, one) for one in replicas))
        found = [(replica, *answer) for replica, answer in zip(replicas, answers, strict=True) if answer is not None]
        if not found:
            raise _no_replica()
        for replica, answer, content in found:
            if answer.status != 200:
                await writer.whole(replica, answer, content)
                return
        contents = {replica.name: content for replica, _, content in found}
        method = "GET" if call.outgoing.method == "HEAD" else call.outgoing.method
        await writer.whole(None, found[0][1], merged(method, call.path, contents))

    async def _fetch(self, call: Call, replica: Replica) -> tuple[Answer, bytes] | None:
        try:
            async with self._up().calling(replica, call.outgoing) as answer:
                return answer, await answer.whole()
        except Unreachable:
            self._members.lose(replica)
        except Broken:
            pass
        return None

    def _up(self) -> Upstream:
        if self._upstream is None:
            self._upstream = Upstream()
        return self._upstream


class _Writer:
    """Writes one answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def stream(self, replica: Replica, answer: Answer, call: Call) -> None:
        await self._begin(replica, answer, answer.headers)
        try:
            async for piece in answer.pieces():
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        except Broken:
            if not answer.is_stream:
                raise
            event = last_event(call.path, _gone(replica), call.scope["state"]["request_id"])
            await self._send({"type": "http.response.body", "body": event, "more_body": True})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self, replica: Replica | None, answer: Answer, content: bytes) -> None:
        headers = [pair for pair in answer.headers if pair[0] != b"content-length"]
        await self._begin(replica, answer, [*headers, (b"content-length", str(len(content)).encode())])
        await self._send({"type": "http.response.body", "body": content, "more_body": False})

    async def refuse(self, error: ApiError, scope: Scope, receive: Receive) -> None:
        self.has_begun = True
        await error_response(error, scope)(scope, receive, self._send)

    async def _begin(self, replica: Replica | None, answer: Answer, headers: Headers) -> None:
        self.has_begun = True
        own = [(REPLICA_HEADER, replica.name.encode())] if replica else []
        await self._send({"type": "http.response.start", "status": answer.status, "headers": [*headers, *own]})


def _first(name: str | None, replicas: Sequence[Replica]) -> list[Replica]:
    return sorted(replicas, key=lambda one: one.name != name)


def _leaves_it(goal: Destination, status: int, content: bytes) -> bool:
    """Whether another replica may answer instead."""
    body = json_object(content) or {}
    error = body.get("error")
    error = error if isinstance(error, dict) else {}
    code = error.get("code") or (error.get("details") or {}).get("error_code")
    return code in ELSEWHERE or (goal.kind is Kind.HELD and (status == 404 or code in NOT_HERE))


def _no_replica() -> ApiError:
    message = "no replica takes calls now: they start, or start again; send the request again later"
    return ApiError(503, message, "no_replica", retry_seconds=RETRY_SECONDS)


def _gone(replica: Replica) -> ApiError:
    message = f"replica {replica.name} ended before its answer did: send the request again"
    return ApiError(503, message, "replica_gone", retry_seconds=RETRY_SECONDS)
