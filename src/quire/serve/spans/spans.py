"""Spans of one process: of the calls that it answers, and of the phases of requests that the engine reports.

    POST /v1/chat/completions  ──────────────────────────────────────────   in the process that answers
       queue ──── prefill ──── preempted ── prefill ── decode ──────────    in the process that talks to the engine

The engine gives back each request's phases with the headers of the span that they belong to, so no process has to
remember a call whose phases are still to come.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import Counter

from quire import __version__
from quire.serve.spans.attributes import of_call, of_end, of_phase, of_question
from quire.serve.spans.exporter import Export
from quire.text.question import Question
from quire.traces.phases import Phase
from quire.traces.traced import Parent, RequestTrace

HEADERS = (b"traceparent", b"tracestate")
_W3C = TraceContextTextMapPropagator()


class CallSpan:
    """The span of one HTTP call that is sampled."""

    def __init__(self, span: Span, method: str, path: str) -> None:
        self._span, self._method, self._path = span, method, path

    @property
    def trace(self) -> str:
        """For the log."""
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def parent(self) -> Parent:
        """For phases."""
        headers: dict[str, str] = {}
        _W3C.inject(headers, set_span_in_context(self._span, Context()))
        return headers

    def asks(self, question: Question, model: str, call: str) -> None:
        self._span.set_attributes(of_question(question, self._path, model, call))

    def end(self, status: int, route: str, record: Mapping[str, Any]) -> None:
        self._span.update_name(f"{self._method} {route}")
        self._span.set_attributes({"http.route": route, **of_end(status, record)})
        if status >= 500 or (status < 400 and record.get("error")):
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class Spans:
    def __init__(self, endpoint: str, counter: Counter) -> None:
        self._export = Export(endpoint, counter)
        self._tracer = self._export.provider.get_tracer("quire", __version__)

    def call(self, scope: Mapping[str, Any], tenant: str, begin_ns: int) -> CallSpan | None:
        """A call of this tenant that began then. None: it is not sampled."""
        given = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in HEADERS}
        method, path = scope["method"], scope["path"]
        span = self._tracer.start_span(
            method,
            _W3C.extract(given, Context()),
            SpanKind.SERVER,
            of_call(method, path, scope["scheme"], tenant),
            start_time=begin_ns,
        )
        return CallSpan(span, method, path) if span.is_recording() else None

    def note(self, traces: Sequence[RequestTrace]) -> None:
        """Requests that have ended. The engine's clock is the machine's monotonic one."""
        shift_ns = time.time_ns() - time.monotonic_ns()
        for trace in traces:
            context = _W3C.extract(trace.parent, Context())
            for phase in trace.phases:
                self._phase(phase, trace.name, context, shift_ns)

    def _phase(self, phase: Phase, request: str, context: Context, shift_ns: int) -> None:
        attributes = of_phase(phase, request)
        span = self._tracer.start_span(phase.name, context, attributes=attributes, start_time=phase.begin_ns + shift_ns)
        if phase.is_failed:
            span.set_status(Status(StatusCode.ERROR, attributes["quire.because"]))
        span.end(phase.end_ns + shift_ns)

    def close(self) -> None:
        self._export.close()
