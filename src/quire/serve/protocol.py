"""Limits of connections: how many there are, and the time for a head, for a body that is not read any more, and for
reading an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class _Alarm:
    """Calls an action unless it is stopped in time. Setting it again while it runs changes nothing."""

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        self._seconds, self._action = seconds, action
        self._timer: asyncio.TimerHandle | None = None

    def set(self) -> None:
        self._timer = self._timer or asyncio.get_running_loop().call_later(self._seconds, self._action)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


ONE_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\nretry-after: 1\r\n\r\n"


def protocol(head_seconds: float, unread_seconds: float, connections: int) -> type[H11Protocol]:
    """uvicorn's, with these limits for each connection. One more than `connections` is closed at once: uvicorn's own
    bound refuses calls, and leaves idle connections open."""

    class Protocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._late = _Alarm(head_seconds, transport.close)
            self._unread = _Alarm(unread_seconds, transport.abort)
            self._late.set()
            if len(self.connections) > connections:
                self.logger.warning("there are %s connections already: one more was closed", connections)
                transport.write(ONE_TOO_MANY)
                transport.close()

        def handle_events(self) -> None:
            """Called whenever bytes arrive. The time for a head runs from its first byte. A client that already has its
            answer and still sends a body has the same time to finish it."""
            super().handle_events()
            theirs, ours = self.conn.their_state, self.conn.our_state
            is_for_nobody = theirs is h11.SEND_BODY and ours in (h11.DONE, h11.MUST_CLOSE)
            if is_for_nobody or (theirs is h11.IDLE and self.conn.trailing_data[0]):
                self._late.set()
            elif theirs is not h11.IDLE:
                self._late.stop()

        def pause_writing(self) -> None:
            """More bytes wait to be read than a connection may buffer."""
            super().pause_writing()
            self._unread.set()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._unread.stop()

        def connection_lost(self, exc: Exception | None) -> None:
            self._late.stop()
            self._unread.stop()
            super().connection_lost(exc)

    return Protocol
