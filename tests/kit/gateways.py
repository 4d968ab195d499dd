"""A gateway in a thread of its own, in front of servers that run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from quire.deploy.gateway import Gateway
from quire.deploy.members import Members, Replica
from quire.serve.settings import ServeSettings
from running_server import POLL_SECONDS, WAIT_SECONDS, RunningServer


class RunningGateway:
    def __init__(self, settings: ServeSettings) -> None:
        self.members = Members()
        self.gateway = Gateway(self.members, settings)
        configuration = uvicorn.Config(
            self.gateway, port=0, log_config=None, lifespan="on", timeout_graceful_shutdown=2
        )
        self._server = uvicorn.Server(configuration)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve()), daemon=True)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    def knows(self, **servers: RunningServer | str) -> None:
        """These replicas, by name, are here now; an address stands for a server that is not."""
        addresses = {name: one if isinstance(one, str) else one.address for name, one in servers.items()}
        self.members.replace([Replica(name, address) for name, address in addresses.items()])

    def start(self) -> None:
        self._thread.start()
        end = time.monotonic() + WAIT_SECONDS
        while not self._server.started:
            assert time.monotonic() < end, "the gateway does not start"
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(WAIT_SECONDS)


@contextmanager
def running_gateway(settings: ServeSettings | None = None) -> Iterator[RunningGateway]:
    gateway = RunningGateway(settings or ServeSettings())
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()
