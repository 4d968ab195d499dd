"""Bodies of requests: each is received whole and decompressed, within limits of size and time. All of them together
have a limit too.

A body counts from its first byte until its call has ended, because it stays in memory for so long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Message, Receive, Scope

from quire.serve.encodings import BodyDecoder, too_large
from quire.serve.errors import ApiError

RETRY_SECONDS = 1


def header(scope: Scope, name: bytes) -> str:
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return ""


class Bodies:
    """All bodies in memory."""

    def __init__(self, most_bytes: int, most_bytes_together: int, seconds: float) -> None:
        self.most_bytes, self._most_together, self.seconds = most_bytes, most_bytes_together, seconds
        self.held_bytes = 0

    @contextmanager
    def receiving(self, scope: Scope, receive: Receive) -> Iterator[ReceivedBody]:
        body = ReceivedBody(self, scope, receive)
        try:
            yield body
        finally:
            self.held_bytes -= body.held_bytes

    def hold(self, size: int) -> None:
        """Raises if the limit of all bodies together does not admit this many bytes more."""
        if self.held_bytes + size > self._most_together:
            message = (
                f"the bodies of all requests have {self.held_bytes:,} bytes, {self._most_together:,} may be: "
                "send the request again later"
            )
            raise ApiError(503, message, "bodies_full", retry_seconds=RETRY_SECONDS)
        self.held_bytes += size


class ReceivedBody:
    """One of them."""

    def __init__(self, bodies: Bodies, scope: Scope, receive: Receive) -> None:
        self._bodies, self._scope, self._receive = bodies, scope, receive
        self.held_bytes = 0

    async def received(self) -> Receive:
        """The body in one piece; a later message means the client has left."""
        length, seconds = header(self._scope, b"content-length"), self._bodies.seconds
        if length.isdigit() and int(length) > self._bodies.most_bytes:
            raise too_large(int(length), self._bodies.most_bytes)
        decoder = BodyDecoder(header(self._scope, b"content-encoding"), self._bodies.most_bytes)
        try:
            async with asyncio.timeout(seconds):
                return Body(await self._read(decoder), self._receive)
        except TimeoutError:
            raise ApiError(408, f"the body was not here after {seconds:g} s: send it faster", "body_timeout") from None

    async def _read(self, decoder: BodyDecoder) -> bytes:
        pieces, is_over = [], False
        while not is_over:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ApiError(400, "the connection was closed before the end of the body", "body_incomplete")
            pieces.append(decoder.feed(message.get("body", b"")))
            is_over = not message.get("more_body", False)
            self._bodies.hold(len(pieces[-1]))
            self.held_bytes += len(pieces[-1])
        decoder.finish()
        return b"".join(pieces)


class Body:
    """Passes a body on, then what follows it."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
