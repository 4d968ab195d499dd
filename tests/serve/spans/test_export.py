"""Spans that cannot be sent are counted, and nothing waits for them."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from collector import WAIT_SECONDS, collector
from quire.core.errors import InputError
from quire.serve.metrics import span_counter
from quire.serve.spans import exporter
from quire.serve.spans.spans import Spans
from running_server import running_server
from serve_kit import SIZE, chat
from span_kit import SOON

pytestmark = pytest.mark.servers

SCOPE = {"method": "GET", "path": "/v1/models", "scheme": "http", "headers": []}


@contextmanager
def spans_to(address: str) -> Iterator[tuple[Spans, Callable[[str], float]]]:
    """Spans, and how many have a result."""
    registry = CollectorRegistry()
    spans = Spans(address + "/v1/traces", span_counter(registry))

    def counted(result: str) -> float:
        return registry.get_sample_value("quire_spans_total", {"result": result}) or 0.0

    try:
        yield spans, counted
    finally:
        spans.close()


def make(spans: Spans, count: int) -> None:
    for _ in range(count):
        span = spans.call(SCOPE, "alice", time.time_ns())
        assert span is not None
        span.end(200, "/v1/models", {})


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SOON.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")


def test_what_does_not_fit_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that takes connections and never answers holds up one batch; the queue is bounded, whatever comes."""
    monkeypatch.setenv(exporter.MOST_WAITING, "8")
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        spans_to(f"http://127.0.0.1:{silent.getsockname()[1]}") as (spans, counted),
    ):
        make(spans, 100)
        assert counted("dropped") == 92
        assert counted("sent") == counted("failed") == 0


def test_all_that_fits_arrives_also_at_the_end() -> None:
    with collector() as found:
        with spans_to(found.address) as (spans, counted):
            make(spans, 30)
        assert len(found.spans) == counted("sent") == 30
        assert counted("dropped") == counted("failed") == 0


def test_a_collector_that_refuses_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """With its own answer; each attempt would be a line otherwise."""
    with (
        collector(404) as found,
        caplog.at_level(logging.INFO, "quire.spans"),
        spans_to(found.address) as (spans, counted),
    ):
        make(spans, 4)
        until(lambda: counted("failed") == 4)
        make(spans, 4)
        until(lambda: counted("failed") == 8)
    assert counted("sent") == 0
    (line,) = (one.getMessage() for one in caplog.records)
    assert f"{found.address}/v1/traces does not take them" in line
    assert "404" in line


def test_a_number_of_waiting_spans_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    monkeypatch.setenv(exporter.MOST_WAITING, "many")
    with pytest.raises(InputError, match="OTEL_BSP_MAX_QUEUE_SIZE is 'many': give a whole number"):
        Spans("http://127.0.0.1:1/v1/traces", span_counter(registry))


def test_a_server_serves_and_ends_without_its_collector(tiny_folder: Path) -> None:
    """There is none at this address: every call is answered, losses are counted and logged, and the server ends as
    one without spans does."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    environment = {**SOON, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1"}
    more = ("--model-name", "tiny", "--otel", f"http://127.0.0.1:{port}")
    with running_server(str(tiny_folder), *SIZE, *more, model="tiny", environment=environment) as server:
        with server.client() as client:
            for _ in range(3):
                assert chat(client, max_tokens=3).status_code == 200
            server.until("spans are lost", lambda: server.metric("quire_spans_total", result="failed") >= 12)
            assert chat(client, max_tokens=3).status_code == 200
        assert [one["level"] for one in server.told("spans")] == ["warning"]
    assert server.process.returncode == 0
    assert server.told("stopped")


def test_a_server_without_spans_does_not_import_the_sdk() -> None:
    """Off, they cost nothing: not even memory. (Other packages import the interface alone.)"""
    code = (
        "import sys; import quire.serve.server, quire.serve.fronts.front, quire.serve.engine_process\n"
        "from quire.serve.spans.destination import destination\n"
        "assert destination(None, {}) is None\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
