"""An engine that cannot be started is tried again; until it is there, no probe says that all is well."""

from __future__ import annotations

import asyncio
import errno
import resource
from pathlib import Path
from typing import Any

import pytest
from uvicorn.server import ServerState

from edge_kit import MOST_CONNECTIONS, Wire, connected
from quire.core.errors import InputError
from quire.options.run import RunOptions
from quire.serve import client as module
from quire.serve import descriptors, server, starting
from quire.serve.client import EngineClient
from quire.serve.descriptors import RESERVED, fitting_connections
from quire.serve.messages import EngineSetup, EngineTick, Ready
from quire.serve.progress import Progress
from serve_kit import Clock

FULL = OSError(errno.EMFILE, "Too many open files")


class Process:
    """One that ends when it is killed."""

    pid = 1

    def __init__(self) -> None:
        self.is_killed = False

    def kill(self) -> None:
        self.is_killed = True

    def wait(self, _seconds: float | None = None) -> int:
        return -9

    def poll(self) -> int:
        return -9


def new_client(events: list[tuple[str, dict[str, Any]]]) -> EngineClient:
    def tell(event: str, _level: str = "info", **fields: Any) -> None:
        events.append((event, fields))

    return EngineClient(EngineSetup(Path(), {}, RunOptions()), Progress(30.0, Clock()), tell)


@pytest.mark.story
def test_an_engine_that_cannot_be_started_again_is_tried_until_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """After pauses that double, each failure with an event; and progress is false until there is a process."""
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.001)
    events: list[tuple[str, dict[str, Any]]] = []
    progressing: list[bool] = []

    async def restarted() -> EngineClient:
        client, failures = new_client(events), [FULL, RuntimeError("can't start new thread"), FULL]

        def spawn() -> None:
            progressing.append(client.progress.is_progressing())
            if failures:
                raise failures.pop()
            client._life = object()  # type: ignore[assignment]
            client.progress.engine_starts()

        monkeypatch.setattr(client, "_spawn", spawn)
        client._was_ready = True
        client.progress.reset()
        client._life = own = starting.Life(Process(), None, 0.0)  # type: ignore[arg-type]
        client._died(own, -9)
        await asyncio.wait_for(asyncio.gather(*client._tasks), 20)
        return client

    client = asyncio.run(restarted())
    assert progressing == [False] * 4
    assert client.progress.is_progressing()
    assert client.restarts == 1
    failed = [fields for event, fields in events if event == "engine_not_started"]
    assert [one["pause_seconds"] for one in failed] == [0.002, 0.004, 0.008]
    assert "Too many open files" in failed[0]["message"]


@pytest.mark.story
def test_a_start_that_fails_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each further attempt would take descriptors away from the next."""

    def none(*_arguments: object, **_more: object) -> None:
        raise FULL

    monkeypatch.setattr(starting.subprocess, "Popen", none)

    async def left_open() -> int:
        client = new_client([])
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(3):
            with pytest.raises(OSError, match="Too many open files"):
                client._spawn()
        return len(list(Path("/proc/self/fd").iterdir())) - before

    assert asyncio.run(left_open()) == 0


def test_a_process_whose_pipe_cannot_be_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()

    def refuse(_pipe: module.FramePipe) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def start() -> EngineClient:
        client = new_client([])
        client.start()
        return client

    monkeypatch.setattr(starting.subprocess, "Popen", lambda *_a, **_k: process)
    monkeypatch.setattr(module.FramePipe, "open", refuse)
    client = asyncio.run(start())
    assert process.is_killed
    assert client.given_up.is_set()
    assert client.boot_failure is not None
    assert "No space left on device" in client.boot_failure.message


def test_progress_follows_the_engine_from_its_first_start() -> None:
    """A first engine that loads its weights is no stall, however long it takes; one that is loaded again has as long as
    a step; a dead one is a stall at once."""
    clock = Clock()
    watch = Progress(10.0, clock)
    watch.engine_starts()
    clock.now += 1000
    assert watch.is_progressing(), "it loads for the first time"
    watch.reset()
    watch.engine_is_gone()
    assert not watch.is_progressing()
    watch.engine_starts()
    assert watch.is_progressing()
    clock.now += 11
    assert not watch.is_progressing(), "it loads again, for longer than a step may take"
    watch.reset()
    assert watch.is_progressing()


def test_a_dead_engine_is_a_stall_as_soon_as_its_pipe_closes() -> None:
    async def states() -> list[bool]:
        client = new_client([])
        client._life = own = starting.Life(Process(), None, 0.0)  # type: ignore[arg-type]
        client._receive(own, Ready())
        client._receive(own, EngineTick(1, True))
        found = [client.progress.is_progressing()]
        client._died(own, -9)
        client._is_closing = True
        return [*found, client.progress.is_progressing()]

    assert asyncio.run(states()) == [True, False]


# ── descriptors ───────────────────────────────────────────────────────────


@pytest.mark.story
def test_connections_leave_descriptors_for_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the server says so when that is fewer than were asked for."""
    said: list[str] = []
    monkeypatch.setattr(server, "raise_limit", lambda: 1024)
    assert server._connections(2048, said.append) == 1024 - RESERVED
    assert said == [
        "--connections is 896 instead of 2,048: this process may open 1,024 files, and 128 are for other uses; "
        "raise it with ulimit -n"
    ]
    assert server._connections(800, said.append) == 800
    assert len(said) == 1
    assert fitting_connections(2048, resource.RLIM_INFINITY) == 2048
    with pytest.raises(InputError, match="may open 100 files, and needs 129"):
        fitting_connections(1, 100)


def test_the_limit_of_open_files_is_raised_as_far_as_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(descriptors.resource, "getrlimit", lambda _which: (1024, 4096))
    monkeypatch.setattr(descriptors.resource, "setrlimit", lambda _which, pair: given.append(pair))
    assert descriptors.raise_limit() == 4096
    assert given == [(4096, 4096)]

    def refuse(_which: int, _pair: tuple[int, int]) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(descriptors.resource, "setrlimit", refuse)
    assert descriptors.raise_limit() == 1024


@pytest.mark.story
def test_a_connection_too_many_is_closed_even_if_it_says_nothing() -> None:
    """Idle connections are open files as well. Those that are there keep their places."""

    async def connect() -> list[Wire]:
        state = ServerState()
        return [connected(lambda: None, state=state)[1] for _ in range(MOST_CONNECTIONS + 2)]

    wires = asyncio.run(connect())
    assert [wire.is_closed for wire in wires] == [False] * MOST_CONNECTIONS + [True] * 2
    assert wires[0].written == b""
    assert wires[-1].written.startswith(b"HTTP/1.1 503 ")
