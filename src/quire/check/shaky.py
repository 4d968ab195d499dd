"""A store below host memory that takes its time, fails, loses transfers, and works again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from quire.check.faulty import Fate
from quire.check.steering import Steering
from quire.core.connector import Layout, TierFailed
from quire.core.tier import is_of

FAILURE_RATE, HANG_RATE, LOSS_RATE = 0.06, 0.03, 0.02
READS = (Fate.DONE,) * 8 + (Fate.FAILED, Fate.LATE, Fate.LOST, Fate.LESS)
"""How a transfer from it ends."""


class ShakyStore:
    def __init__(self, name: str, random: Random, steering: Steering, load_seconds: float, fates: list[Fate]) -> None:
        self.name = name
        self._kept: dict[bytes, bytes] = {}
        self._random, self._steering, self._load_seconds, self._fates = random, steering, load_seconds, fates

    def register(self, layout: Layout) -> None:
        del layout
        self._pass()

    def has(self, names: Sequence[bytes]) -> list[bool]:
        return [name in self._kept for name in names]

    def write(self, name: bytes, parts: Sequence[memoryview]) -> None:
        """Half of the time what is written is read before it takes its time, else after."""
        data = b"".join(parts) if self._random.random() < 0.5 else None
        if self._random.random() < HANG_RATE:
            self._steering.pause(math.inf)
        self._pass()
        self._kept[name] = data or b"".join(parts)

    def read(self, name: bytes, parts: Sequence[memoryview]) -> bool:
        data = self._kept.get(name)
        if data is None:
            return False
        fate = self._random.choice(READS) if self._steering.is_in_task else Fate.DONE
        self._fates += [fate] * (fate is not Fate.DONE)
        _fill(parts, data, 0.5)  # in case it is read too early
        self._wait(fate)
        if fate is Fate.LESS:
            self._kept.pop(name, None)
            return False
        _fill(parts, data, 1.0)
        return True

    def _wait(self, fate: Fate) -> None:
        if fate is Fate.LATE:
            self._steering.pause(self._load_seconds + 2)
        elif fate is Fate.LOST:
            self._steering.pause(math.inf)
        elif self._random.random() < 0.5:
            self._steering.pause(self._random.randint(1, 3))
        if fate is Fate.FAILED:
            raise TierFailed("it does not answer")

    def drop(self, name: bytes) -> None:
        self._kept.pop(name, None)

    def forget(self, scope: bytes) -> None:
        """Takes time, in which requests may ask for what it still has."""
        self._steering.pause(self._random.choice((1, 5, 10)))
        self._pass()
        self._kept = {name: data for name, data in self._kept.items() if not is_of(name, scope)}

    def close(self) -> None: ...

    def _pass(self) -> None:
        """Takes its time, or fails; now and then a record is lost."""
        if not self._steering.is_in_task:
            return
        if self._random.random() < 0.5:
            self._steering.pause(self._random.randint(1, 3))
        if self._kept and self._random.random() < LOSS_RATE:
            self._kept.pop(self._random.choice(list(self._kept)))
        if self._random.random() < FAILURE_RATE:
            raise TierFailed("it does not feel like it")


def _fill(parts: Sequence[memoryview], data: bytes, share: float) -> None:
    """Writes a record, or so much of each part."""
    begin = 0
    for part in parts:
        size = int(share * len(part))
        part[:size] = data[begin : begin + size]
        begin += len(part)
