"""The parts between hub and fronts, without a server: routes, limits, sums, choices."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from quire.core.sampling import Sampling
from quire.serve.allowance import Allowances
from quire.serve.away import EngineStarting
from quire.serve.errors import ApiError
from quire.serve.fronts import choice
from quire.serve.fronts.dispatch import Dispatcher
from quire.serve.fronts.hub import Hub
from quire.serve.fronts.messages import Enter, ForEngine, FrontFigures, Left, Lost, ViewAllowance
from quire.serve.fronts.metrics import AllProcesses
from quire.serve.fronts.processes import FrontProcess
from quire.serve.fronts.routing import Router
from quire.serve.fronts.shares import HubAllowances
from quire.serve.keys import Tenant
from quire.serve.lease_register import LeaseRegister
from quire.serve.messages import Cancel, EngineTick, RequestUpdate, Submit
from quire.serve.registry import CallRegistry
from quire.serve.responses.store import ResponseStore
from quire.serve.service import Shared
from quire.serve.settings import ServeSettings
from quire.text.question import Question
from small_engines import request

METERED = Tenant("t", "t", tokens_per_minute=1000)


# ── the engine's side ─────────────────────────────────────────────────────


def test_each_front_gets_the_updates_of_its_own_requests_and_the_hub_none() -> None:
    router = Router()
    router.note(Submit((request("a-0", 9, 9), request("a-1", 9, 9)), front=1))
    router.note(Submit((request("b-0", 9, 9),), front=2))
    updates = tuple(RequestUpdate(name, (7,)) for name in ("a-0", "a-peers-0"))
    tokens = dict.fromkeys(("b-0", "a-1", "a-peers-1"), (8,))
    routed = router.routed(EngineTick(5, False, tokens, updates, books="x"))
    assert (routed.tick.tokens, routed.tick.updates, routed.tick.books) == ({}, (), "x")
    parts = {front: pickle.loads(part) for front, part in routed.parts.items()}
    assert {front: [one.name for one in part.updates] for front, part in parts.items()} == {1: ["a-0"], 2: []}
    assert {front: part.tokens for front, part in parts.items()} == {1: {"a-1": (8,)}, 2: {"b-0": (8,)}}
    assert all((part.steps, part.is_idle) == (5, False) for part in parts.values())


def test_requests_that_have_ended_or_were_cancelled_are_not_remembered() -> None:
    """A request's name is of no use after its end: a server that runs for months would keep all of them."""
    router = Router()
    router.note(Submit(tuple(request(f"a-{number}", 9, 9) for number in range(4)), front=1))
    ends = (RequestUpdate("a-0", ending="length"), RequestUpdate("a-1", refusal="no"), RequestUpdate("a-2", (1,)))
    assert len(pickle.loads(router.routed(EngineTick(1, False, {}, ends)).parts[1]).updates) == 3
    assert router.names_of(1) == ("a-2", "a-3")
    router.forget(["a-2", "a-3"])
    assert not router.names_of(1)
    assert not router.routed(EngineTick(2, True, {}, ends)).parts


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


