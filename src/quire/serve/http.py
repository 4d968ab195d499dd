"""uvicorn with Quire's limits around the application: what each process that speaks HTTP runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn

from quire.serve import logs
from quire.serve.app import make_app
from quire.serve.direct import DirectRoutes
from quire.serve.edge import Edge
from quire.serve.protocol import protocol
from quire.serve.rate_limits import RateLimitHeaders
from quire.serve.service import Service


class HttpServer(uvicorn.Server):
    """Does not handle signals itself: the first one drains the server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server(service: Service) -> HttpServer:
    settings = service.settings
    app = RateLimitHeaders(DirectRoutes(make_app(service)), service.allowances)
    configuration = uvicorn.Config(
        Edge(app, settings, service.ring, service.metrics, service.spans),
        log_config=None,
        access_log=False,
        lifespan="off",
        http=protocol(settings.header_seconds, 2 * settings.header_bytes, settings.body_seconds, settings.connections),
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )
    return HttpServer(configuration)


def log_trouble(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What the event loop itself reports, as when it cannot accept a connection: never the exception's text."""
    exception = type(context["exception"]).__name__ if "exception" in context else ""
    logs.write("http", "error", message=" ".join(filter(None, (str(context["message"]), exception))))
