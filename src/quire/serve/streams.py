"""Answers in pieces, and clients that leave before the last one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.serve.protocol import BODY_WRITER, BodyWriter

Value = TypeVar("Value")
Piece = tuple[bytes, bool]
"""A part of an answer, and whether more of it follows."""


class ClientLeft(Exception):
    """The client has closed its connection before the end of the answer."""


async def _leaves(receive: Receive) -> None:
    """Returns when the client has closed its connection. Its body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


class ClientWatch:
    """Whether the client leaves, from now until `end`."""

    def __init__(self, receive: Receive) -> None:
        self._leaving = asyncio.ensure_future(_leaves(receive))

    async def unless_it_leaves(self, work: Awaitable[Value]) -> Value:
        """What `work` returns; if the client leaves first, the work is cancelled. One work at a time."""
        task, leaving, is_over = asyncio.current_task(), self._leaving, False
        assert task is not None

        def cancel(leaving: asyncio.Future[None]) -> None:
            if not is_over and not leaving.cancelled():
                task.cancel()

        leaving.add_done_callback(cancel)
        try:
            return await work
        except asyncio.CancelledError:
            if not leaving.done() or leaving.cancelled():
                raise  # the server ends
            task.uncancel()
            raise ClientLeft from None
        finally:
            is_over = True
            leaving.remove_done_callback(cancel)

    def end(self) -> None:
        self._leaving.cancel()


class EventStream(Response):
    """Server-sent events. The stream of pieces is always closed, so that its source can clean up."""

    def __init__(self, pieces: AsyncIterator[Piece], attach: Callable[[BodyWriter], None], watch: ClientWatch) -> None:
        """`attach`: gets what its source may write pieces with, whenever the last one of `pieces` is sent and the next
        one is waited for."""
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._pieces, self._attach, self._watch = pieces, attach, watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive  # the watch has it
        if (writer := scope.get("state", {}).get(BODY_WRITER)) is not None:
            self._attach(writer)
        try:
            with contextlib.suppress(ClientLeft):
                await self._watch.unless_it_leaves(self._send(send))
        finally:
            self._watch.end()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
        try:
            async for piece, more in self._pieces:
                await send(_body(piece, more))
        finally:
            await self._pieces.aclose()  # type: ignore[attr-defined]


def _body(piece: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": piece, "more_body": more}
