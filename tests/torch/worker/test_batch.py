"""Which rows are read together, and what is read of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.core.step import Step, TableView
from quire.models.memories import Heads, full, windowed
from quire.models.shape import Layer, ModelShape
from quire.plan.make import make_plan
from quire.plan.plan import StagePlan
from quire.plan.settings import Budget, Settings
from quire.worker.backends.attention import gather, write
from quire.worker.backends.batch import StepBatch, make_batch
from quire.worker.pages.arena import Arena

PAGE = 16
HEADS = Heads(4, 2, 24, 40)
"""Keys and values of different widths, and neither a divisor of a granule."""
CPU = torch.device("cpu")


def stage_of(window: int = 0) -> StagePlan:
    memory = windowed(HEADS, window) if window else full(HEADS)
    shape = ModelShape("small", "small", tuple(Layer((memory,)) for _ in range(2)), max_length=4096)
    settings = Settings(max_length=4096, max_requests=8, page_tokens={"": PAGE})
    return make_plan(shape, settings, Budget(pool_bytes=64 << 20)).require_fit().stages[0]


def batch_of(stage: StagePlan, starts: list[int], counts: list[int]) -> StepBatch:
    """Rows in pages of their own, in an order that is not theirs."""
    rows, (kind,) = len(starts), stage.kinds
    width = -(-max(start + count for start, count in zip(starts, counts, strict=True)) // PAGE)
    pages = np.random.default_rng(0).permutation(rows * kind.groups * width)
    addresses = stage.addresses(0, pages).reshape(rows, kind.groups, width).astype(np.int32)
    step = Step(
        0, np.arange(rows), np.array(starts), np.array(counts), np.ones(rows, dtype=np.bool_), np.zeros(rows, np.int64),
        np.zeros(sum(counts), np.int32),
    )  # fmt: skip
    return make_batch(step, stage, (TableView(addresses, 0),), CPU)


def test_padding_never_doubles_what_long_rows_read() -> None:
    """A row of 3,000 tokens does not make its neighbours as long; rows of few tokens are one group."""
    starts = [3000, 1700, 900, 40, 7, 2, 0]
    (kind,) = batch_of(stage_of(), starts, [1] * len(starts)).kinds
    for reading in kind.readings:
        (tokens,) = {places.shape for places in reading.tokens.values()}
        own = [starts[row] + 1 for row in reading.queries[:, 0].tolist()]
        assert max(own) == tokens[1]
        assert tokens[1] <= max(64, 2 * min(own))
    assert [len(reading.queries) for reading in kind.readings] == [4, 1, 1, 1]


def test_rows_that_compute_as_many_tokens_are_read_together() -> None:
    (kind,) = batch_of(stage_of(), [0, 5, 0, 0, 30], [20, 1, 20, 7, 1]).kinds
    assert [reading.queries.tolist() for reading in kind.readings] == [
        [[20], [48]],
        [list(range(41, 48))],
        [list(range(20)), list(range(21, 41))],
    ]


@pytest.mark.parametrize("window", [0, 19])
def test_what_is_read_is_what_was_written_and_nothing_else(window: int) -> None:
    """Every slot holds NaN but those that were written; padding repeats what the row may see."""
    stage = stage_of(window)
    arena = Arena(stage, CPU)
    arena.bytes.view(torch.bfloat16).fill_(float("nan"))
    lengths = [60, 33, 1]
    for part in arena.layers[1].values():
        values = torch.arange(sum(lengths))[:, None, None].expand(-1, *part.tensor.shape[2:])
        write(batch_of(stage, [0] * 3, lengths).kinds[0], part, values.to(torch.float32))
        (reading,) = batch_of(stage, [length - 1 for length in lengths], [1] * 3).kinds[0].readings
        found = gather(reading, part, torch.float32)
        begin = 0
        for row, length in enumerate(lengths):
            first = max(0, length - window) if window else 0
            expected = torch.arange(begin + first, begin + length).float()
            assert reading.mask is not None
            seen = found[row, 0, reading.mask[row, 0], 0]
            assert torch.equal(seen, expected.to(torch.bfloat16).float())
            assert not found[row].isnan().any()
            begin += length


@pytest.mark.parametrize(("window", "second", "is_causal"), [(0, 0, True), (0, 1, False), (19, 0, False)])
def test_prompts_that_begin_and_forget_nothing_are_plainly_causal(window: int, second: int, is_causal: bool) -> None:
    (reading,) = batch_of(stage_of(window), [0, second], [24, 24]).kinds[0].readings
    assert reading.is_causal == is_causal
    assert reading.mask is not None
    assert not is_causal or torch.equal(reading.mask[1], torch.ones(24, 24, dtype=torch.bool).tril())
