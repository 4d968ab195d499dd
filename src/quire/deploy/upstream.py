"""The gateway's side of the replicas: HTTP as it came, a connection for each call.

Connections are not used again: a call with a body must not meet one that its replica is just closing. Probes of the
kernel notice a machine that has vanished, while an answer may keep silent for as long as its request waits.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from quire.deploy.members import Replica
from quire.explain.room import Room

Json = dict[str, Any]
Headers = list[tuple[bytes, bytes]]
CONNECT_SECONDS = 5.0
ASK_SECONDS = 2.0
"""For a question about a prompt. A replica that takes longer is busy, and is chosen only if none answers."""
PROBE_AFTER_SECONDS, PROBE_EVERY_SECONDS, PROBES = 5, 5, 3
HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
)
REPLACED = frozenset((b"content-length", b"content-encoding", b"expect"))
"""Of a call: its body is sent decompressed and in one piece."""
OWN = frozenset((b"date", b"server", b"x-request-id"))
"""Of an answer: the server in front writes them."""


class Unreachable(Exception):
    """No connection: the replica has not seen the call."""


class Broken(Exception):
    """The connection ended before the answer did."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A call as it came, its body whole."""

    method: str
    target: str
    """Path and query, as they were encoded."""
    headers: Headers
    body: bytes


class Answer:
    """Status and headers of an answer; its body is read once."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response, self.status = response, response.status
        self.headers: Headers = [
            (name.lower(), value)
            for name, value in response.raw_headers
            if name.lower() not in HOP_BY_HOP and name.lower() not in OWN
        ]

    @property
    def is_stream(self) -> bool:
        return self._response.content_type == "text/event-stream"

    async def pieces(self) -> AsyncIterator[bytes]:
        """As they arrive."""
        try:
            async for piece in self._response.content.iter_any():
                yield piece
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Broken(str(error)) from None

    async def whole(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])


class Upstream:
    """Made inside the event loop that uses it."""

    def __init__(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_probed_socket)
        seconds = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        jar = aiohttp.DummyCookieJar()
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=seconds, cookie_jar=jar, auto_decompress=False, requote_redirect_url=False
        )

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def calling(self, replica: Replica, call: Outgoing) -> AsyncIterator[Answer]:
        """The connection is closed at the end, and with it a call that is still in progress."""
        url = URL(replica.address + call.target, encoded=True)
        try:
            response = await self._session.request(
                call.method,
                url,
                headers=_sent(call.headers),
                data=call.body or None,
                allow_redirects=False,
                skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(str(error)) from None
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Broken(str(error)) from None
        try:
            yield Answer(response)
        finally:
            response.close()

    async def room(self, replica: Replica, question: bytes, headers: Headers) -> Room | None:
        """What would happen to a request with this prompt there; None: the replica does not say."""
        call = Outgoing("POST", "/v1/room", headers, question)
        try:
            async with asyncio.timeout(ASK_SECONDS), self.calling(replica, call) as answer:
                content = await answer.whole()
                return room_of(json.loads(content)) if answer.status == 200 else None
        except (TimeoutError, Unreachable, Broken):
            return None

    async def has(self, replica: Replica, path: str, headers: Headers) -> bool:
        try:
            async with (
                asyncio.timeout(ASK_SECONDS),
                self.calling(replica, Outgoing("GET", path, headers, b"")) as answer,
            ):
                return answer.status == 200
        except (TimeoutError, Unreachable, Broken):
            return False


def room_of(document: Mapping[str, Any]) -> Room:
    """As /v1/room writes it."""
    fields = {name: value for name, value in document.items() if name not in ("object", "queue_full", "reused_tokens")}
    return Room(is_queue_full=document["queue_full"], **fields)


def _sent(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if name not in HOP_BY_HOP and name not in REPLACED
    ]


def _probed_socket(address: Any) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", PROBE_AFTER_SECONDS),
        ("TCP_KEEPINTVL", PROBE_EVERY_SECONDS),
        ("TCP_KEEPCNT", PROBES),
    ):
        if hasattr(socket, name):  # Linux
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
