"""Limits of connections: how many there are, what they may send, and the time for a head, for a body that is not read
any more, and for reading an answer.

    bytes ──▶ httptools, which refuses what two readers could understand differently: both lengths of a body, bare line
              feeds, folded headers ──▶ the limits here ──▶ a call of the application

httptools parses in C. A parser in Python takes long for a body of one-byte chunks, and all clients wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MOST_PIPELINED = 16
"""Calls that a client may send before it has the answer to the first."""
MOST_PIECES, LEAST_PIECE_BYTES = 4096, 64
"""A body in more pieces than this must have this many bytes in each, on average."""
ONE_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\nretry-after: 1\r\n\r\n"
BODY_WRITER = "body_writer"
"""In the state of a call's scope: its `BodyWriter`."""
OFFERS = (b"connection", b"upgrade", b"http2-settings")
"""Headers that offer another protocol."""


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


class BodyWriter:
    """Writes pieces of one answer's body straight to its connection. The layers between an application and the
    connection have work to do at the head and the end of an answer, which are sent through them."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._flow, self._write = cycle, cycle.flow, cycle.transport.write

    @property
    def is_open(self) -> bool:
        """Whether a piece can be written now: the body has begun and not ended, and its client reads it."""
        cycle = self._cycle
        has_begun = cycle.response_started and cycle.chunked_encoding and not cycle.response_complete
        return bool(has_begun) and not (self._flow.write_paused or cycle.disconnected)

    def write(self, piece: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(piece), piece))


class Refused(Exception):
    """What a client sends is not valid, or too much. Raised while the parser runs, it ends the connection with 400."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's, with limits for each connection; see `protocol`."""

    head_seconds: float
    head_bytes: int
    unread_seconds: float
    most_connections: int

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._cycles: list[RequestResponseCycle] = []
        """Calls without a complete answer. The first one runs, the others are pipelined."""
        self._is_head, self._head_bytes, self._header_bytes = True, 0, 0
        """Of an incomplete head: bytes that arrived, and bytes of its complete headers."""
        self._pieces, self._piece_bytes = 0, 0

    # ── the connection ────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """One too many is closed at once. uvicorn's own bound refuses calls, and leaves idle connections open."""
        super().connection_made(transport)
        self._late = _Alarm(self.head_seconds, transport.close)
        self._unread = _Alarm(self.unread_seconds, transport.abort)
        self._late.set()
        if len(self.connections) > self.most_connections:
            self.logger.warning("there are %s connections already: one more was closed", self.most_connections)
            transport.write(ONE_TOO_MANY)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends pipelined calls too."""
        self._late.stop()
        self._unread.stop()
        for cycle in self._unanswered():
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More bytes wait to be read than a connection may buffer."""
        super().pause_writing()
        self._unread.set()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.stop()

    # ── bytes that arrive ─────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        was_head = self._is_head
        try:
            self._parse(data)
            if was_head and self._is_head:
                self._head_bytes += len(data)
                self._check_size(self._head_bytes)
        except (httptools.HttpParserError, Refused) as error:
            refusal = error if isinstance(error, Refused) else error.__context__
            why = str(refusal) if isinstance(refusal, Refused) else "this is not valid HTTP/1.1"
            self.logger.warning("a connection was closed: %s", why)
            self.send_400_response(why)
        else:
            self._watch()

    def _parse(self, data: bytes) -> None:
        """A client that offers to go on in another protocol is answered in this one. The parser would leave its body
        unread, so it starts anew without the offer."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self.parser = httptools.HttpRequestParser(self)
            self._parse(self._head_without_offer() + data[offer.args[0] :])

    def _head_without_offer(self) -> bytes:
        lines = [b"%b %b HTTP/1.1" % (self.scope["method"].encode(), self.url)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] not in OFFERS]
        return b"\r\n".join((*lines, b"", b""))

    def _watch(self) -> None:
        """The time for a head runs from its first byte. A client that already has its answer and still sends a body has
        the same time to finish it."""
        if self._is_head or self.cycle.response_complete:
            self._late.set()
        else:
            self._late.stop()

    def _check_size(self, size: int) -> None:
        if size > self.head_bytes:
            raise Refused(f"the head has more than {self.head_bytes:,} bytes")

    def _unanswered(self) -> list[RequestResponseCycle]:
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
        return self._cycles

    def send_400_response(self, msg: str) -> None:
        """Not into the middle of another answer."""
        if any(cycle.response_started for cycle in self._unanswered()):
            self.transport.abort()
        else:
            super().send_400_response(msg)

    # ── what the parser finds ─────────────────────────────────────────────

    def on_message_begin(self) -> None:
        self._is_head, self._head_bytes, self._header_bytes = True, 0, 0
        self._pieces, self._piece_bytes = 0, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        self._check_size(self._header_bytes)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        _check_head(self.parser.get_method(), self.parser.get_http_version(), self.headers)
        if len(self._unanswered()) > MOST_PIPELINED:
            raise Refused(f"more than {MOST_PIPELINED} calls wait for their answers")
        if self.parser.should_upgrade():
            self.scope["method"] = self.parser.get_method().decode()
            return
        super().on_headers_complete()
        self._is_head = False
        self._cycles.append(self.cycle)
        self.scope["state"][BODY_WRITER] = BodyWriter(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._pieces, self._piece_bytes = self._pieces + 1, self._piece_bytes + len(body)
        if self._pieces > MOST_PIECES and self._piece_bytes < LEAST_PIECE_BYTES * self._pieces:
            raise Refused("the body comes in too small pieces")
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()


def _check_head(method: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> None:
    """What the parser lets pass."""
    names = [name for name, _ in headers]
    if method == b"CONNECT":
        raise Refused("this is no proxy")
    if names.count(b"host") > 1 or (version == "1.1" and b"host" not in names):
        raise Refused("one Host is needed")
    if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in headers):
        raise Refused("Transfer-Encoding can be chunked alone")
    if version != "1.1" and b"transfer-encoding" in names:
        raise Refused("Transfer-Encoding needs HTTP/1.1")


def protocol(head_seconds: float, head_bytes: int, unread_seconds: float, connections: int) -> type[LimitedProtocol]:
    limits = {"head_seconds": head_seconds, "head_bytes": head_bytes, "unread_seconds": unread_seconds}
    return type("Protocol", (LimitedProtocol,), {**limits, "most_connections": connections})
