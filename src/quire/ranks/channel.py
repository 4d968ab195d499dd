"""Messages between rank 0 and another rank, over a socket: at the start JSON, then steps.

kind │ length │ data          kind: J a JSON object, S a step, D a step is done (its number), R an order about a record
                             and its answer (JSON objects), E the end
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

_HEAD = struct.Struct("<cI")
_NUMBER = struct.Struct("<q")
_RECEIVE_BYTES = 1 << 18
Json = dict[str, Any]


class Kind(Enum):
    JSON = b"J"
    STEP = b"S"
    DONE = b"D"
    RECORD = b"R"
    END = b"E"
    """The group ends on purpose: nobody died."""


class Message(NamedTuple):
    kind: Kind
    data: bytes

    def json(self) -> Json:
        found: Json = json.loads(self.data)
        return found

    def number(self) -> int:
        return int(_NUMBER.unpack(self.data)[0])


class Channel:
    """One end. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._received = connection, bytearray()
        self._sending = threading.Lock()
        connection.setblocking(True)
        with contextlib.suppress(OSError):  # of the local kind, which sends at once anyway
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: Kind, data: bytes = b"") -> None:
        """Raises OSError if the other end is gone."""
        with self._sending:
            self._socket.sendall(_HEAD.pack(kind.value, len(data)) + data)

    def send_json(self, value: Json, kind: Kind = Kind.JSON) -> None:
        self.send(kind, json.dumps(value).encode())

    def send_done(self, number: int) -> None:
        self.send(Kind.DONE, _NUMBER.pack(number))

    @property
    def waiting_bytes(self) -> int:
        """Of a message that is not complete, as far as it has arrived."""
        return len(self._received)

    def receive(self) -> Iterator[Message]:
        """Waits for bytes, and yields the messages that are complete. Raises EOFError if the other end is gone."""
        self._fill()
        while (message := self._next()) is not None:
            yield message

    def receive_one(self) -> Message:
        """Waits for the next message. Raises EOFError if the other end is gone, or silent for the socket's time."""
        while True:
            if (message := self._next()) is not None:
                return message
            self._fill()

    def _fill(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError:
            data = b""
        if not data:
            raise EOFError
        self._received += data

    def _next(self) -> Message | None:
        if len(self._received) < _HEAD.size:
            return None
        kind, size = _HEAD.unpack_from(self._received)
        end = _HEAD.size + size
        if len(self._received) < end:
            return None
        data = bytes(self._received[_HEAD.size : end])
        del self._received[:end]
        return Message(Kind(kind), data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that sends or receives
        self._socket.close()


class Inbox:
    """What a follower receives, read by a thread of its own: when rank 0 is gone, so is the process, whatever its other
    threads wait for."""

    def __init__(self, channel: Channel, end: Callable[[int], None] = os._exit) -> None:
        self._channel, self._end = channel, end
        self._messages: queue.Queue[Message] = queue.Queue()
        threading.Thread(target=self._read, name="rank-inbox", daemon=True).start()

    def take(self, seconds: float | None = None) -> Message | None:
        """The next message; None: none came within this time."""
        try:
            return self._messages.get(timeout=seconds)
        except queue.Empty:
            return None

    def _read(self) -> None:
        try:
            while True:
                for message in self._channel.receive():
                    if message.kind is Kind.END:
                        self._end(0)
                    self._messages.put(message)
        except EOFError:
            self._end(LOST_RANK_0)


LOST_RANK_0 = 75
"""Exit code of a rank whose rank 0 is gone without having said so."""
