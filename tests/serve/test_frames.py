"""The engine's pipe: messages as `multiprocessing` writes them, and an event loop that never waits for the engine."""

from __future__ import annotations

import asyncio
import pickle
import socket
import threading
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from quire.core.request import Request, Retain
from quire.core.sampling import Grammar, GrammarSort, Sampling
from quire.serve.frames import FramePipe
from quire.serve.messages import Submit

LARGE = b"x" * (3 << 20)
"""More than a socket buffers."""


def test_an_engine_that_does_not_read_gets_everything_later_and_then_the_end() -> None:
    async def work() -> list[Any]:
        ours, theirs = socket.socketpair()
        pipe, engine = FramePipe(ours), Connection(theirs.detach())
        lost: list[str] = []
        pipe.on_lost = lambda: lost.append("lost")
        pipe.open()
        for message in (LARGE, "small", LARGE):
            pipe.send(message)
        pipe.end()
        got = [await asyncio.to_thread(engine.recv) for _ in range(3)]
        await asyncio.to_thread(engine.poll, 20)
        try:
            engine.recv()
        except EOFError:
            got.append("end")
        engine.close()
        assert not lost, "we have ended it ourselves"
        return got

    assert asyncio.run(asyncio.wait_for(work(), 60)) == [LARGE, "small", LARGE, "end"]


def test_messages_are_handled_in_order_and_a_bug_in_one_does_not_cost_the_next() -> None:
    async def work() -> tuple[list[Any], list[str]]:
        ours, theirs = socket.socketpair()
        pipe, engine, got, bugs = FramePipe(ours), Connection(theirs.detach()), [], []
        over = asyncio.Event()

        def handle(message: Any) -> None:
            if message == "bug":
                raise KeyError("a bug")
            got.append(message)

        asyncio.get_running_loop().set_exception_handler(lambda _loop, how: bugs.append(repr(how["exception"])))
        pipe.on_notice, pipe.on_lost = handle, over.set
        pipe.open()

        def say() -> None:
            for message in (1, "bug", LARGE, 2):
                engine.send(message)
            engine.close()

        saying = threading.Thread(target=say)
        saying.start()
        await over.wait()
        saying.join()
        return got, bugs

    assert asyncio.run(asyncio.wait_for(work(), 60)) == ([1, LARGE, 2], ["KeyError('a bug')"])


def test_requests_are_the_same_after_they_were_sent() -> None:
    sampling = Sampling(0.7, 0.9, seed=3, stop=("a",), logit_bias=((1, 2.0),), grammar=Grammar(GrammarSort.REGEX, "a+"))
    request = Request(
        "r", np.array([1, 2], np.int32), 7, 3, (5,), "scope", "tenant", 2.0, sampling, None, "id", Retain(60.0, "s", 5)
    )
    sent = pickle.loads(pickle.dumps(Submit((request, Request("q", np.array([9], np.int32), 1)), front=2)))
    assert sent.front == 2
    for ours, theirs in zip((request, Request("q", np.array([9], np.int32), 1)), sent.requests, strict=True):
        assert theirs.prompt.tolist() == ours.prompt.tolist()
        assert theirs.prompt.flags.writeable
        names = [name for name in Request.__slots__ if name != "prompt"]
        assert [getattr(theirs, name) for name in names] == [getattr(ours, name) for name in names]
