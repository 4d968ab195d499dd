"""What is logged, counted and explained while the engine says nothing."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.core.reasons import Why
from quire.explain.status import Status
from quire.models.read import read_model
from quire.options.run import RunOptions
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.serve.client import EngineClient
from quire.serve.messages import EngineSetup, EngineTick
from quire.serve.metrics import Metrics
from quire.serve.pending import PendingRequest
from quire.serve.progress import Progress
from quire.serve.silence import Watch, silent_reports
from serve_kit import Clock
from small_engines import request

EMPTY = Status(0, 0, {}, (), (), {}, {})


def client_at(clock: Clock) -> EngineClient:
    client = EngineClient(EngineSetup(Path(), {}, RunOptions()), Progress(10.0, clock), lambda *_a, **_k: None)
    client._life = SimpleNamespace(is_ready=True)  # type: ignore[assignment]
    client.progress.reset()
    return client


def add(client: EngineClient, name: str) -> PendingRequest:
    client.tickets[name] = PendingRequest(request(name, 9, 9), asyncio.Queue())
    return client.tickets[name]


@pytest.mark.story
def test_a_stall_is_logged_once_and_so_is_its_end() -> None:
    """An engine that loads has not stalled."""
    clock, lines = Clock(), []
    client = client_at(clock)
    watch = Watch(client, lambda event, level, **fields: lines.append((event, level, fields)))
    add(client, "a-0")
    client.progress.note(7, is_idle=False)
    clock.now += 11
    client._life.is_ready = False  # type: ignore[union-attr]
    watch.look()
    assert not lines
    client._life.is_ready = True  # type: ignore[union-attr]
    for _ in range(3):
        watch.look()
    assert lines == [("engine_stalled", "error", {"step": 7, "seconds": 11, "requests": 1, "names": ["a-0"]})]
    client.progress.note(8, is_idle=False)
    for _ in range(3):
        watch.look()
    assert lines[1:] == [("engine_resumed", "warning", {"step": 8, "seconds": 0, "requests": 1})]


def test_the_http_process_says_of_each_request_what_it_knows() -> None:
    client = client_at(Clock())
    add(client, "a-0")
    running = add(client, "a-1")
    running.hit_tokens, running.output_tokens = 0, 5
    found = asyncio.run(silent_reports(client, ("a-0", "a-1", "a-2")))
    assert [one["status"] for one in found] == ["waiting", "running", "ended"]
    assert [one["code"] for one in found] == ["engine_silent", "engine_silent", None]
    assert found[1]["numbers"]["output_tokens"] == 5


@pytest.fixture(scope="module")
def plan() -> Any:
    return make_plan(read_model("gemma-3-27b"), Settings(), Budget(pool_bytes=1 << 33))


def gauges(plan: Any, client: EngineClient) -> dict[str, float]:
    text = Metrics(plan, client, lambda: False).text().decode()
    found = re.findall(r'^quire_requests_(?:waiting\{reason="(\w+)"\}|(running)) (\S+)$', text, re.MULTILINE)
    return {reason or running: float(value) for reason, running, value in found}


@pytest.mark.story
def test_requests_that_the_engine_has_not_reported_count_as_submitted(plan: Any) -> None:
    """Two dozen calls were open, and the gauges showed one: the engine was in a long step."""
    client = client_at(Clock())
    for number in range(24):
        add(client, f"a-{number}")
    assert gauges(plan, client)["submitted"] == 24
    status = replace(EMPTY, running=1, waiting={Why.MEMORY.value: 3})
    client.tick = EngineTick(1, False, status=status, handed={"waiting": 2})
    found = gauges(plan, client)
    assert (found["running"], found["memory"], found["submitted"]) == (1, 3, 18)
    client.tickets.clear()
    assert gauges(plan, client)["submitted"] == 0


@pytest.mark.story
def test_every_reason_has_a_sample_while_nothing_waits(plan: Any) -> None:
    """A panel had no line until a request waited for the first time."""
    found = gauges(plan, client_at(Clock()))
    assert set(found.values()) == {0}
    assert {"running", "submitted", "queued", "memory", "rows", "load_failed"} <= set(found)
