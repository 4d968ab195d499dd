"""Publishes events over ZeroMQ, on a thread of its own: the engine never waits for a reader.

engine's thread ──put──▶ queue, bounded ──▶ thread: encode, number ──▶ PUB ──▶ readers
                                                 ▲ REQ: from which number on?
                                               ROUTER, replay ──▶ the batches that are kept, then the end
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from quire.core.errors import InputError
from quire.engine.engine import Engine
from quire.kv_events.collector import AllCleared, BlockEvent, Collector
from quire.kv_events.wire import SEQUENCE_BYTES, Journal, payload
from quire.options.event_address import EventAddress
from quire.options.extras import naming_extras

MOST_WAITING = 1000
"""Batches that wait to be encoded. If there are more, readers get the event that clears all blocks."""
LOOK_SECONDS = 0.05
"""How often the thread looks for questions while there is nothing to publish."""
CLOSE_SECONDS = 2.0
_log = logging.getLogger(__name__)


def require_packages() -> None:
    """Before anything expensive happens."""
    with naming_extras("--kv-events"):
        for package in ("zmq", "msgpack"):
            import_module(package)


def publish_events(engine: Engine, address: EventAddress, topic: str) -> Publisher:
    """From now on; the first batch says that nothing is cached."""
    return Publisher(Collector(engine), address, topic)


class Publisher:
    def __init__(self, collector: Collector, address: EventAddress, topic: str = "") -> None:
        self._collector, self._topic = collector, topic.encode()
        self._queue: queue.Queue[tuple[float, Sequence[BlockEvent]] | None] = queue.Queue(MOST_WAITING)
        self._has_lost = False
        self._journal = Journal()
        require_packages()
        import zmq

        self._context, self._sockets = zmq.Context(), list[Any]()
        self._pub = self._socket(zmq.PUB, address.publish, address.is_bound)
        self._replay = None if address.replay is None else self._socket(zmq.ROUTER, address.replay, True)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def _socket(self, sort: int, address: str, is_bound: bool) -> Any:
        import zmq

        made = self._context.socket(sort)
        self._sockets.append(made)
        try:
            made.bind(address) if is_bound else made.connect(address)
        except zmq.ZMQError as error:
            self._close_sockets()
            raise InputError(f"--kv-events cannot use {address} ({error}): give a free address") from None
        return made

    def flush(self) -> None:
        """Publishes what has happened since the last call. Called between steps; never waits."""
        events = self._collector.take()
        if self._has_lost and not self._queue.full():
            events, self._has_lost = [AllCleared(), *events], False
        if not events:
            return
        try:
            self._queue.put_nowait((time.time(), events))
        except queue.Full:
            if not self._has_lost:
                _log.warning("KV events: %d batches wait to be sent, events are lost", MOST_WAITING)
            self._has_lost = True

    def close(self) -> None:
        """Sends what waits, for at most `CLOSE_SECONDS`."""
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            return
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            self._guarded(self._answer)
            try:
                waiting = self._queue.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            if waiting is None:
                break
            self._guarded(partial(self._send, *waiting))
        self._close_sockets()

    def _close_sockets(self) -> None:
        """What was sent may still be on its way for `CLOSE_SECONDS`."""
        for one in self._sockets:
            one.close(linger=int(1000 * CLOSE_SECONDS))
        self._context.term()

    def _guarded(self, act: Callable[[], None]) -> None:
        """A socket that fails does not end the thread: readers see a gap."""
        try:
            act()
        except Exception:
            _log.exception("KV events: a batch or an answer was not sent")

    def _send(self, seconds: float, events: Sequence[BlockEvent]) -> None:
        self._pub.send_multipart((self._topic, *self._journal.add(payload(seconds, events))))

    def _answer(self) -> None:
        """Answers all readers that ask for what they missed."""
        while self._replay is not None and self._replay.poll(0):
            frames = self._replay.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != SEQUENCE_BYTES:
                continue  # not a question
            for number, batch in self._journal.since(frames[2]):
                self._replay.send_multipart((frames[0], b"", number, batch))
