"""Runs the server: the engine's process, uvicorn, signals, draining.

signal ──▶ draining: new calls are refused with 503, /health/ready is false, calls in progress continue
       ──▶ the last one ends, or drain_seconds pass ──▶ the engine ends ──▶ the server ends
           with tiers the engine may take drain_seconds once more, to write the records that wait for them
a second signal ends it at once
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn

from quire.core.errors import InputError, QuireError
from quire.core.rules import LOAD_SECONDS, Policy, Rules
from quire.options.run import RunOptions
from quire.plan.file import encode
from quire.plan.plan import Plan
from quire.serve import logs
from quire.serve.app import make_app
from quire.serve.client import CLOSE_SECONDS, EngineClient, EngineStopping
from quire.serve.descriptors import RESERVED, fitting_connections, raise_limit
from quire.serve.edge import Edge
from quire.serve.keys import KeyRing
from quire.serve.messages import EngineSetup, Ready
from quire.serve.progress import Progress
from quire.serve.protocol import protocol
from quire.serve.rate_limits import RateLimitHeaders
from quire.serve.service import Service
from quire.serve.settings import ServeSettings
from quire.serve.silence import Watch

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GREATEST_PORT = 65_535


class EngineFailed(QuireError):
    """The engine could not boot."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class _Server(uvicorn.Server):
    """Does not handle signals itself: the first one drains the server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def rules_of(ring: KeyRing, queue: int, load_seconds: float = LOAD_SECONDS) -> Rules:
    """Tenants get fair shares by the weights that their requests carry; a tenant's requests are ordered by priority.
    Without keys all requests are ordered by priority, then by arrival."""
    if ring.is_open:
        return Rules(policy=Policy.PRIORITY, queue_bound=queue, load_seconds=load_seconds)
    return Rules(policy=Policy.FAIR, queue_bound=queue, load_seconds=load_seconds)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedModel:
    """The model that is served."""

    folder: Path
    plan: Plan
    planned_for: str
    """The machine, in words."""


def run(
    listener: socket.socket,
    planned: PlannedModel,
    options: RunOptions,
    settings: ServeSettings,
    *,
    freeze_file: Path | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Serves until a signal arrives, on the socket from `listen`. Raises if the engine cannot boot."""
    logs.set_up(settings.log_level, settings.log_format)
    settings = replace(settings, connections=_connections(settings.connections, announce))
    ring = KeyRing(settings.keys, key_sha256=settings.api_key_sha256)
    options = replace(options, rules=rules_of(ring, settings.queue, settings.load_seconds))
    setup = EngineSetup(planned.folder, encode(planned.plan), options, freeze_file, settings.log_format)
    asyncio.run(_serve(listener, planned, settings, ring, setup, announce=announce))


def _connections(asked: int, announce: Callable[[str], None]) -> int:
    """As many as the process may have open, after its limit is raised as far as possible."""
    limit = raise_limit()
    fitting = fitting_connections(asked, limit)
    if fitting < asked:
        why = f"this process may open {limit:,} files, and {RESERVED} are for other uses"
        announce(f"--connections is {fitting:,} instead of {asked:,}: {why}; raise it with ulimit -n")
    return fitting


def listen(host: str, port: int) -> socket.socket:
    """Called before anything is fetched, planned or loaded, so that an address in use is reported at once. Connections
    inherit that small pieces are sent at once: asyncio does not set it for sockets that it has not made itself, and
    each event of a stream would wait until the one before is acknowledged, up to 40 ms."""
    if not 0 <= port <= GREATEST_PORT:
        raise InputError(f"--port {port} is none: choose one from 1 to {GREATEST_PORT}, or 0 for any that is free")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        number = error.errno or 0  # below 0 if the host's name is not known
        why = os.strerror(number) if number >= 0 else str(error.strerror).partition(" (while")[0]
        raise InputError(f"cannot listen at {host}:{port}: {why}; choose another --host or --port") from None


async def _serve(
    listener: socket.socket,
    planned: PlannedModel,
    settings: ServeSettings,
    ring: KeyRing,
    setup: EngineSetup,
    *,
    announce: Callable[[str], None],
) -> None:
    client = EngineClient(setup, Progress(settings.step_seconds), logs.write)
    service = Service(
        planned.plan,
        planned.folder,
        settings,
        ring,
        client,
        planned.planned_for,
        dialect=setup.options.tool_dialect,
    )
    app = RateLimitHeaders(make_app(service), service.allowances)
    server = _Server(_configuration(Edge(app, settings, ring, service.metrics), settings))
    _listen_to_signals(service, server)
    asyncio.get_running_loop().set_exception_handler(_log_trouble)
    ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
    client.on_first_ready = ready.set_result
    client.start()
    serving = asyncio.ensure_future(server.serve([listener]))
    failing = asyncio.ensure_future(client.given_up.wait())
    telling = asyncio.ensure_future(_announce(server, listener, service, ready, announce))
    watching = asyncio.ensure_future(Watch(client, logs.write).run())
    try:
        await asyncio.wait({serving, failing}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving
    finally:
        for task in (failing, telling, watching):
            task.cancel()
        logs.write("stopped", requests=service.allowances.total)
        has_tiers = not setup.options.tiers.is_empty
        await client.close(max(CLOSE_SECONDS, settings.drain_seconds) if has_tiers else CLOSE_SECONDS)
    if client.boot_failure is not None:
        raise EngineFailed(client.boot_failure.message, client.boot_failure.exit_code)


def _configuration(app: Any, settings: ServeSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=protocol(settings.header_seconds, 2 * settings.header_bytes, settings.body_seconds, settings.connections),
        ws="none",
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )


async def _announce(
    server: uvicorn.Server,
    listener: socket.socket,
    service: Service,
    ready: asyncio.Future[Ready],
    announce: Callable[[str], None],
) -> None:
    """One line as soon as the server listens (the port is known only then if it was 0), the address when it serves."""
    while not server.started:
        await asyncio.sleep(0.02)
    host, port = listener.getsockname()[:2]
    logs.write("started", host=host, port=port, model=service.model)
    announce(f"\nloading {service.model}: http://{host}:{port}/health/ready answers 200 when it is ready")
    started = await ready
    for title, lines in (("Device", started.started), ("Tiers", started.tiers)):
        if lines:
            announce("\n".join((f"\n{title}", *lines)))
    announce(f"\nserving {service.model} at http://{host}:{port}/v1")


def _log_trouble(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What the event loop itself reports, as when it cannot accept a connection: never the exception's text."""
    exception = type(context["exception"]).__name__ if "exception" in context else ""
    logs.write("http", "error", message=" ".join(filter(None, (str(context["message"]), exception))))


def _listen_to_signals(service: Service, server: uvicorn.Server) -> None:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def stop() -> None:
        if service.is_draining:
            service.client.is_hurried = True
            _end(service, server)
            return
        service.is_draining = True
        logs.write("draining", requests=service.allowances.total)
        tasks.add(loop.create_task(_drain(service, server)))

    for number in SIGNALS:
        loop.add_signal_handler(number, stop)


async def _drain(service: Service, server: uvicorn.Server) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(service.settings.drain_seconds):
            while service.allowances.total:
                await asyncio.sleep(0.05)
    _end(service, server)


def _end(service: Service, server: uvicorn.Server) -> None:
    """Ends all waiting calls with an error."""
    service.client.end_all(EngineStopping("the server stops: send the request to another one"))
    server.should_exit = True
