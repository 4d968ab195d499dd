"""A connection between two engines that know the same secret: frames, each authenticated with the connection's key.

    server ▶ QUIREPEER1, its nonce          client ▶ its nonce, proof          server ▶ proof
    frame    head length 4 │ data length 8 │ head (JSON) │ data │ HMAC-SHA-256

The HMAC of a frame covers its direction, its number and all of its bytes: a frame that was cut, altered, repeated or
sent by a third party ends the connection. Nothing is encrypted. All failures are `TierFailed`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from quire.core.connector import TierFailed

MAGIC = b"QUIREPEER1"
NONCE_BYTES = PROOF_BYTES = 32
MOST_HEAD_BYTES = 64 << 10
CLIENT, SERVER = b"client", b"server"
_LENGTHS = struct.Struct("<IQ")

Head = dict[str, Any]


class Gone(TierFailed):
    """The other side has closed the connection, or its process has ended."""


class Wire:
    def __init__(self, sock: socket.socket, key: bytes, own: bytes, seconds: float) -> None:
        """`seconds`: the time limit for one whole frame, however slowly its bytes arrive."""
        self.socket, self.seconds = sock, seconds
        self._key, self._own, self._other = key, own, SERVER if own == CLIENT else CLIENT
        self._sent = self._received = 0

    def send(self, head: Head, data: bytes | memoryview = b"") -> None:
        packed = json.dumps(head).encode()
        begin = _LENGTHS.pack(len(packed), len(data)) + packed
        proof = self._proof(self._own, self._sent, begin, data)
        self._sent += 1
        send(self.socket, (begin, data, proof), self.seconds)

    def receive(self, most_bytes: int = 0, seconds: float | None = None) -> tuple[Head, memoryview]:
        """`most_bytes`: the most data that is valid here; more is refused before it is read."""
        end = time.monotonic() + (self.seconds if seconds is None else seconds)
        lengths = receive(self.socket, _LENGTHS.size, end)
        head_bytes, data_bytes = _LENGTHS.unpack(lengths)
        if head_bytes > MOST_HEAD_BYTES or data_bytes > most_bytes:
            raise TierFailed(f"a frame of {head_bytes:,} + {data_bytes:,} bytes where {most_bytes:,} were expected")
        head, data = receive(self.socket, head_bytes, end), receive(self.socket, data_bytes, end)
        proof = self._proof(self._other, self._received, bytes(lengths) + bytes(head), data)
        if not hmac.compare_digest(proof, receive(self.socket, PROOF_BYTES, end)):
            raise TierFailed("a frame is not what the other side sent")
        self._received += 1
        return _decoded(head), data

    def has_news(self) -> bool:
        """Whether a frame, or the end of the connection, can be received now."""
        watcher = select.poll()
        watcher.register(self.socket, select.POLLIN)
        return bool(watcher.poll(0))

    def _proof(self, direction: bytes, number: int, begin: bytes, data: bytes | memoryview) -> bytes:
        proof = hmac.new(self._key, direction + number.to_bytes(8, "little") + begin, hashlib.sha256)
        proof.update(data)
        return proof.digest()


def _decoded(head: memoryview) -> Head:
    try:
        decoded = json.loads(bytes(head))
    except ValueError:
        decoded = None
    if not isinstance(decoded, dict):
        raise TierFailed("a frame's head is no JSON object")
    return decoded


# ── who is there ──────────────────────────────────────────────────────────


def greet(sock: socket.socket, secret: bytes, seconds: float) -> Wire:
    """The client's side: both prove that they know the secret."""
    end = time.monotonic() + seconds
    greeting = receive(sock, len(MAGIC) + NONCE_BYTES, end)
    if bytes(greeting[: len(MAGIC)]) != MAGIC:
        raise TierFailed("whoever listens there is no peer")
    theirs, own = bytes(greeting[len(MAGIC) :]), os.urandom(NONCE_BYTES)
    send(sock, (own, _answer(secret, CLIENT, theirs, own)), seconds)
    if not hmac.compare_digest(receive(sock, PROOF_BYTES, end), _answer(secret, SERVER, theirs, own)):
        raise TierFailed("the other side does not know the secret: give both the same --peer-secret")
    return Wire(sock, _answer(secret, b"frames", theirs, own), CLIENT, seconds)


def welcome(sock: socket.socket, secret: bytes, seconds: float, frame_seconds: float) -> Wire:
    """The server's side, within `seconds`; a client without the secret learns only that."""
    end, own = time.monotonic() + seconds, os.urandom(NONCE_BYTES)
    send(sock, (MAGIC, own), seconds)
    answer = receive(sock, NONCE_BYTES + PROOF_BYTES, end)
    theirs, proof = bytes(answer[:NONCE_BYTES]), answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _answer(secret, CLIENT, own, theirs)):
        send(sock, (bytes(PROOF_BYTES),), seconds)
        raise TierFailed("somebody called who does not know the secret")
    send(sock, (_answer(secret, SERVER, own, theirs),), seconds)
    return Wire(sock, _answer(secret, b"frames", own, theirs), SERVER, frame_seconds)


def _answer(secret: bytes, purpose: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    return hmac.new(secret, MAGIC + purpose + b":" + server_nonce + client_nonce, hashlib.sha256).digest()


# ── bytes ─────────────────────────────────────────────────────────────────


def send(sock: socket.socket, parts: Sequence[bytes | memoryview], seconds: float) -> None:
    end = time.monotonic() + seconds
    try:
        for part in parts:
            sock.settimeout(max(0.001, end - time.monotonic()))
            sock.sendall(part)
    except ConnectionError as error:
        raise Gone("the other side has gone") from error
    except (OSError, ValueError) as error:
        raise TierFailed(f"cannot send: {_words(error)}") from error


def receive(sock: socket.socket, size: int, end: float) -> memoryview:
    data = memoryview(bytearray(size))
    got = 0
    try:
        while got < size:
            sock.settimeout(max(0.001, end - time.monotonic()))
            count = sock.recv_into(data[got:])
            if not count:
                raise Gone("the other side has gone")
            got += count
    except ConnectionError as error:
        raise Gone("the other side has gone") from error
    except (OSError, ValueError) as error:
        raise TierFailed(f"cannot receive: {_words(error)}") from error
    return data


def hang_up(sock: socket.socket) -> None:
    """Wakes threads that wait on the socket; its owner closes it."""
    with contextlib.suppress(OSError):  # it was never connected, or the other side closed it first
        sock.shutdown(socket.SHUT_RDWR)


def _words(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
