"""Copies between a GPU's pages and pinned memory: every byte arrives, and steps wait only where they must."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.core.events import Event, LoadFinished
from quire.engine.engine import Engine
from quire.options.tiers import Tiers
from tiny_models import PAGE, plan_of

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

from device_models import DeviceService
from quire.movers.host import HostMemory
from quire.worker.pages.bus import Bus
from quire.worker.pages.copies import Pieces

SHEET, SHEETS = 1 << 20, 256


def bus_of(is_batched: bool = True) -> tuple[torch.Tensor, HostMemory, Bus]:
    arena = torch.randint(256, (SHEETS * SHEET,), dtype=torch.uint8, device="cuda")
    memory = HostMemory(SHEETS * SHEET, SHEET, is_pinned=True)
    bus = Bus(arena, memory.tensor, SHEET)
    assert bus._batch is not None
    bus._batch = bus._batch if is_batched else None
    return arena, memory, bus


def pieces_of(sheets: np.ndarray) -> Pieces:
    size = np.full(len(sheets), SHEET // 2)
    return Pieces(sheets * SHEET + 256, np.arange(len(sheets)) * SHEET + 1024, size)


@pytest.mark.parametrize("is_batched", [True, False])
def test_pieces_go_out_and_come_back_to_other_places(is_batched: bool) -> None:
    arena, memory, bus = bus_of(is_batched)
    expected, order = arena.clone(), np.random.default_rng(0).permutation(SHEETS)
    source, goal = pieces_of(order[:100]), pieces_of(order[100:200])
    assert bus.out(source)() > 0
    bus.back(goal)()
    assert not bus.is_busy
    for begin, end in zip(source.arena.tolist(), goal.arena.tolist(), strict=True):
        expected[end : end + SHEET // 2] = expected[begin : begin + SHEET // 2]
    assert torch.equal(arena, expected)
    assert not torch.equal(memory.tensor[0], torch.zeros_like(memory.tensor[0]))


def test_nothing_to_copy_is_no_work() -> None:
    _, _, bus = bus_of()
    nothing = pieces_of(np.empty(0, dtype=np.int64))
    assert bus.out(nothing)() >= 0
    assert bus.back(nothing)() >= 0


def test_what_goes_out_is_what_was_there_before_the_next_step_wrote() -> None:
    """All of it is being copied when the device is told to write there: it does so behind the copy."""
    arena, memory, bus = bus_of()
    every = pieces_of(np.arange(SHEETS))
    expected = torch.stack([arena[begin : begin + SHEET // 2] for begin in every.arena.tolist()]).cpu()
    wait = bus.out(every)
    assert bus.is_busy
    bus.before(every.arena, every.arena[:0])
    arena.zero_()
    wait()
    found = torch.stack([memory.tensor.view(-1)[begin : begin + SHEET // 2] for begin in every.host.tolist()])
    assert torch.equal(found, expected)


def test_what_comes_back_is_there_before_the_next_step_reads() -> None:
    arena, memory, bus = bus_of()
    memory.tensor.fill_(7)
    every = pieces_of(np.arange(SHEETS))
    bus.back(every)
    bus.before(every.arena[:0], every.arena[-1:])
    begin = int(every.arena[-1])
    assert bool((arena[begin : begin + SHEET // 2] == 7).all())


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "deepseek_v3", "lfm2"])
def test_tokens_after_a_round_trip_through_host_memory_are_those_of_a_cold_run(name: str) -> None:
    service = DeviceService(name, plan_of(name, batch_tokens=24), tiers=Tiers(8 << 20))
    plan, stack, events = service.runner.plan, service.stack, list[Event]()
    assert stack is not None
    service.engine = Engine(plan, service.runner, tier=stack, keeper=stack, listeners=[events.append])
    service.check()
    for again in range(2):
        stack.flush()
        service.engine.scheduler.reuse.index.drop()
        service.runner.arena.bytes[: plan.stages[0].pool_bytes].fill_(0xFF)
        service.check(label=f"again {again} ")
    loaded = [event.tokens for event in events if isinstance(event, LoadFinished)]
    assert len(loaded) >= 6
    assert max(loaded) > 2 * PAGE
    stack.close()
