"""Ended spans on their way to the collector: bounded, in batches, in a thread of their own. What is lost is counted.

a span ends ──▶ room? ──▶ a batch ──▶ the collector     sent, or failed
                  └─▶ dropped
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from prometheus_client import Counter

from quire import __version__
from quire.core.errors import InputError
from quire.serve.spans.destination import without_password

MOST_WAITING = "OTEL_BSP_MAX_QUEUE_SIZE"
DEFAULT_WAITING = 2048
CLOSE_SECONDS = 2.0
"""How long the end of the server waits for spans to be sent."""
_LOG = logging.getLogger("quire.spans")


class Export:
    """The SDK's provider of tracers, with a bounded way to one collector."""

    def __init__(self, endpoint: str, counter: Counter) -> None:
        """`counter`: of spans by result."""
        self.provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self.provider.add_span_processor(_Bounded(_Watched(endpoint, counter), counter, _most_waiting()))

    def close(self) -> None:
        """Sends what waits, for at most `CLOSE_SECONDS`."""
        closing = threading.Thread(target=self.provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


class _Watched(SpanExporter):
    """Counts what is sent and what is lost, and reports the first loss and the next success."""

    def __init__(self, endpoint: str, counter: Counter) -> None:
        self.done = 0
        """Spans that are no longer on their way."""
        self._shown, self._inner = without_password(endpoint), OTLPSpanExporter(endpoint)
        self._sent, self._failed = counter.labels("sent"), counter.labels("failed")
        self._is_failing = False
        self._words = _FirstWords()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._words.clear()
        try:
            result = self._inner.export(spans)
        except Exception as error:  # whatever it is, spans are not worth more than themselves
            result = SpanExportResult.FAILURE
            self._words.note(type(error).__name__)
        is_sent = result is SpanExportResult.SUCCESS
        (self._sent if is_sent else self._failed).inc(len(spans))
        self.done += len(spans)
        if self._is_failing == is_sent:
            self._is_failing = not is_sent
            self._report()
        return result

    def _report(self) -> None:
        if self._is_failing:
            _LOG.warning("spans are lost: %s does not take them (%s)", self._shown, self._words.text)
        else:
            _LOG.info("spans are sent again: %s takes them", self._shown)

    def shutdown(self) -> None:
        self._inner.shutdown()  # type: ignore[no-untyped-call]


class _Bounded(SpanProcessor):
    """The SDK's batches, which it does not count when they are full."""

    def __init__(self, exporter: _Watched, counter: Counter, most: int) -> None:
        self._exporter, self._most, self._dropped = exporter, most, counter.labels("dropped")
        self._begun = 0
        try:
            self._batches = BatchSpanProcessor(exporter, max_queue_size=most)
        except ValueError as error:
            raise InputError(f"OpenTelemetry's batches: {error}; see the variables OTEL_BSP_…") from None

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        """Nothing is known yet."""

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if self._begun - self._exporter.done >= self._most:
            self._dropped.inc()
            return
        self._begun += 1
        self._batches.on_end(span)

    def shutdown(self) -> None:
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._batches.force_flush(timeout_millis)


class _FirstWords(logging.Handler):
    """What OpenTelemetry itself says first about a failure. Its own lines, one for each attempt, are not logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        logger = logging.getLogger("opentelemetry")
        logger.handlers[:], logger.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        self.note(record.getMessage())

    def note(self, text: str) -> None:
        self.text = self.text or text

    def clear(self) -> None:
        self.text = ""


def _resource() -> Resource:
    """The environment's attributes override these."""
    own = Resource({"service.name": "quire", "service.version": __version__})
    return Resource.create().merge(own).merge(OTELResourceDetector().detect())


def _most_waiting() -> int:
    text = os.environ.get(MOST_WAITING, str(DEFAULT_WAITING))
    if not text.isdigit() or int(text) == 0:
        raise InputError(f"{MOST_WAITING} is {text!r}: give a whole number from 1 on")
    return int(text)
