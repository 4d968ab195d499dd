"""What an operator may choose about serving over HTTP. Each field carries its flag, as in `quire.options.run`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.core.errors import InputError
from quire.core.rules import LOAD_SECONDS
from quire.core.units import KIB, MIB
from quire.options.flags import option
from quire.options.texts import bytes_or_zero, parse_bytes, positive
from quire.serve.keys import shared_key_digest

ANY = "*"
"""Every origin."""
_ORIGIN = re.compile(r"^[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:]+\])(:[0-9]+)?\Z")
MOST_HTTP_PROCESSES = 64
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("auto", "text", "json")
SECONDS: dict[str, Any] = {"parse": float, "metavar": "S"}
BYTES: dict[str, Any] = {"parse": parse_bytes, "metavar": "BYTES"}


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How a server listens, limits and logs."""

    host: str = option("127.0.0.1", "http", "address to listen on (default 127.0.0.1: this machine only)")
    port: int = option(8000, "http", "port to listen on (default 8000; 0: any free port)", parse=int)
    model_name: tuple[str, ...] = option(
        (), "http", "model name in the API; repeat it to accept other names too (default: folder name)", metavar="NAME"
    )
    keys: Path | None = option(
        None, "http", "file of API keys, made by quire keys add (default: no key is needed)", parse=Path, metavar="FILE"
    )
    strict_fields: bool = option(
        False, "http", "refuse every unknown field of a body, also those that cannot change the answer"
    )
    api_key_sha256: str | None = option(
        None,
        "http",
        "one API key that all clients share; set it as QUIRE_API_KEY, processes show a typed one (default: none)",
        "--api-key",
        parse=shared_key_digest,
        metavar="KEY",
    )
    """Only the hash is kept."""
    allow_origin: tuple[str, ...] = option(
        (),
        "http",
        "web pages of this origin may use the server, * for all (default: none; may be repeated)",
        metavar="ORIGIN",
    )
    open_metrics: bool = option(False, "http", "with --keys: answer /metrics without a key")
    log_level: str = option("info", "http", "least severe messages to log (default info)", choices=LOG_LEVELS)
    log_format: str = option(
        "auto", "http", "log lines as text or json (default auto: text on a terminal, else json)", choices=LOG_FORMATS
    )
    otel: str | None = option(
        None,
        "http",
        "send OpenTelemetry spans to this collector, OTLP over HTTP, such as http://localhost:4318 "
        "(default: what the variables OTEL_… say; else no spans)",
        metavar="URL",
    )
    log_text: bool = option(False, "http", "include prompts and answers in the logs")
    step_seconds: float = option(
        30.0,
        "progress",
        "seconds without a finished step after which /health/progress reports a stall (default 30)",
        **SECONDS,
    )
    load_seconds: float = option(
        LOAD_SECONDS,
        "progress",
        "time limit for loading a prefix from a tier, else it is computed (default 5, plus 1 per 256 MiB)",
        **SECONDS,
    )
    queue: int = option(
        1024, "limits", "maximum queued requests; more are refused with 429 (default 1024)", parse=positive, metavar="N"
    )
    request_seconds: float = option(
        600.0, "limits", "end a request with 504 after this many seconds (default 600)", **SECONDS
    )
    drain_seconds: float = option(
        60.0, "limits", "time for running requests to finish after a stop signal (default 60)", **SECONDS
    )
    body_bytes: int = option(4 * MIB, "limits", "maximum size of a request body (default 4MiB)", **BYTES)
    bodies_bytes: int = option(
        256 * MIB, "limits", "maximum size of all request bodies in memory together (default 256MiB)", **BYTES
    )
    body_seconds: float = option(30.0, "limits", "time limit for receiving a request body (default 30)", **SECONDS)
    header_bytes: int = option(16 * KIB, "limits", "maximum size of all headers of a request (default 16KiB)", **BYTES)
    header_seconds: float = option(10.0, "limits", "time limit for receiving the headers (default 10)", **SECONDS)
    store_bytes: int = option(
        64 * MIB,
        "limits",
        "memory for stored responses of /v1/responses; 0 stores none (default 64MiB)",
        parse=bytes_or_zero,
        metavar="BYTES",
    )
    http_processes: int | None = option(
        None,
        "http",
        "processes that speak HTTP on the port (default: 1; on a GPU 1 for each 4 cores, up to 4, from 8 cores on)",
        parse=positive,
        metavar="N",
    )
    lease_seconds: float = option(
        3600.0, "limits", "longest lease that a client may ask for, in seconds (default 3600)", **SECONDS
    )
    connections: int = option(2048, "limits", "maximum open connections (default 2048)", parse=positive, metavar="N")

    def __post_init__(self) -> None:
        if self.keys is not None and self.api_key_sha256 is not None:
            raise InputError("--api-key and --keys are both given: leave one out, or add the key with quire keys add")
        for origin in self.allow_origin:
            _check_origin(origin)
        for name in (
            "step_seconds",
            "request_seconds",
            "body_seconds",
            "header_seconds",
            "load_seconds",
            "lease_seconds",
        ):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}: give a number above 0")
        if not 0 <= self.drain_seconds < float("inf"):
            raise InputError(f"drain_seconds is {self.drain_seconds}: give 0 or more")
        if self.bodies_bytes < self.body_bytes:
            raise InputError(f"bodies_bytes is {self.bodies_bytes:,}: give at least body_bytes, {self.body_bytes:,}")
        if self.http_processes is not None and self.http_processes > most_http_processes(self):
            most = most_http_processes(self)
            why = f"bodies_bytes, {self.bodies_bytes:,}, is divided among them, and each needs a body_bytes"
            raise InputError(f"http_processes is {self.http_processes}: give at most {most}, as {why}")
        if not 0 <= self.port < 1 << 16:
            raise InputError(f"port is {self.port}: give 0 to 65,535; 0 takes a free one")


def most_http_processes(settings: ServeSettings) -> int:
    """Each has its part of the memory for bodies, in which the largest body fits."""
    return min(MOST_HTTP_PROCESSES, settings.bodies_bytes // settings.body_bytes)


def _check_origin(text: str) -> None:
    """`*`, or a scheme, a host and perhaps a port, as browsers send them."""
    if text != ANY and not _ORIGIN.match(text):
        raise InputError(f"--allow-origin {text!r} is none: write * or scheme://host[:port], in lower case, no path")
