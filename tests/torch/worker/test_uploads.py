"""What a step needs arrives whole, and in recorded steps always at the same places."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
import torch

from quire.core.step import Step, StepResult
from quire.engine.engine import Engine
from quire.worker.pages import uploads
from quire.worker.pages.uploads import ALIGNED_BYTES, CountingUpload, FixedUpload, StagedUpload
from shadow import ShadowRunner
from small_engines import request, small_plan

CPU = torch.device("cpu")


def arrays(seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [
        random.integers(0, 100, (3, 5)), random.integers(0, 9, 7).astype(np.int32),
        random.integers(0, 2, (4, 1, 2)).astype(np.bool_), np.empty((0, 4), dtype=np.int64),
    ]  # fmt: skip


def test_arrays_of_a_step_arrive_as_they_are() -> None:
    staged = StagedUpload(CPU, 2, 1 << 12)
    for seed in range(5):
        staged.begin()
        found = [staged(values) for values in arrays(seed)]
        staged.flush()
        for tensor, values in zip(found, arrays(seed), strict=True):
            assert torch.equal(tensor, torch.from_numpy(values))


def test_a_step_that_needs_more_than_any_before_arrives_too() -> None:
    staged = StagedUpload(CPU, 2, ALIGNED_BYTES)
    staged.begin()
    sizes = (20, 30, 500, 10)
    found = [staged(np.full(size, size)) for size in sizes]
    staged.flush()
    assert [tensor.tolist() for tensor in found] == [[size] * size for size in sizes]
    assert staged.size_bytes >= 500 * 8


class LateDevice:
    """Copies when somebody waits for it, and no sooner."""

    def __init__(self) -> None:
        self.queued: deque[Callable[[], object]] = deque()
        self.waits = 0

    def carry(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.queued.append(lambda: target.copy_(source))

    def event_on(self, _device: torch.device) -> Event:
        return Event(self)


class Event:
    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self._last: Callable[[], object] | None = None

    def record(self) -> None:
        self._last = self._device.queued[-1]

    def synchronize(self) -> None:
        self._device.waits += self._last in self._device.queued
        while self._last in self._device.queued:
            self._device.queued.popleft()()


class LateRunner:
    """Uploads the tokens of each step, and looks at what has arrived when its result is asked for."""

    def __init__(self, inner: ShadowRunner, device: LateDevice, buffers: int) -> None:
        self._inner, self._device, self._staged = inner, device, StagedUpload(CPU, buffers)
        self._flying: deque[tuple[np.ndarray, torch.Tensor]] = deque()
        self.most = 0

    def launch(self, step: Step) -> None:
        self._staged.begin()
        tokens = self._staged(step.token_ids)
        self._staged.flush()
        self._flying.append((step.token_ids.copy(), tokens))
        self.most = max(self.most, len(self._flying))
        self._inner.launch(step)

    def collect(self) -> StepResult:
        sent, arrived = self._flying.popleft()
        while len(self._device.queued) > len(self._flying):
            self._device.queued.popleft()()
        assert arrived.tolist() == sent.tolist()
        return self._inner.collect()


@pytest.mark.parametrize(
    ("stages", "overlap", "most"), [(1, 1, 1), (1, 2, 2), (1, 3, 3), (2, 2, 2), (4, 2, 4), (2, 6, 6)]
)
def test_each_step_in_flight_has_a_buffer_of_its_own(
    stages: int, overlap: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device that copies as late as it may, Python waits for no copy; with a buffer fewer it waits, and still
    overwrites nothing that is to be copied. Red if a buffer were filled before the copy from it, or if there were fewer
    than steps in flight."""
    plan = small_plan(["full"] * 4, 60, stages=stages)
    assert plan.steps_in_flight(overlap) == most
    for missing in (0, 1) if most > 1 else (0,):
        device = LateDevice()
        monkeypatch.setattr(uploads, "carry", device.carry)
        monkeypatch.setattr(uploads, "event_on", device.event_on)
        inner = ShadowRunner()
        engine = Engine(plan, runner := LateRunner(inner, device, most - missing), overlap=overlap)
        inner.attach(engine.scheduler)
        for number in range(9):
            engine.submit(request(f"r{number}", 40 + number, 12))
        engine.drain()
        assert runner.most == most, "as many steps are in flight as may be"
        assert bool(device.waits) == bool(missing)


def fill(upload: CountingUpload | FixedUpload, rows: int, columns: int, value: int) -> list[torch.Tensor]:
    table = np.full((rows, 2, columns), value, dtype=np.int32)
    return [upload(np.arange(rows) + value), upload.table(table, 6), upload(np.array([value]))]


def test_what_was_recorded_finds_the_next_step_in_its_place() -> None:
    """Tables are as wide as they may become, and filled as far as they are now."""
    counting = CountingUpload(CPU)
    fill(counting, 4, 1, 0)
    fixed = FixedUpload(CPU, 2, counting.size_bytes)
    fixed.begin()
    recorded = fill(fixed, 4, 1, 0)
    fixed.flush()
    for columns in (1, 3, 6):
        fixed.begin()
        fill(fixed, 4, columns, 10 * columns)
        fixed.flush()
        rows, table, last = recorded
        assert rows.tolist() == [10 * columns + row for row in range(4)]
        assert table.shape == (4, 2, 6)
        assert bool((table[..., :columns] == 10 * columns).all())
        assert last.item() == 10 * columns


@pytest.mark.story
def test_a_step_that_hands_over_other_arrays_than_its_recording_is_noticed() -> None:
    """However wide tables are now; another order, shape or type is something else."""
    fixed = FixedUpload(CPU, 2, 1 << 12)

    def shapes(*arrays: np.ndarray) -> list[object]:
        fixed.begin()
        for values in arrays:
            fixed.table(values, 6) if values.ndim == 2 else fixed(values)
        return list(fixed.shapes)

    ids, one, table = np.arange(4), np.array([1]), np.zeros((4, 2), dtype=np.int32)
    recorded = shapes(ids, table, one)
    assert shapes(ids + 7, np.ones((4, 5), dtype=np.int32), one) == recorded
    others = ((ids, one, table), (ids, table), (one, table, ids), (ids.astype(np.float64), table, one))
    assert all(shapes(*arrays) != recorded for arrays in others)


def test_smaller_recordings_share_the_memory_of_the_largest() -> None:
    counting = CountingUpload(CPU)
    fill(counting, 4, 1, 0)
    fixed = FixedUpload(CPU, 2, counting.size_bytes)
    pointers = []
    for rows in (4, 2):
        fixed.begin()
        pointers.append([tensor.data_ptr() for tensor in fill(fixed, rows, 1, 0)][:2])
        fixed.flush()
    assert pointers[0] == pointers[1]
    fixed.begin()
    with pytest.raises(AssertionError, match="largest"):
        fill(fixed, 400, 1, 0)
