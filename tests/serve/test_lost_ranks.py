"""An engine that loses a rank: what has started ends and says why, what waits is given to the next engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.core.request import Request
from quire.options.run import RunOptions
from quire.serve.away import EngineGone
from quire.serve.client import EngineClient
from quire.serve.mailbox import Mailbox
from quire.serve.messages import EngineSetup, EngineTick, RankLost, Ready, RequestUpdate, Submit
from quire.serve.pending import MOST_ENGINES, PendingRequest, Updates
from quire.serve.progress import Progress
from quire.serve.starting import Life

LOST = "rank 1 of 2 is lost: it was killed by SIGKILL"


class Pipe:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: object) -> None:
        self.sent.append(message)


class Process:
    pid = 1

    def poll(self) -> int:
        return -9


class Server:
    """The HTTP process's side, and one engine after another."""

    def __init__(self) -> None:
        setup = EngineSetup(Path(), {}, RunOptions())
        self.client = EngineClient(setup, Progress(30.0), lambda *_event, **_fields: None)
        self.start()

    def start(self) -> None:
        self.pipe = Pipe()
        self.life = Life(Process(), self.pipe, 0.0)  # type: ignore[arg-type]
        self.client._life = self.life
        self.client._receive(self.life, Ready(ranks=(2,)))

    def lose(self, why: str = LOST) -> None:
        if why:
            self.client._receive(self.life, RankLost(why))
        self.client._is_closing = False
        self.client._died(self.life, -9)
        for task in self.client._tasks:
            task.cancel()  # that starts the next engine: here `start` does

    def submitted(self) -> list[str]:
        return [one.name for message in self.pipe.sent if isinstance(message, Submit) for one in message.requests]


def ask(server: Server, *names: str) -> tuple[list[PendingRequest], Updates]:
    updates: Updates = Mailbox()
    requests = [Request(name, np.array([1, 2], dtype=np.int32), 4) for name in names]
    return server.client.submit(requests, updates), updates


def drill(work: Any) -> None:
    async def run() -> None:
        work(Server())

    asyncio.run(run())


def errors_of(updates: Updates) -> dict[str, str]:
    return {one.request.name: str(update) for one, update in updates._arrived if isinstance(update, EngineGone)}


def test_requests_that_no_engine_has_started_wait_for_the_next_one() -> None:
    """Those that have a row end with the rank's name; a client of the others notices a pause."""

    def work(server: Server) -> None:
        _, updates = ask(server, "runs", "waits", "leaves")
        server.client._note_tick(EngineTick(1, False, {}, (RequestUpdate("runs", hit_tokens=0),)))
        server.lose()
        found = errors_of(updates)
        assert found == {"runs": f"{LOST}; it is being started again: send the request once more"}
        assert set(server.client.tickets) == {"waits", "leaves"}
        server.client.abort(["leaves"])
        server.start()
        assert server.submitted() == ["waits"]
        server.client._note_tick(EngineTick(1, False, {"waits": (7,)}))
        assert server.client.tickets["waits"].output_tokens == 1

    drill(work)


def test_a_request_that_waits_is_given_to_few_engines() -> None:
    """It may be what ends them, before anything of its start is reported."""

    def work(server: Server) -> None:
        _, updates = ask(server, "fatal")
        for _ in range(MOST_ENGINES - 1):
            server.lose()
            assert not errors_of(updates)
            server.start()
            assert server.submitted() == ["fatal"]
        server.lose()
        assert list(errors_of(updates)) == ["fatal"]

    drill(work)


@pytest.mark.parametrize("why", ["", LOST])
def test_after_another_death_of_an_engine_nothing_waits(why: str) -> None:
    """Any of its requests may be the reason. The loss of a rank has another one."""

    def work(server: Server) -> None:
        _, updates = ask(server, "waits")
        server.lose(why)
        assert list(errors_of(updates)) == ([] if why else ["waits"])

    drill(work)
