"""Messages over a socket pair, sent and received in the event loop: no thread waits for either.

    frame = 4 bytes of length │ a pickled value, as `multiprocessing.connection` has it

What the kernel does not take at once waits here and is sent when the other process has read some.
"""

from __future__ import annotations

import asyncio
import math
import pickle
import select
import socket
import struct
from collections.abc import Callable
from typing import Any

LENGTH = struct.Struct("!i")
READ_BYTES = 1 << 18


class FramePipe:
    def __init__(self, pipe: socket.socket, *, waits: bool = False, most_waiting_bytes: float = math.inf) -> None:
        """`waits`: sending waits until the kernel has all of it. `most_waiting_bytes`: of messages for a process that
        does not read; with more than this, it is lost."""
        pipe.setblocking(False)
        self._pipe, self._waits, self._most_waiting_bytes = pipe, waits, most_waiting_bytes
        self.on_notice: Callable[[Any], None] = lambda _message: None
        self.on_lost: Callable[[], None] = lambda: None
        """The other process has ended, or does not read."""
        self._arrived = bytearray()
        self._unsent = bytearray()
        self._is_lost = self._is_ending = False

    def open(self) -> None:
        asyncio.get_running_loop().add_reader(self._pipe, self.read)

    def close(self) -> None:
        """Without `on_lost`. Nothing is sent or received any more."""
        if self._is_lost:
            return
        self._is_lost = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pipe)
        loop.remove_writer(self._pipe)
        self._pipe.close()

    def end(self) -> None:
        """Closes as soon as all is sent. Nothing is received any more."""
        self._is_ending = True
        if not self._unsent:
            self.close()

    # ── sending ───────────────────────────────────────────────────────────

    def send(self, message: object) -> None:
        self.send_pickled(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_pickled(self, message: bytes) -> None:
        if self._is_lost:
            return
        frame = LENGTH.pack(len(message)) + message
        try:
            sent = 0 if self._unsent else self._sent(memoryview(frame))
        except OSError:
            return  # reading notices as well
        if sent < len(frame):
            self._keep(frame[sent:])

    def _sent(self, frame: memoryview) -> int:
        """How many bytes the kernel took."""
        sent = 0
        while sent < len(frame):
            try:
                sent += self._pipe.send(frame[sent:])
            except BlockingIOError:
                if not self._waits:
                    break
                waiting = select.poll()
                waiting.register(self._pipe, select.POLLOUT)
                waiting.poll()
        return sent

    def _keep(self, rest: bytes) -> None:
        if not self._unsent:
            asyncio.get_running_loop().add_writer(self._pipe, self._send_more)
        self._unsent += rest
        if len(self._unsent) > self._most_waiting_bytes:
            self._lose()

    def _send_more(self) -> None:
        try:
            del self._unsent[: self._pipe.send(memoryview(self._unsent)[:READ_BYTES])]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()  # reading notices as well
        if not self._unsent:
            asyncio.get_running_loop().remove_writer(self._pipe)
            if self._is_ending:
                self.close()

    # ── receiving ─────────────────────────────────────────────────────────

    def read(self) -> None:
        """Handles all that has arrived. Also called before it is awaited, by those who must not miss anything."""
        try:
            is_more = True
            while is_more and not self._is_lost:
                piece = self._pipe.recv(READ_BYTES)
                is_more = len(piece) == READ_BYTES
                if not piece:
                    self._lose()
                self._arrived += piece
                self._take_frames()
        except BlockingIOError:
            return
        except OSError:
            self._lose()

    def _take_frames(self) -> None:
        begin, arrived = 0, self._arrived
        frames = []
        while len(arrived) - begin >= LENGTH.size:
            (size,) = LENGTH.unpack_from(arrived, begin)
            if len(arrived) - begin < LENGTH.size + size:
                break
            begin += LENGTH.size + size
            frames.append(pickle.loads(memoryview(arrived)[begin - size : begin]))
        del arrived[:begin]
        for message in frames:
            self._take_safely(message)

    def _take_safely(self, message: object) -> None:
        """A bug in what handles one message must not cost those after it."""
        try:
            self._take(message)
        except Exception as error:
            context = {"message": "a message could not be handled:", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def _take(self, message: object) -> None:
        self.on_notice(message)

    def _lose(self) -> None:
        if not self._is_lost:
            self.close()
            self.on_lost()
