"""A collector of OpenTelemetry spans: takes OTLP over HTTP, and reads it with the official messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class SpanRead:
    """A span as it was received."""

    trace: str
    span: str
    parent: str
    name: str
    kind: int
    begin_ns: int
    end_ns: int
    status: int
    attributes: dict[str, Any] = field(default_factory=dict)
    resource: dict[str, Any] = field(default_factory=dict)


class Collector:
    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.address = f"http://127.0.0.1:{server.server_port}"
        self.bodies: list[bytes] = []
        self.paths: list[str] = []

    @property
    def spans(self) -> list[SpanRead]:
        return [span for body in list(self.bodies) for span in _read(body)]

    def of(self, trace: str) -> list[SpanRead]:
        """In the order of their begins, the outer ones first."""
        return sorted((one for one in self.spans if one.trace == trace), key=lambda one: (one.begin_ns, -one.end_ns))

    def until(self, trace: str, count: int) -> list[SpanRead]:
        """The spans of a trace, when there are this many."""
        end = time.monotonic() + WAIT_SECONDS
        while len(self.of(trace)) < count:
            assert time.monotonic() < end, [one.name for one in self.of(trace)]
            time.sleep(0.02)
        return self.of(trace)


@contextmanager
def collector(status: int = 200) -> Iterator[Collector]:
    """`status`: what it answers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.paths.append(self.path)
            if status == 200:
                found.bodies.append(body)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Collector(server)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _read(body: bytes) -> Iterator[SpanRead]:
    message = ExportTraceServiceRequest()
    message.ParseFromString(body)
    for group in message.resource_spans:
        resource = {one.key: _value(one.value) for one in group.resource.attributes}
        for scope in group.scope_spans:
            for span in scope.spans:
                yield SpanRead(
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    span.kind,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.status.code,
                    {one.key: _value(one.value) for one in span.attributes},
                    resource,
                )


def _value(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, which) if which else None
