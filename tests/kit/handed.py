"""Two engines of tiny models on loopback: one computes prompts for the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from quire.build.peers import fingerprint_of
from quire.cache.audit import audit
from quire.check.host import evict_unpinned
from quire.core.events import Event, LoadFinished
from quire.core.request import Request
from quire.core.rules import Rules
from quire.engine.engine import Engine, Stream
from quire.handover.decode_side import HandOver
from quire.handover.prefill_side import Prefills
from quire.movers.offering import PeerServer
from quire.movers.peer import PeerSource
from quire.options.tiers import Tiers
from quire.plan.plan import Plan
from quire.tiers.stack import Stack
from ranked import RankedRunner
from tiny_models import Service

SECRET = b"a secret of the tests"
HOST_BYTES = 4 << 20


def prompt_of(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 97, length).astype(np.int32)


class PrefillSide:
    """An engine that computes prompts for others."""

    def __init__(
        self, name: str, plan: Plan, secret: bytes = SECRET, port: int = 0, held_seconds: float = 30.0
    ) -> None:
        self.service = Service(name, plan, tiers=Tiers(HOST_BYTES))
        self.stack = self.service.stack
        self.engine = Engine(plan, self.service.runner, tier=self.stack, keeper=self.stack)
        self.wake = threading.Event()
        self.prefills = Prefills(plan, self.engine, self.stack, self.wake.set)
        fingerprint = fingerprint_of(plan, "tiny")
        self.server = PeerServer(("127.0.0.1", port), secret, plan, fingerprint, self.prefills, held_seconds)

    def turn(self) -> None:
        self.prefills.turn()
        if not self.engine.step() and not len(self.prefills._running):
            self.wake.wait(0.002)
            self.wake.clear()

    @contextmanager
    def running(self) -> Iterator[PrefillSide]:
        """In a thread of its own."""
        ended = threading.Event()

        def loop() -> None:
            while not ended.is_set():
                self.turn()

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            yield self
        finally:
            self.server.close()
            ended.set()
            thread.join()
            for _ in range(1000):  # threads of the wire notice one after another
                if not self.server.connections:
                    break
                time.sleep(0.01)
            self.prefills.turn()
            self.engine.drain()
            self.stack.close()

    def check_nothing_is_held(self) -> None:
        assert not len(self.prefills)
        assert not self.prefills.held_blocks
        assert not self.engine.streams
        check_books(self.engine, self.stack)


class DecodeSide:
    """An engine that asks another one for its prompts."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        port: int,
        secret: bytes = SECRET,
        seconds: float = 20.0,
        frame_seconds: float = 5.0,
        weights: str = "tiny",
    ) -> None:
        self.source = PeerSource(("127.0.0.1", port), secret, plan, fingerprint_of(plan, weights), frame_seconds)
        self.events: list[Event] = []
        if plan.tensor_parallel == 1:
            service = Service(name, plan, tiers=Tiers(HOST_BYTES, connectors=(self.source,)), weights=weights)
            self.runner: Any = service.runner
            self.stack = service.stack
            self.arena = self.runner.arena
        else:
            self.runner = RankedRunner(name, plan)
            self.stack = self.runner.attach(HOST_BYTES, [self.source], weights)
            self.arena = self.runner.whole
        (self.tier,) = self.stack.tiers
        self.hand_over = HandOver(self.stack, self.tier, self.source, seconds)
        heard: list[Callable[[Event], None]] = [self.events.append, self.hand_over.on_event]
        self.engine = Engine(
            plan, self.runner, tier=self.stack, keeper=self.stack, rules=Rules(load_seconds=10.0), listeners=heard
        )
        self.streams: dict[str, Stream] = {}

    def send(self, name: str, prompt: np.ndarray, outputs: int, scope: str = "") -> None:
        request = Request(name, prompt, outputs, scope=scope)
        if not self.hand_over.take(self.engine, request):
            self.streams[name] = self.engine.submit(request)

    def cancel(self, name: str) -> None:
        self.hand_over.cancel(name)
        self.engine.cancel(name)

    def turn(self) -> bool:
        """False: nothing is left to do."""
        for request in self.hand_over.turn():
            self.streams[request.name] = self.engine.submit(request)
        is_busy = self.engine.step()
        return is_busy or len(self.hand_over) > 0 or bool(self.hand_over._back)

    def drain(self) -> None:
        while self.turn():
            pass

    def ask(self, name: str, prompt: np.ndarray, outputs: int, scope: str = "") -> list[int]:
        self.send(name, prompt, outputs, scope)
        self.drain()
        return self.streams[name].tokens().tolist()

    def loaded(self) -> list[int]:
        found = [event.tokens for event in self.events if isinstance(event, LoadFinished)]
        self.events.clear()
        return found

    def forget(self) -> None:
        """What lies in the pool and in host memory goes, and every byte of the pool is spoilt."""
        self.engine.drop_cache()
        self.arena.bytes.fill_(0xFF)
        cache = self.stack.held.cache
        evict_unpinned(cache)
        assert cache.free_blocks == cache.blocks

    def check_nothing_is_held(self) -> None:
        self.drain()
        self.hand_over.turn()
        assert not len(self.source)
        assert not self.source._named
        for _ in range(1000):  # a thread that reads for nobody any more notices when its record ends
            if not self.stack.loads._open:
                break
            time.sleep(0.01)
        assert not self.stack.loads._open
        check_books(self.engine, self.stack)

    def close(self) -> None:
        self.hand_over.close()
        self.stack.close()


def check_books(engine: Engine, stack: Stack) -> None:
    assert engine.scheduler.is_idle()
    for memory in engine.scheduler.memories:
        audit(memory, {})
    assert not any(record.pins for record in stack.held.cache._records.values())
    used = sum(len(record.blocks) for record in stack.held.cache._records.values())
    assert stack.held.cache.free_blocks + used == stack.held.cache.blocks
