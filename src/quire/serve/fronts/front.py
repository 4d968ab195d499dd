"""A front: a process that speaks HTTP. The hub hands it connections, and is asked for all that fronts share.

It ends when the hub says so or has ended, and ignores signals: the hub decides when everything ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from quire.core.errors import QuireError
from quire.plan.file import decode
from quire.serve import logs
from quire.serve.away import EngineStopping
from quire.serve.fronts.channel import Channel, receive_first
from quire.serve.fronts.client import FrontClient, FrontLeases, FrontViews
from quire.serve.fronts.messages import (
    AbortRequests,
    Beat,
    Closed,
    Drain,
    End,
    EngineState,
    FrontSetup,
    Lost,
    OwnMetrics,
    Started,
    StartFailed,
    StatesOf,
)
from quire.serve.fronts.metrics import FrontMetrics
from quire.serve.fronts.shares import hub_shares
from quire.serve.http import HttpServer, http_server, log_trouble
from quire.serve.keys import KeyRing
from quire.serve.messages import EngineTick
from quire.serve.service import Service
from quire.serve.spans.destination import open_spans

if TYPE_CHECKING:
    from quire.serve.spans.spans import Spans

BEAT_SECONDS = 1.0


class Front:
    def __init__(self, setup: FrontSetup, channel: Channel, connections: socket.socket) -> None:
        """`connections`: where the hub hands them over."""
        connections.setblocking(False)
        self._channel, self._connections = channel, connections
        self._client = FrontClient(setup, channel)
        self._metrics = FrontMetrics(self._client, channel)
        self._spans = open_spans(setup.settings.otel, self._metrics.spans)
        self._service = _service(setup, channel, self._client, self._metrics, self._spans)
        self._server = http_server(self._service)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_trouble)
        self._channel.on_notice, self._channel.on_question = self._note, self._answer
        self._channel.on_lost = _end_at_once
        self._channel.open()
        serving = asyncio.ensure_future(self._server.serve([]))
        while not self._server.started:
            await asyncio.sleep(0.01)
        loop.add_reader(self._connections, self._take_connections)
        gc.freeze()  # what was made so far stays for good: scanning it again and again would delay answers
        self._channel.send(Started())
        beating = asyncio.ensure_future(self._beat())
        await serving
        beating.cancel()
        if self._spans is not None:
            await asyncio.to_thread(self._spans.close)

    async def _beat(self) -> None:
        while True:
            self._channel.send(Beat(tuple(self._client.tickets)))
            await asyncio.sleep(BEAT_SECONDS)

    # ── the hub ───────────────────────────────────────────────────────────

    def _note(self, message: object) -> None:
        match message:
            case EngineTick():
                self._client.note_tick(message)
            case EngineState():
                self._client.note_state(message)
            case Lost(names, error):
                self._client.end(names, error)
            case Drain():
                self._service.allowances.is_draining = True
            case End():
                self._client.end_all(EngineStopping("the server stops: send the request to another one"))
                self._server.should_exit = True

    async def _answer(self, question: object) -> object:
        match question:
            case AbortRequests(names):
                return self._client.abort(names)
            case StatesOf(names):
                return await self._client.own_states(names)
            case OwnMetrics():
                return self._metrics.figures()
        raise AssertionError(question)

    # ── connections ───────────────────────────────────────────────────────

    def _take_connections(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                _, descriptors, _, _ = socket.recv_fds(self._connections, 1, 1, socket.MSG_CMSG_CLOEXEC)
                if not descriptors:
                    return  # the hub has ended: its channel says so too
                task = asyncio.ensure_future(self._serve(socket.socket(fileno=descriptors[0])))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        except OSError:
            self._channel.send(Closed(1))

    def _protocol(self) -> asyncio.Protocol:
        return _protocol_of(self._server, self._channel)


def _protocol_of(server: HttpServer, channel: Channel) -> asyncio.Protocol:
    """As uvicorn makes it for a connection that it has accepted itself; the hub learns of its end."""
    make: Any = server.config.http_protocol_class
    made = make(config=server.config, server_state=server.server_state, app_state={})
    lost = made.connection_lost

    def connection_lost(error: Exception | None) -> None:
        lost(error)
        channel.send(Closed(1))

    made.connection_lost = connection_lost
    protocol: asyncio.Protocol = made
    return protocol


def _service(
    setup: FrontSetup, channel: Channel, client: FrontClient, metrics: FrontMetrics, spans: Spans | None
) -> Service:
    settings, engine = setup.settings, setup.engine
    return Service(
        decode(dict(engine.plan)),
        engine.folder,
        settings,
        KeyRing(settings.keys, key_sha256=settings.api_key_sha256),
        client,
        setup.planned_for,
        shared=hub_shares(channel, settings),
        metrics=metrics,
        leases=FrontLeases(client),
        views=FrontViews(channel),
        options=engine.options,
        spans=spans,
    )


def _end_at_once() -> None:
    """The hub has ended, and the engine with it: no call can be completed."""
    os._exit(1)


async def _run(setup: FrontSetup, pipe: socket.socket, connections: socket.socket) -> None:
    channel = Channel(pipe, waits=True)
    try:
        front = Front(setup, channel, connections)
    except QuireError as error:
        channel.send(StartFailed(str(error), error.exit_code))
        sys.exit(error.exit_code)
    await front.run()


def main(pipe: socket.socket, connections: socket.socket) -> None:
    """The first message is the setup."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    setup: FrontSetup = receive_first(pipe)
    logs.set_up(setup.settings.log_level, setup.settings.log_format, front=setup.number)
    asyncio.run(_run(setup, pipe, connections))


if __name__ == "__main__":
    main(*(socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:]))
