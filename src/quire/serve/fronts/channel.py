"""Messages between two processes over a socket pair: notices, and questions with answers.

    frame = 4 bytes of length │ a pickled value

All of it happens in the event loop, in the order in which it was sent. The two sides differ in one point: a front
waits until the kernel has its message, so that a message is on its way before the front does anything after it. The hub
never waits: for a front that does not read, messages pile up to a limit, beyond which the front is given up.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import select
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

LENGTH = struct.Struct("<I")
READ_BYTES = 1 << 18
MOST_WAITING_BYTES = 256 << 20
"""Of messages for a front that does not read."""


class ChannelLost(ConnectionError):
    """The other process has ended, or does not read."""


@dataclass(frozen=True, slots=True)
class _Question:
    number: int
    value: object


@dataclass(frozen=True, slots=True)
class _Answer:
    number: int
    value: object
    error: Exception | None = None


async def _no_questions(question: object) -> object:
    raise AssertionError(f"there is no handler for {question!r}")


class Channel:
    def __init__(self, pipe: socket.socket, *, waits: bool) -> None:
        """`waits`: sending waits until the kernel has all of it."""
        pipe.setblocking(False)
        self._pipe, self._waits = pipe, waits
        self.on_notice: Callable[[Any], None] = lambda _message: None
        self.on_question: Callable[[Any], Awaitable[object]] = _no_questions
        self.on_lost: Callable[[], None] = lambda: None
        self._arrived = bytearray()
        self._unsent = bytearray()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._answering: set[asyncio.Task[None]] = set()
        self._is_lost = False

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
        for question in self._asked.values():
            if not question.done():
                question.set_exception(ChannelLost("the other process has ended"))
        self._asked.clear()

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
        if len(self._unsent) > MOST_WAITING_BYTES:
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

    async def ask(self, question: object) -> Any:
        """The answer. An exception that the other side raises is raised here."""
        if self._is_lost:
            raise ChannelLost("the other process has ended")
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self.send(_Question(number, question))
            return await answer
        finally:
            self._asked.pop(number, None)

    # ── receiving ─────────────────────────────────────────────────────────

    def read(self) -> None:
        """Handles all that has arrived. Also called before it is awaited, by those who must not miss anything."""
        try:
            while not self._is_lost:
                piece = self._pipe.recv(READ_BYTES)
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
            self._take(message)

    def _take(self, message: object) -> None:
        if isinstance(message, _Question):
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif isinstance(message, _Answer):
            asked = self._asked.get(message.number)
            if asked is not None and not asked.done():
                asked.set_exception(message.error) if message.error else asked.set_result(message.value)
        else:
            self.on_notice(message)

    async def _answer(self, question: _Question) -> None:
        try:
            answer = _Answer(question.number, await self.on_question(question.value))
        except Exception as error:
            answer = _Answer(question.number, None, error)
        self.send(answer)

    def _lose(self) -> None:
        if not self._is_lost:
            self.close()
            self.on_lost()


def receive_first(pipe: socket.socket) -> Any:
    """Waits for the first message; before there is an event loop."""
    (size,) = LENGTH.unpack(_exactly(pipe, LENGTH.size))
    return pickle.loads(_exactly(pipe, size))


def _exactly(pipe: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = pipe.recv(size - len(received))
        if not piece:
            raise ChannelLost("the other process has ended")
        received += piece
    return received
