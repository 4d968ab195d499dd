"""Runs a server with several fronts: the hub's process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.process_collector import ProcessCollector

from quire.plan.plan import Plan
from quire.serve import logs
from quire.serve.draining import Draining
from quire.serve.fronts.dispatch import Dispatcher
from quire.serve.fronts.hub import Hub
from quire.serve.fronts.hub_engine import HubEngine
from quire.serve.fronts.messages import Drain, FrontSetup
from quire.serve.fronts.metrics import AllProcesses
from quire.serve.http import log_trouble
from quire.serve.lease_register import LeaseRegister
from quire.serve.messages import EngineSetup, Failed
from quire.serve.metrics import EngineCollector, StoredGauges, span_counter
from quire.serve.progress import Progress
from quire.serve.service import Shared, own_shares
from quire.serve.settings import ServeSettings
from quire.serve.silence import Watch
from quire.serve.spans.destination import open_spans


class FrontServer:
    def __init__(self, plan: Plan, settings: ServeSettings, engine: EngineSetup, planned_for: str, fronts: int) -> None:
        engine = replace(engine, has_fronts=True)
        self.client = HubEngine(engine, Progress(settings.step_seconds), logs.write)
        self.shared = own_shares(plan, settings)
        own = replace(settings, bodies_bytes=settings.bodies_bytes // fronts)
        setups = [FrontSetup(number, engine, own, planned_for) for number in range(1, fronts + 1)]
        leases = LeaseRegister(self.client)
        metrics, registry = _metrics(plan, self.client, self.shared, leases)
        self._spans = open_spans(settings.otel, span_counter(registry))
        if self._spans is not None:
            self.client.on_traces = self._spans.note
        self._settings = settings
        self._hub = Hub(self.client, self.shared, metrics, setups, logs.write, leases=leases)
        self._ending = asyncio.Event()

    @property
    def boot_failure(self) -> Failed | None:
        return self._hub.boot_failure or self.client.boot_failure

    async def serve(self, listener: socket.socket, on_listening: Callable[[], None]) -> None:
        """Until a signal, or until the first start of a process fails. The engine is left to the caller."""
        hub, dispatcher = self._hub, Dispatcher(listener, self._hub.taking, self._settings.connections)
        hub.on_started = dispatcher.resume
        draining = Draining(self.shared.allowances, self.client, self._settings.drain_seconds, self._ending.set)
        draining.on_begin = lambda: hub.tell_all(Drain())
        draining.listen()
        asyncio.get_running_loop().set_exception_handler(log_trouble)
        self.client.start()
        hub.start()
        watching = asyncio.ensure_future(Watch(self.client, logs.write).run())
        listening = asyncio.ensure_future(self._listening(on_listening))
        ends = [asyncio.ensure_future(one.wait()) for one in (self._ending, self.client.given_up, hub.given_up)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            dispatcher.close()
            for task in (*ends, watching, listening):
                task.cancel()
            await hub.close()
            if self._spans is not None:
                await asyncio.to_thread(self._spans.close)

    async def _listening(self, on_listening: Callable[[], None]) -> None:
        await self._hub.all_started.wait()
        on_listening()


def _metrics(
    plan: Plan, client: HubEngine, shared: Shared, leases: LeaseRegister
) -> tuple[AllProcesses, CollectorRegistry]:
    """The hub's own: of the engine, the plan, the store and its process."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    processes = AllProcesses(registry)
    StoredGauges(registry).follow(shared.responses)
    registry.register(
        EngineCollector(plan, client, lambda: shared.allowances.is_draining, lambda: processes.open_requests)
    )
    registry.register(leases)
    ProcessCollector(registry=registry)
    return processes, registry
