"""A small plan, host memory without torch, a connector that can be made to fail, a runner that marks records,
and an engine on all of them."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import numpy as np

from quire.check.host import evict_unpinned
from quire.check.promises import check_nothing_left
from quire.core.connector import Layout, TierFailed
from quire.core.events import Event, LoadFinished
from quire.core.request import Ending, Request
from quire.core.rules import Rules
from quire.core.step import Step, StepResult
from quire.core.tier import Blocks
from quire.engine.engine import Engine
from quire.models.shape import ModelShape
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.records import Records
from quire.plan.settings import Budget, Settings
from quire.tiers.stack import Stack
from small_kinds import KINDS

LAYOUT = Layout("c" * 64, 8, 1000, 100, "[]")


def small_plan(names: list[str], sheets: int = 200, block_tokens: int | None = None, unit_tokens: int = 8) -> Plan:
    shape = ModelShape("small", "test", tuple(KINDS[name] for name in names), max_length=150, weights_known=False)
    settings = Settings(
        batch_tokens=48,
        max_requests=4,
        page_tokens={"": 8},
        match_unit_tokens=unit_tokens,
        host_block_tokens=block_tokens,
    )
    return make_plan(shape, settings, Budget(sheets=(sheets,)))


def until(holds: Callable[[], bool]) -> None:
    """Waits for what other threads do."""
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.001)


class Bytes:
    """Host memory, as the stack sees it."""

    def __init__(self, blocks: int, block_bytes: int) -> None:
        self.blocks = blocks
        self.bytes = np.zeros((blocks, block_bytes), dtype=np.uint8)

    def parts(self, blocks: Sequence[int], size_bytes: int) -> list[memoryview]:
        each = self.bytes.shape[1]
        sizes = [min(each, size_bytes - place * each) for place in range(len(blocks))]
        return [memoryview(self.bytes[block])[:size] for block, size in zip(blocks, sizes, strict=True)]


class Drawer:
    """Keeps records in a dictionary. With a random source it fails and dawdles; nothing passes a closed gate."""

    name = "drawer"

    def __init__(self, random: Random | None = None) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.gate = threading.Event()
        self.gate.set()
        self._random = random

    def _pass(self, what: str) -> None:
        self.gate.wait()
        self.calls[what] += 1
        if self._random is not None:
            time.sleep(self._random.choice((0, 0, 0.001, 0.005)))
            if self._random.random() < 0.02:
                self.calls["failed"] += 1
                raise TierFailed("it does not feel like it")

    def register(self, layout: Layout) -> None: ...

    def has(self, names: Sequence[bytes]) -> list[bool]:
        return [name in self.kept for name in names]

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        self._pass("write")
        self.kept[name] = b"".join(parts)

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        data = self.kept.get(name)
        for part in parts if data is not None else ():
            part[:] = bytes(len(part))  # half written, should anybody look
        self._pass("read")
        begin = 0
        for part in parts if data is not None else ():
            part[:] = memoryview(data or b"")[begin : begin + len(part)]
            begin += len(part)
        return data is not None

    def drop(self, name: bytes) -> None:
        self.kept.pop(name, None)

    def close(self) -> None: ...


class Idle:
    """Yields a token at no cost: its position."""

    def __init__(self) -> None:
        self._flying: list[StepResult] = []

    def launch(self, step: Step) -> None:
        self._flying.append(StepResult(step.number, (step.starts + step.counts)[step.samples]))

    def collect(self) -> StepResult:
        return self._flying.pop(0)


class CheckingRunner(Idle):
    """Fills each record that goes out with bytes that follow from its name, and checks those of each that lands."""

    def __init__(self, plan: Plan, stack: Stack, memory: Bytes) -> None:
        self.checked = 0
        self._records, self._stack, self._memory = Records(plan), stack, memory
        super().__init__()

    def launch(self, step: Step) -> None:
        for store in step.stores:
            record = self._stack.stores._open[store.place.number].record
            pages = sum(len(pages) for _, _, pages in store.pages)
            assert bool(pages) == bool(record.size_bytes)
            for part in self._memory.parts(record.blocks, record.size_bytes):
                part[:] = marks(record.name, len(part))
            self._stack.note_stored(store.place.number)
        for number, _ in step.loads:
            self._check(number)
        super().launch(step)

    def _check(self, number: int) -> None:
        staged = self._stack.staged_load(number)
        for (name, size), blocks in zip(self._records.wanted(staged.load), staged.records, strict=True):
            self._compare(name, blocks, size)
        self._stack.note_landed(number)

    def _compare(self, name: bytes, blocks: Blocks, size: int) -> None:
        for part in self._memory.parts(blocks, size):
            assert bytes(part) == marks(name, len(part)), "bytes of another record have landed"
            self.checked += 1


def marks(name: bytes, size: int) -> bytes:
    mark = hashlib.sha256(name).digest()
    return (mark * (size // len(mark) + 1))[:size]


class World:
    """An engine on the real stack, with a few blocks of host memory and some connectors."""

    def __init__(self, names: list[str], connectors: Sequence[Drawer], blocks: int, load_seconds: float = 10.0) -> None:
        self.plan = small_plan(names)
        self.records = Records(self.plan)
        self.memory = Bytes(blocks, self.records.block_bytes)
        self.now = 0.0
        self.stack = Stack(self.records, self.memory, connectors, LAYOUT, lambda: self.now)
        self.runner = CheckingRunner(self.plan, self.stack, self.memory)
        self.told: list[Event] = []
        self.engine = Engine(
            self.plan,
            self.runner,
            tier=self.stack,
            keeper=self.stack,
            rules=Rules(load_seconds=load_seconds),
            listeners=[self.told.append],
        )

    def ask(self, name: str, prompt: np.ndarray, outputs: int = 3, scope: str = "") -> None:
        stream = self.engine.submit(Request(name, prompt.astype(np.int32), outputs, scope=scope))
        self.engine.drain()
        assert stream.ending is Ending.LENGTH

    def loaded(self) -> list[int]:
        return [event.tokens for event in self.told if isinstance(event, LoadFinished)]

    def drop_cache(self) -> None:
        self.engine.scheduler.reuse.index.drop()

    def forget(self) -> None:
        """Everything that is not below."""
        self.stack.flush()
        self.drop_cache()
        cache = self.stack.held.cache
        evict_unpinned(cache)
        assert cache.free_blocks == cache.blocks

    def check_nothing_is_held(self) -> None:
        """No record is pinned, none is on its way, and after the last request the pool holds nothing but the cache."""
        self.stack.flush()
        check_nothing_left(self.engine.scheduler)
        assert not self.stack.loads._open
        assert not len(self.stack.stores)
        cache = self.stack.held.cache
        assert cache.free_blocks + sum(len(one.blocks) for one in cache._records.values()) == cache.blocks
        assert not any(one.pins for one in cache._records.values())
