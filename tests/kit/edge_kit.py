"""Calls of the edge and of its protocol without a server: what they read, send and close is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from quire.serve.edge import Edge
from quire.serve.keys import KeyRing
from quire.serve.protocol import LimitedProtocol, protocol
from quire.serve.settings import ServeSettings

MOST_CONNECTIONS = 8


class NoMetrics:
    """Counts nothing."""

    refused = disconnects = property(lambda self: self)

    def labels(self, *_labels: str) -> NoMetrics:
        return self

    def inc(self) -> None: ...

    def note_response(self, *_figures: object) -> None: ...


@dataclass
class Call:
    """One call of the edge: the pieces of its body, and what became of it."""

    method: str = "GET"
    path: str = "/v1/models"
    headers: dict[str, str] = field(default_factory=dict)
    pieces: Sequence[bytes] = ()
    received: int = 0
    """Messages that were asked for."""
    sent: list[dict[str, Any]] = field(default_factory=list)
    body: bytes | None = None
    """As the application got it; None: the call did not get that far."""

    async def receive(self) -> dict[str, Any]:
        self.received += 1
        if self.received > len(self.pieces):
            return {"type": "http.disconnect"}
        more = self.received < len(self.pieces)
        return {"type": "http.request", "body": self.pieces[self.received - 1], "more_body": more}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def make(self, edge: Edge) -> None:
        headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        scope = {"type": "http", "method": self.method, "path": self.path, "headers": headers, "call": self}
        await edge(scope, self.receive, self.send)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    def header(self, name: str) -> str | None:
        return next((value.decode() for key, value in self.sent[0]["headers"] if key.decode() == name), None)

    @property
    def answer(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])


async def _application(scope: Any, receive: Any, send: Any) -> None:
    scope["call"].body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"fine", "more_body": False})


def edge(keys: Path | None = None, app: Any = _application, **settings: Any) -> Edge:
    return Edge(app, ServeSettings(keys=keys, **settings), KeyRing(keys), NoMetrics())  # type: ignore[arg-type]


class Wire(asyncio.Transport):
    """Remembers what was written to it, and whether it is read and closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.is_closed, self.is_paused = b"", False, False

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


def connected(app: Any, head_bytes: int = 32_768, state: ServerState | None = None) -> tuple[LimitedProtocol, Wire]:
    """A connection to this application, with long times."""
    configuration = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", interface="asgi3")
    wire = Wire()
    connection = protocol(60, head_bytes, 60, MOST_CONNECTIONS)(configuration, state or ServerState(), {})
    connection.connection_made(wire)
    return connection, wire
