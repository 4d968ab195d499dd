"""The publisher on real sockets: order, numbers, replay, and what happens when a port is taken or readers are slow."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kv_follower import KvFollower, decoded, replayed
from quire.core.errors import InputError, MissingPackage
from quire.core.request import Request
from quire.engine.engine import Engine
from quire.kv_events import publisher as module
from quire.kv_events.collector import Collector
from quire.kv_events.publisher import Publisher
from quire.options.event_address import EventAddress, event_address
from small_engines import engine_for, small_plan

pytest.importorskip("msgpack", reason="MessagePack is not installed: pip install '.[events]'")
zmq = pytest.importorskip("zmq", reason="ZeroMQ is not installed: pip install '.[events]'")
SECONDS = 20.0


def free_address() -> EventAddress:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], other.getsockname()[1]
    return event_address(",".join(f"tcp://127.0.0.1:{port}" for port in ports))


@pytest.fixture
def context() -> Iterator[Any]:
    made = zmq.Context()
    yield made
    made.term()


def busy(engine: Engine, publisher: Publisher, name: str) -> None:
    engine.submit(Request(name, np.arange(150, dtype=np.int32) + len(name) * 1000, 4))
    while engine.step():
        publisher.flush()
    publisher.flush()


def test_a_reader_that_came_late_or_lost_batches_asks_for_them_again(context: Any) -> None:
    engine, _ = engine_for(small_plan(["full"], 64))
    address, follower = free_address(), KvFollower()
    publisher = Publisher(Collector(engine), address, "kv@pod@model")
    busy(engine, publisher, "a")
    follower.repair(replayed(context, address.replay, 0, SECONDS))
    assert follower.blocks
    reading = context.socket(zmq.SUB)
    reading.rcvtimeo = int(1000 * SECONDS)
    reading.connect(address.publish)
    reading.setsockopt(zmq.SUBSCRIBE, b"kv@")
    before, name = follower.expected, "b"
    while not reading.poll(100):  # a subscription takes a moment to arrive
        busy(engine, publisher, name)
        name += "b"
    topic, number, batch = reading.recv_multipart()
    assert topic == b"kv@pod@model"
    if follower.has_gap(number):
        follower.repair(replayed(context, address.replay, follower.expected, SECONDS))
    follower.read(number, batch)
    assert follower.expected > before
    reading.close(linger=0)
    publisher.close()


def test_the_first_batch_says_that_nothing_is_there(context: Any) -> None:
    engine, _ = engine_for(small_plan(["full"], 64))
    address = free_address()
    publisher = Publisher(Collector(engine), address)
    publisher.flush()
    (number, batch), _ = replayed(context, address.replay, 0, SECONDS)
    assert number == bytes(8)
    assert decoded(batch)[1:] == [[["AllBlocksCleared"]], 0]
    publisher.close()


def test_what_is_not_a_question_is_ignored(context: Any) -> None:
    engine, _ = engine_for(small_plan(["full"], 64))
    address = free_address()
    publisher = Publisher(Collector(engine), address)
    publisher.flush()
    asking = context.socket(zmq.DEALER)
    asking.connect(address.replay)
    asking.send_multipart((b"", b"hello"))
    asking.send(b"x")
    assert len(replayed(context, address.replay, 0, SECONDS)) == 2
    asking.close(linger=0)
    publisher.close()


def test_a_taken_port_is_refused_in_one_line(context: Any) -> None:
    engine, _ = engine_for(small_plan(["full"], 64))
    address = free_address()
    taken = context.socket(zmq.PUB)
    taken.bind(address.publish)
    with pytest.raises(InputError, match="--kv-events cannot use"):
        Publisher(Collector(engine), address)
    taken.close(linger=0)


@pytest.mark.parametrize("package", ["zmq", "msgpack"])
def test_a_package_that_is_not_installed_is_named_with_its_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=rf"--kv-events needs {package}: install it with .*\[events\]"):
        module.require_packages()


def test_after_lost_batches_readers_are_told_that_nothing_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of one batch, and a thread that does not take it."""
    monkeypatch.setattr(module, "MOST_WAITING", 1)
    monkeypatch.setattr(Publisher, "_run", lambda _: None)
    engine, _ = engine_for(small_plan(["full"], 64))
    publisher = Publisher(Collector(engine), free_address())
    busy(engine, publisher, "a")
    publisher._queue.get_nowait()
    busy(engine, publisher, "b")
    waiting = publisher._queue.get_nowait()
    assert waiting is not None
    assert type(waiting[1][0]).__name__ == "AllCleared"
    monkeypatch.undo()
    publisher._queue.put(None)
    publisher._run()
