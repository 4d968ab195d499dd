"""What a connection may send: heads with one meaning, bodies in pieces worth reading, a few calls at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edge_kit import Wire, connected
from quire.serve.protocol import LEAST_PIECE_BYTES, MOST_PIECES, MOST_PIPELINED

HEAD = "POST /a HTTP/1.1\r\nhost: x\r\n"
CHUNKED = f"{HEAD}transfer-encoding: chunked\r\n\r\n"


class Echo:
    """Answers with the body of each call, once it is complete."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            self.messages.append(message)
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if not message["more_body"]:
                break
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def answered(*data: str, app: Any = None, head_bytes: int = 32_768) -> Wire:
    """What is written and closed when these bytes arrive, one after another."""

    async def talk() -> Wire:
        connection, wire = connected(app or Echo(), head_bytes)
        for each in data:
            if not wire.is_closed:
                connection.data_received(each.encode("latin-1"))
            for _ in range(20):
                await asyncio.sleep(0)
        is_closed = wire.is_closed
        connection.connection_lost(None)
        wire.is_closed = is_closed
        return wire

    return asyncio.run(talk())


@pytest.mark.story
@pytest.mark.parametrize(
    "head",
    [
        f"{HEAD}content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        f"{HEAD}transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n1\r\na\r\n0\r\n\r\n",
        f"{HEAD}content-length: 3\r\ncontent-length: 3\r\n\r\nabc",
        f"{HEAD}content-length: +3\r\n\r\nabc",
        f"{HEAD}transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        f"{HEAD}transfer-encoding: identity\r\n\r\n",
        "POST /a HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /a HTTP/1.1\nhost: x\n\n",
        "GET /a HTTP/1.1\r\nhost: x\ny: z\r\n\r\n",
        "GET /a HTTP/1.1\r\nhost: x\r\ny: a\r\n b\r\n\r\n",
        "GET /a HTTP/1.1\r\nhost: x\r\ny:\r\n b\r\n\r\n",
        "GET /a HTTP/1.1\r\nhost : x\r\n\r\n",
        "GET /a HTTP/1.1\r\n\r\n",
        "GET /a HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
        "G\x01T /a HTTP/1.1\r\nhost: x\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n",
        f"{CHUNKED}1\na\r\n0\r\n\r\n",
        f"{CHUNKED}1 \r\na\r\n0\r\n\r\n",
    ],
)
def test_what_two_readers_could_understand_differently_is_refused_and_the_connection_closed(head: str) -> None:
    """Else a proxy and this server may see different calls in the same bytes (RFC 9112, sections 2.2, 5.2 and 6.1)."""
    wire = answered(head)
    assert wire.written.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in wire.written
    assert wire.is_closed


def test_plain_calls_are_answered_on_one_connection() -> None:
    wire = answered(f"{HEAD}content-length: 3\r\n\r\nab", "c", f"{CHUNKED}2\r\nde\r\n0\r\n\r\n")
    assert wire.written.count(b"HTTP/1.1 200 OK") == 2
    assert b"\r\n\r\nabcHTTP" in wire.written
    assert wire.written.endswith(b"\r\n\r\nde")
    assert not wire.is_closed


@pytest.mark.story
def test_a_body_of_tiny_pieces_is_read_no_further_than_the_bound() -> None:
    """However many of them one read of the socket has: the work for each is done before anybody else is served."""

    async def attack() -> tuple[int, Wire]:
        connection, wire = connected(Echo())
        connection.data_received((CHUNKED + "1\r\na\r\n" * 40_000).encode())
        is_closed, pieces = wire.is_closed, connection._pieces
        connection.connection_lost(None)
        wire.is_closed = is_closed
        return pieces, wire

    pieces, wire = asyncio.run(attack())
    assert pieces == MOST_PIECES + 1
    assert wire.is_closed
    assert b"too small pieces" in wire.written


def test_a_long_body_of_pieces_that_are_large_enough_is_read() -> None:
    piece = f"{LEAST_PIECE_BYTES:x}\r\n{'a' * LEAST_PIECE_BYTES}\r\n"
    wire = answered(CHUNKED + piece * (MOST_PIECES + 10) + "0\r\n\r\n")
    assert wire.written.startswith(b"HTTP/1.1 200 ")
    assert wire.written.count(b"a" * LEAST_PIECE_BYTES) == MOST_PIECES + 10


@pytest.mark.story
def test_bytes_that_follow_a_refusal_are_not_taken() -> None:
    """The application answers before it has read the body and does not end its answer: reading stops."""

    async def refusing(_scope: Any, _receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b"no", "more_body": True})
        await asyncio.Event().wait()

    wire = answered(f"{HEAD}content-length: 4000000\r\n\r\n", *["a" * 60_000] * 2, app=refusing)
    assert wire.written.endswith(b"no")
    assert wire.is_paused


@pytest.mark.parametrize("data", [["GET /a HTTP/1.1\r\nx: ", *["y" * 400] * 4], [f"{HEAD}x: {'y' * 1100}\r\n\r\n"]])
def test_a_head_beyond_its_limit_is_refused_while_it_arrives(data: list[str]) -> None:
    wire = answered(*data, head_bytes=1000)
    assert wire.is_closed
    assert b"the head has more than 1,000 bytes" in wire.written


def test_a_client_that_offers_another_protocol_is_answered_in_this_one() -> None:
    """With its body: clients of Java's library offer HTTP/2 with each call."""
    offer = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    call = f"{HEAD}{offer}content-length: 3\r\n\r\n"
    wire = answered(f"{call}abc", call, "def")
    assert wire.written.count(b"HTTP/1.1 200 OK") == 2
    assert b"\r\n\r\nabcHTTP" in wire.written
    assert wire.written.endswith(b"\r\n\r\ndef")


def test_calls_that_are_sent_before_the_first_answer_are_few_and_answered_in_order() -> None:
    calls = [f"{HEAD}content-length: 1\r\n\r\n{i:x}" for i in range(MOST_PIPELINED)]
    wire = answered("".join(calls), *[""] * MOST_PIPELINED)
    assert [part[-1:] for part in wire.written.split(b"HTTP/1.1 200")[1:]] == [b"%x" % i for i in range(MOST_PIPELINED)]
    flood = answered("".join(calls) * 3)
    assert flood.is_closed
    assert flood.written.startswith(b"HTTP/1.1 400 ")


@pytest.mark.story
def test_a_client_that_leaves_ends_every_call_that_it_has_sent() -> None:
    """Also the one that runs while others are pipelined after it."""
    ended: list[str] = []

    async def streaming(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        ended.append((await receive())["type"])

    async def leave() -> None:
        connection, _ = connected(streaming)
        connection.data_received(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        connection.connection_lost(None)
        await asyncio.sleep(0.01)

    asyncio.run(leave())
    assert ended == ["http.disconnect"]


def test_nothing_is_written_into_the_middle_of_another_answer() -> None:
    async def slow(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
        await asyncio.Event().wait()

    wire = answered("GET /a HTTP/1.1\r\nhost: x\r\n\r\n", "no HTTP\r\n\r\n", app=slow)
    assert wire.is_closed
    assert b" 400 " not in wire.written
