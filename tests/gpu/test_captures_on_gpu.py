"""States captured while a prompt is computed, on kernels: those that the reference backend captures on a CPU, in fp32,
and what a row goes on from. Recorded decode steps and compiled layers too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

from by_hand import ByHand, Chunk
from device_models import DeviceService
from quire.core.step import DRAFTED
from tiny_models import Service, plan_of

NAMES = ("qwen3_next", "bamba", "falcon_h1", "lfm2")
"""Gated DeltaNet; Mamba-2; the same in two groups; short convolutions. Decays of their own for each key are tested with
their kernel, in tests/torch/kernels/test_states.py."""
SHEETS = 64
"""Every page of these tests lies on a sheet of its own."""
TOKENS = 95
TEXT = np.random.default_rng(0).integers(3, 97, TOKENS).astype(np.int32)
TOLERANCE = 2e-3


def rows_of(service: Service | DeviceService) -> ByHand:
    (memory,) = service.engine.scheduler.memories
    return ByHand(service.runner, [table.view for table in memory.tables])


def captured(rows: ByHand) -> list[list[torch.Tensor]]:
    """Two rows of one prompt, the first cut at odd places; states after 1, 6, 25, 70 and 95 tokens, and after 7."""
    pages = [rows.pages() for _ in range(6)]
    long, short = rows.enter(TEXT), rows.enter(TEXT)
    rows.run(Chunk(long, 0, 5, [(1, pages[0])]), Chunk(short, 0, 3))
    rows.run(Chunk(long, 5, 30, [(6, pages[1]), (25, pages[2])]), Chunk(short, 3, 4, [(7, pages[3])]))
    rows.run(Chunk(long, 35, TOKENS - 35, [(70, pages[4]), (TOKENS, pages[5])]))
    return [rows.state(one) for one in pages]


@pytest.mark.parametrize("name", NAMES)
def test_captured_states_are_near_those_of_a_cpu(name: str) -> None:
    """Red if a kernel takes a state from another token, row, head or group than the reference backend does."""
    plan = plan_of(name, batch_tokens=128, sheets=SHEETS)
    found = captured(rows_of(DeviceService(name, plan, counts=(2,))))
    torch.testing.assert_close(found, captured(rows_of(Service(name, plan))), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_rows_go_on_from_captured_states_with_the_same_tokens(name: str) -> None:
    """Red if captures change what their row computes, or miss a layer."""
    rows = rows_of(DeviceService(name, plan_of(name, batch_tokens=128, sheets=SHEETS), counts=(2,)))
    plain, other, ends = rows.enter(TEXT), rows.enter(TEXT), (3, 64, 80)
    pages = [rows.pages() for _ in ends]
    (expected,) = rows.run(Chunk(plain, 0, TOKENS))
    assert rows.run(Chunk(other, 0, TOKENS, list(zip(ends, pages, strict=True)))) == [expected]
    for end, found in zip(ends, pages, strict=True):
        row = rows.enter(TEXT, like=plain, state=found)
        assert rows.run(Chunk(row, end, TOKENS - end)) == [expected]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_is_played_from_a_recording_captures_as_well(name: str) -> None:
    """Red if a recorded step drops captures, or copies pages before it has run."""
    service = DeviceService(name, plan_of(name, batch_tokens=24, sheets=SHEETS), counts=(2,))
    rows, graphs = rows_of(service), service.runner.graphs
    assert graphs is not None
    first, second, pages = rows.enter(TEXT), rows.enter(TEXT), rows.pages()
    rows.run(Chunk(first, 0, 2), Chunk(second, 0, 3))
    before, played = rows.state(rows.own_pages(second)), graphs.played
    rows.run(Chunk(first, 2, 1), Chunk(second, 3, 1, [(4, pages)]))
    assert graphs.played == played + 1
    own = rows.state(rows.own_pages(second))
    assert all(torch.equal(a, b) for a, b in zip(rows.state(pages), own, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(before, own, strict=True))


@pytest.mark.parametrize("name", ["lfm2", "qwen3_next"])
def test_compiled_layers_capture_as_well(name: str) -> None:
    """Red if a layer that was compiled for a step without captures drops them."""
    torch._dynamo.reset()
    plan = plan_of(name, batch_tokens=128, sheets=SHEETS)
    found = captured(rows_of(DeviceService(name, plan, is_compiled=True, counts=(2,))))
    torch.testing.assert_close(found, captured(rows_of(Service(name, plan))), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["lfm2", "qwen3_next"])
def test_a_capture_has_the_states_of_a_draft_model_too(name: str) -> None:
    """Red if the draft model drops captures, or takes one again after a draft."""
    plan = plan_of(name, batch_tokens=64, sheets=SHEETS, lookahead=2, draft=name)
    rows = rows_of(DeviceService(name, plan, counts=(2,), draft=name))
    row, other, inside, last = rows.enter(TEXT), rows.enter(TEXT), rows.pages(), rows.pages()
    rows.run(Chunk(row, 0, 30, [(20, inside), (30, last)], (DRAFTED, DRAFTED)))
    rows.run(Chunk(other, 0, 20))
    torch.testing.assert_close(rows.state(inside), rows.state(rows.own_pages(other)), rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(rows.state(last), rows.state(rows.own_pages(row)), rtol=0, atol=0)
