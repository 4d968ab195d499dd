"""Pages and the blocks that hold them; who waits for a copy."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
import torch

from quire.worker.pages.copies import Directly, RecordPages
from quire.worker.pages.fences import Fences, Way

SHEET = 1000


@pytest.mark.parametrize("seed", range(20))
def test_records_of_any_pages_lie_in_their_blocks_byte_by_byte(seed: int) -> None:
    """Out and back to other pages: pages of two sizes, blocks that cut them anywhere."""
    random = Random(seed)
    block_bytes, sizes = random.randint(1, 90), (random.randint(1, 70), random.randint(1, 70))
    arena, host = torch.randint(256, (4000,), dtype=torch.uint8), torch.zeros(1500, block_bytes, dtype=torch.uint8)
    goal = torch.zeros_like(arena)
    blocks, out, back, expected = list(range(1500)), RecordPages(block_bytes), RecordPages(block_bytes), []
    random.shuffle(blocks)
    for record in range(3):
        pages = [np.array(random.sample(range(record * 10, record * 10 + 10), random.randint(1, 3))) for _ in sizes]
        parts = [arena[p * 100 : p * 100 + size] for size, own in zip(sizes, pages, strict=True) for p in own.tolist()]
        data = torch.cat(parts)
        own_blocks = [blocks.pop() for _ in range(-(-len(data) // block_bytes))]
        begin = 0
        for freight in (out, back):
            freight.open(own_blocks)
        for size, own in zip(sizes, pages, strict=True):
            out.add(own * 100, size, begin)
            back.add(own * 100 + 3, size, begin)
            begin += size * len(own)
            expected += [(p * 100 + 3, arena[p * 100 : p * 100 + size]) for p in own.tolist()]
        Directly(arena, host).out(out.pieces())
        assert torch.equal(torch.cat([host[block] for block in own_blocks])[: len(data)], data)
    Directly(goal, host).back(back.pieces())
    for place, data in expected:
        assert torch.equal(goal[place : place + len(data)], data)
    assert int((goal != 0).sum()) <= sum(len(data) for _, data in expected)


def test_nothing_to_copy_is_no_work() -> None:
    freight = RecordPages(100)
    freight.open([3])
    assert not len(freight.pieces())


@dataclass
class Signal:
    has_come: bool = False

    def query(self) -> bool:
        return self.has_come


def at(*sheets: int) -> np.ndarray:
    return np.array(sheets, dtype=np.int64) * SHEET + 17


def test_who_needs_a_page_waits_for_the_last_copy_of_its_sheet_and_for_no_other() -> None:
    fences: Fences[Signal] = Fences(10 * SHEET, SHEET)
    first, second, third = Signal(), Signal(), Signal()
    fences.add(Way.OUT, at(1, 2), first)
    fences.add(Way.OUT, at(2, 3), second)
    fences.add(Way.BACK, at(2), third)
    assert fences.ends(Way.OUT, at(1)) == [first]
    assert fences.ends(Way.OUT, at(1, 2)) == [second]
    assert fences.ends(Way.OUT, at(3)) == [second]
    assert fences.ends(Way.OUT, at(4)) == []
    assert fences.ends(Way.OUT, at()) == []
    assert fences.ends(Way.BACK, at(2)) == [third]


def test_a_copy_that_has_ended_holds_up_nobody() -> None:
    fences: Fences[Signal] = Fences(10 * SHEET, SHEET)
    first, second = Signal(), Signal()
    fences.add(Way.OUT, at(1), first)
    fences.add(Way.OUT, at(2), second)
    first.has_come = True
    assert fences.is_busy
    assert fences.ends(Way.OUT, at(1)) == []
    assert fences.ends(Way.OUT, at(2)) == [second]
    second.has_come = True
    assert not fences.is_busy
    assert fences.ends(Way.OUT, at(2)) == []
