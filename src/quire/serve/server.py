"""Runs the server: the engine's process, HTTP, signals.

signal ──▶ draining (`draining.py`) ──▶ the engine ends ──▶ the server ends
           with tiers the engine may take drain_seconds once more, to write the records that wait for them
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from quire.core.errors import InputError, QuireError
from quire.core.rules import LOAD_SECONDS, Policy, Rules
from quire.options.run import RunOptions
from quire.plan.file import encode
from quire.plan.plan import Plan
from quire.serve import logs
from quire.serve.away import EngineStopping
from quire.serve.client import CLOSE_SECONDS, EngineClient
from quire.serve.descriptors import RESERVED, fitting_connections, raise_limit
from quire.serve.draining import Draining
from quire.serve.fronts.choice import http_processes
from quire.serve.fronts.server import FrontServer
from quire.serve.http import http_server, log_trouble
from quire.serve.keys import KeyRing
from quire.serve.lease_register import LeaseRegister
from quire.serve.messages import EngineSetup, Failed, Ready
from quire.serve.metrics import Metrics
from quire.serve.progress import Progress
from quire.serve.service import Service, own_shares
from quire.serve.settings import ServeSettings
from quire.serve.silence import Watch
from quire.serve.spans.destination import open_spans
from quire.serve.views import EngineViews

GREATEST_PORT = 65_535


class EngineFailed(QuireError):
    """The engine could not boot."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


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
    processes = http_processes(settings, options.device)
    settings = replace(settings, connections=_connections(settings.connections, announce), http_processes=processes)
    ring = KeyRing(settings.keys, key_sha256=settings.api_key_sha256)
    options = replace(options, rules=rules_of(ring, settings.queue, settings.load_seconds))
    logged = (settings.log_format, settings.log_level)
    has_spans, seconds = settings.otel is not None, settings.step_seconds
    setup = EngineSetup(
        planned.folder, encode(planned.plan), options, freeze_file, *logged, step_seconds=seconds, has_spans=has_spans
    )
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


class OneProcess:
    """This process speaks HTTP."""

    def __init__(self, planned: PlannedModel, settings: ServeSettings, ring: KeyRing, setup: EngineSetup) -> None:
        self.client = client = EngineClient(setup, Progress(settings.step_seconds), logs.write)
        self.shared = shared = own_shares(planned.plan, settings)
        metrics = Metrics(planned.plan, client, lambda: shared.allowances.is_draining)
        metrics.stored.follow(shared.responses)
        leases = LeaseRegister(client)
        metrics.registry.register(leases)
        self._spans = open_spans(settings.otel, metrics.spans)
        if self._spans is not None:
            client.on_traces = self._spans.note
        service = Service(
            planned.plan,
            planned.folder,
            settings,
            ring,
            client,
            planned.planned_for,
            shared=shared,
            metrics=metrics,
            leases=leases,
            views=EngineViews(client),
            options=setup.options,
            spans=self._spans,
        )
        self._settings, self._server = settings, http_server(service)

    @property
    def boot_failure(self) -> Failed | None:
        return self.client.boot_failure

    async def serve(self, listener: socket.socket, on_listening: Callable[[], None]) -> None:
        """Until a signal, or until the first start of the engine fails. The engine is left to the caller."""
        client = self.client
        Draining(self.shared.allowances, client, self._settings.drain_seconds, self._end).listen()
        asyncio.get_running_loop().set_exception_handler(log_trouble)
        client.start()
        gc.freeze()  # what was made so far stays for good: scanning it again and again would delay answers
        serving = asyncio.ensure_future(self._server.serve([listener]))
        failing = asyncio.ensure_future(client.given_up.wait())
        listening = asyncio.ensure_future(self._listening(on_listening))
        watching = asyncio.ensure_future(Watch(client, logs.write).run())
        try:
            await asyncio.wait({serving, failing}, return_when=asyncio.FIRST_COMPLETED)
            self._server.should_exit = True
            await serving
        finally:
            for task in (failing, listening, watching):
                task.cancel()
            if self._spans is not None:
                await asyncio.to_thread(self._spans.close)

    async def _listening(self, on_listening: Callable[[], None]) -> None:
        while not self._server.started:
            await asyncio.sleep(0.02)
        on_listening()

    def _end(self) -> None:
        """Ends all waiting calls with an error."""
        self.client.end_all(EngineStopping("the server stops: send the request to another one"))
        self._server.should_exit = True


async def _serve(
    listener: socket.socket,
    planned: PlannedModel,
    settings: ServeSettings,
    ring: KeyRing,
    setup: EngineSetup,
    *,
    announce: Callable[[str], None],
) -> None:
    processes = settings.http_processes or 1
    server: OneProcess | FrontServer = (
        OneProcess(planned, settings, ring, setup)
        if processes == 1
        else FrontServer(planned.plan, settings, setup, planned.planned_for, processes)
    )
    client, listening = server.client, asyncio.Event()
    ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
    client.on_first_ready = ready.set_result
    model = (settings.model_name or (planned.folder.name,))[0]
    telling = asyncio.ensure_future(_announce(listener, listening, ready, announce, model=model, processes=processes))
    try:
        await server.serve(listener, listening.set)
    finally:
        telling.cancel()
        logs.write("stopped", requests=server.shared.allowances.total)
        has_tiers = not setup.options.tiers.is_empty
        await client.close(max(CLOSE_SECONDS, settings.drain_seconds) if has_tiers else CLOSE_SECONDS)
    if (failure := server.boot_failure) is not None:
        raise EngineFailed(failure.message, failure.exit_code)


async def _announce(
    listener: socket.socket,
    listening: asyncio.Event,
    ready: asyncio.Future[Ready],
    announce: Callable[[str], None],
    *,
    model: str,
    processes: int,
) -> None:
    """One line as soon as the server listens (the port is known only then if it was 0), the address when it serves."""
    await listening.wait()
    host, port = listener.getsockname()[:2]
    logs.write("started", host=host, port=port, model=model, http_processes=processes)
    announce(f"\nloading {model}: http://{host}:{port}/health/ready answers 200 when it is ready")
    announce(f"HTTP processes: {processes} (--http-processes)")
    started = await ready
    for title, lines in (("Engine", started.started), ("Tiers", started.tiers)):
        if lines:
            announce("\n".join((f"\n{title}", *lines)))
    announce(f"\nserving {model} at http://{host}:{port}/v1")