async def until(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(0.001)


# ── allowances ────────────────────────────────────────────────────────────


def question(max_tokens: int, is_length_open: bool = True) -> Question:
    prompt = np.arange(10, dtype=np.int32)
    return Question((prompt,), ("",), (max_tokens,), Sampling(), is_length_open=is_length_open)


class HubOf:
    """Answers a front's questions about allowances; another front takes tokens after the first look."""

    def __init__(self, taken: int) -> None:
        self.allowances, self.taken = Allowances(8, lambda: 0.0), taken
        self.entered: dict[int, Enter] = {}

    async def answer(self, asked: Any) -> Any:
        if isinstance(asked, ViewAllowance):
            left = self.allowances.tokens_left(asked.tenant)
            if self.taken:
                self.allowances.enter(asked.tenant, 1, self.taken)
                self.taken = 0
            return SimpleNamespace(requests={}, retry_seconds=1, tokens_left=lambda _tenant, left=left: left)
        self.allowances.enter(asked.tenant, asked.requests, asked.tokens)
        self.entered[asked.grant] = asked
        return 7

    def note(self, left: Left) -> None:
        call = self.entered.pop(left.grant)
        self.allowances.leave(call.tenant, call.requests, left.unused_tokens)


@pytest.mark.parametrize(("taken", "tokens"), [(0, 1000), (400, 600)])
def test_an_answer_of_open_length_takes_what_other_fronts_have_left(taken: int, tokens: int) -> None:
    """Also if they take it between the look and the entrance."""

    async def work() -> None:
        hub = HubOf(taken)
        front = HubAllowances(SimpleNamespace(ask=hub.answer, send=hub.note))  # type: ignore[arg-type]
        async with front.admitting(METERED, question(5000)) as (fitting, grant):
            grant.enter(METERED, fitting.request_count, fitting.tokens)
        assert (fitting.tokens, grant.retry_seconds) == (tokens, 7)
        assert hub.allowances.tokens_left(METERED) == 0
        grant.leave(METERED, 1, 300)
        assert (hub.allowances.tokens_left(METERED), len(hub.entered)) == (300, 0)

    run(work())


def test_a_refusal_is_passed_on_and_a_call_that_does_not_begin_is_given_back() -> None:
    async def work() -> None:
        hub = HubOf(0)
        front = HubAllowances(SimpleNamespace(ask=hub.answer, send=hub.note))  # type: ignore[arg-type]
        with pytest.raises(ApiError, match="this key may have 1,000 a minute"):
            async with front.admitting(METERED, question(5000, False)):
                raise AssertionError("it was admitted")
        with pytest.raises(ZeroDivisionError):
            async with front.admitting(METERED, question(100)):
                raise ZeroDivisionError  # before it entered
        assert (hub.allowances.total, hub.allowances.tokens_left(METERED)) == (0, 1000)
        front.is_draining = True
        with pytest.raises(ApiError, match="about to stop"):
            async with front.admitting(METERED, question(100)):
                raise AssertionError("it was admitted")

    run(work())


def test_a_call_whose_client_leaves_while_the_hub_counts_it_is_given_back() -> None:
    async def work() -> None:
        hub, counted = HubOf(0), asyncio.Event()

        async def slowly(asked: Any) -> Any:
            await counted.wait()
            return await hub.answer(asked)

        front = HubAllowances(SimpleNamespace(ask=slowly, send=hub.note))  # type: ignore[arg-type]

        async def call() -> None:
            async with front.admitting(METERED, question(100, False)):
                raise AssertionError("it was admitted")

        calling = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        counted.set()
        await until(lambda: not hub.entered and hub.allowances.total == 0)
        await asyncio.sleep(0.01)
        assert (hub.allowances.total, hub.allowances.tokens_left(METERED)) == (0, 1000)

    run(work())


# ── the hub ───────────────────────────────────────────────────────────────


class Engine:
    """Takes commands of its second life."""

    lives, is_ready = 2, True

    def __init__(self) -> None:
        self.commands: list[Any] = []

    def pass_on(self, command: Any) -> None:
        if not self.is_ready:
            raise EngineStarting("not ready")
        self.commands.append(command)


def test_a_request_for_an_engine_that_has_died_reaches_no_other() -> None:
    """It was on its way while the engine died. Its front is told, and its client gets the error."""

    async def work() -> None:
        engine, sent = Engine(), []
        shared = Shared(Allowances(8), ResponseStore(0), CallRegistry())
        processes, leases = AllProcesses(CollectorRegistry()), LeaseRegister(engine)  # type: ignore[arg-type]
        hub = Hub(engine, shared, processes, [], lambda *_a, **_k: None, leases=leases)  # type: ignore[arg-type]
        front: Any = SimpleNamespace(number=1, names=set(), channel=SimpleNamespace(send=sent.append))
        late, right = (Submit((request(name, 9, 9),), 1) for name in ("a-0", "b-0"))
        hub._for_engine(front, ForEngine(1, late))
        hub._for_engine(front, ForEngine(2, right))
        assert (engine.commands, front.names) == ([right], {"b-0"})
        (lost,) = sent
        assert isinstance(lost, Lost)
        assert (lost.names, lost.error.code) == (("a-0",), "engine_starting")
        hub._for_engine(front, ForEngine(2, Cancel(("b-0",))))
        assert not front.names

    run(work())


def test_the_next_connection_goes_to_the_front_that_has_the_fewest() -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            fronts = [_front(number) for number in (1, 2, 3)]
            fronts[0].connections = 2
            clients = [socket.create_connection(listener.getsockname()) for _ in range(6)]
            dispatcher = Dispatcher(listener, lambda: fronts, most_connections=7)
            dispatcher.resume()
            await until(lambda: sum(front.connections for front in fronts) == 7)
            await asyncio.sleep(0.01)
            assert sorted(front.connections for front in fronts) == [2, 2, 3]
            dispatcher.close()
            assert clients[5].recv(20).startswith(b"HTTP/1.1 503")
            for one in (*clients, *(front.handover for front in fronts)):
                one.close()

    run(work())


def _front(number: int) -> FrontProcess:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.detach()
    return FrontProcess(number, None, None, ours)  # type: ignore[arg-type]


# ── metrics ───────────────────────────────────────────────────────────────


class Figures:
    """A front's registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter("quire_http_calls", "calls", ("path",), registry=self.registry)
        self.times = Histogram("quire_call_seconds", "seconds", buckets=(1, 2), registry=self.registry)
        Gauge("process_resident_memory_bytes", "bytes", registry=self.registry).set(5)

    def count(self, path: str, seconds: float) -> None:
        self.calls.labels(path).inc()
        self.times.observe(seconds)

    def now(self) -> FrontFigures:
        return FrontFigures(pickle.loads(pickle.dumps(tuple(self.registry.collect()))), 2)


def test_sums_never_go_back_when_a_front_dies() -> None:
    everything, first, second = AllProcesses(CollectorRegistry()), Figures(), Figures()
    for front, path, seconds in ((first, "/a", 0.5), (first, "/a", 1.5), (second, "/a", 9), (second, "/b", 0.1)):
        front.count(path, seconds)

    def shown(**figures: FrontFigures) -> list[str]:
        text = everything.text({int(name[1:]): one for name, one in figures.items()}).decode()
        return [line for line in text.splitlines() if line and not line.startswith("#")]

    lines = shown(f1=first.now(), f2=second.now())
    assert 'quire_http_calls_total{path="/a"} 3.0' in lines
    buckets = [line for line in lines if "bucket" in line]
    assert [line.rpartition(" ")[2] for line in buckets] == ["2.0", "3.0", "4.0"]
    assert {line for line in lines if line.startswith("process_")} == {
        f'process_resident_memory_bytes{{process="{number}"}} 5.0' for number in (1, 2)
    }
    assert everything.open_requests == 4
    first.count("/a", 1)
    everything.front_died(1)
    lines = shown(f2=second.now())
    assert 'quire_http_calls_total{path="/a"} 3.0' in lines, "what was shown stays"
    assert not any('process="1"' in line for line in lines)
    assert everything.open_requests == 2
    new = Figures()
    new.count("/a", 1)
    assert 'quire_http_calls_total{path="/a"} 4.0' in shown(f1=new.now(), f2=second.now())
    assert 'quire_http_calls_total{path="/a"} 4.0' in shown(f2=second.now()), "one that does not answer keeps its last"


# ── how many ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("cores", "device", "processes"),
    [(2, "cuda", 1), (7, "cuda", 1), (8, "cuda", 2), (12, "cuda", 3), (16, "cuda", 4), (96, "cuda", 4), (96, "cpu", 1)],
)
def test_the_default_follows_the_cores(
    cores: int, device: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "usable_cores", lambda: cores)
    assert choice.http_processes(ServeSettings(), device) == processes
    assert choice.http_processes(ServeSettings(http_processes=3), device) == 3
    small = ServeSettings(bodies_bytes=4 << 20)
    assert choice.http_processes(small, device) == 1


def test_a_container_has_the_cores_that_its_time_is_worth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice.os, "sched_getaffinity", lambda _process: set(range(16)))
    file = tmp_path / "cpu.max"
    for text, cores in (("max 100000\n", 16), ("250000 100000\n", 3), ("3200000 100000", 16), ("nonsense", 16)):
        file.write_text(text)
        assert choice.usable_cores(file) == cores
    assert choice.usable_cores(tmp_path / "none") == 16


def test_more_processes_than_bodies_have_room_for_are_refused() -> None:
    with pytest.raises(Exception, match="http_processes is 65: give at most 64"):
        ServeSettings(http_processes=65)
    with pytest.raises(Exception, match="give at most 2, as bodies_bytes, 8,388,608, is divided"):
        ServeSettings(http_processes=3, bodies_bytes=8 << 20)
