"""Answers that take too long and clients that do not read them: both have an end, and give back what they held."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from uvicorn.server import ServerState

from quire.core.sampling import Sampling
from quire.serve.allowance import Allowances
from quire.serve.calls import Call
from quire.serve.errors import ApiError
from quire.serve.keys import EVERYBODY
from quire.serve.pending import PendingRequest
from quire.serve.protocol import protocol
from quire.text.question import Question
from quire.text.tokenizer import Tokenizer


class SilentEngine:
    """A client of an engine that never says anything."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def submit(self, requests: Any, updates: Any, _span: Any) -> list[PendingRequest]:
        return [PendingRequest(request, updates, number) for number, request in enumerate(requests)]

    def cancel(self, tickets: list[PendingRequest]) -> None:
        self.cancelled += [ticket.request.name for ticket in tickets]


def test_an_answer_that_takes_too_long_is_ended_with_504_and_gives_back_its_place(tiny_folder: Path) -> None:
    engine, allowances = SilentEngine(), Allowances(8)
    question = Question((np.arange(3, dtype=np.int32),), ("the",), (20,), Sampling(), 2)

    async def wait() -> None:
        call = Call(question, EVERYBODY, engine, allowances, Tokenizer.load(tiny_folder), seconds=0.05)  # type: ignore[arg-type]
        assert allowances.total == 2
        async for _ in call.deltas():
            pass

    with pytest.raises(ApiError, match=r"not complete after 0\.05 s") as ended:
        asyncio.run(asyncio.wait_for(wait(), 20))
    assert (ended.value.status, ended.value.code) == (504, "timeout")
    assert len(engine.cancelled) == 2
    assert allowances.total == 0


class Wire(asyncio.Transport):
    """Remembers how it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        self.closed.set_result("closed")

    def abort(self) -> None:
        self.closed.set_result("aborted")

    def is_closing(self) -> bool:
        return self.closed.done()


@pytest.mark.parametrize(("is_read", "end"), [(False, "aborted"), (True, "closed")])
def test_a_client_that_does_not_read_its_answer_is_cut_off(is_read: bool, end: str) -> None:
    """At once, for what it does not read can never be flushed. One that reads on stays: only its next head is late."""

    async def connect() -> str:
        configuration = uvicorn.Config(lambda: None, log_config=None)
        connection = protocol(0.5 if is_read else 60, 1024, 0.05, 8)(configuration, ServerState(), {})
        wire = Wire()
        connection.connection_made(wire)
        connection.pause_writing()
        if is_read:
            connection.resume_writing()
        return await asyncio.wait_for(wire.closed, 20)

    assert asyncio.run(connect()) == end
