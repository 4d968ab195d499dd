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
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from quire.serve.frames import LENGTH, FramePipe

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


class Channel(FramePipe):
    def __init__(self, pipe: socket.socket, *, waits: bool) -> None:
        """`waits`: sending waits until the kernel has all of it."""
        super().__init__(pipe, waits=waits, most_waiting_bytes=MOST_WAITING_BYTES)
        self.on_question: Callable[[Any], Awaitable[object]] = _no_questions
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._answering: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        super().close()
        for question in self._asked.values():
            if not question.done():
                question.set_exception(ChannelLost("the other process has ended"))
        self._asked.clear()

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
            super()._take(message)

    async def _answer(self, question: _Question) -> None:
        try:
            answer = _Answer(question.number, await self.on_question(question.value))
        except Exception as error:
            answer = _Answer(question.number, None, error)
        self.send(answer)


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
