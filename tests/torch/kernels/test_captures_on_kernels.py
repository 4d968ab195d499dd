"""States captured on kernels, in recorded steps and with a draft model, on a CPU under Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from by_hand import ByHand, Chunk, make_by_hand
from device_models import DeviceService
from quire.core.step import DRAFTED
from quire.worker.backends.choice import REFERENCE, Backend
from quire.worker.backends.states import StateRows
from quire.worker.backends.triton_backend import Triton
from quire.worker.steps import boot
from quire.worker.support.tiny import tiny_config
from tiny_models import Service, plan_of

TWO_LAYERS = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
SIZES: dict[str, dict[str, Any]] = {
    "qwen3_next": TWO_LAYERS,
    "falcon_h1": {"num_hidden_layers": 2, "mamba_n_groups": 2},
    "kimi_linear": {"linear_num_heads": 2, "linear_head_dim": 16},
}
"""Gated DeltaNet; Mamba-2, in two groups; decays of their own for each key."""
TEXT = np.random.default_rng(0).integers(3, 97, 40).astype(np.int32)


def rows_of(service: Service | DeviceService) -> ByHand:
    (memory,) = service.engine.scheduler.memories
    return ByHand(service.runner, [table.view for table in memory.tables])


@pytest.mark.parametrize("name", SIZES)
def test_a_captured_state_is_that_of_the_reference_backend(name: str) -> None:
    """Rows that go on from odd places, with many tokens and with few. Red if a packed mixer does not hand captures to
    its kernels, or writes those of another group."""
    config, found = tiny_config(name), []
    for field, value in SIZES[name].items():
        setattr(config, field, value)
    for backends in ((REFERENCE,), (Triton(),)):
        rows = make_by_hand(name, config, backends)()
        pages = [rows.pages() for _ in range(4)]
        long, short = rows.enter(TEXT), rows.enter(TEXT)
        rows.mix(Chunk(long, 0, 5), Chunk(short, 0, 3))
        captures = [(6, pages[0]), (20, pages[1]), (25, pages[2])]
        out = rows.mix(Chunk(long, 5, 20, captures), Chunk(short, 3, 4, [(5, pages[3])]))
        found.append([*out, *(part for one in pages for part in rows.state(one))])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert name != "falcon_h1" or len(pages[0]) == 2


def test_a_step_that_is_played_from_a_recording_captures_as_well() -> None:
    """One of two rows that decode. Red if a recorded step drops captures, or copies another row's page."""
    service = DeviceService("lfm2", plan_of("lfm2", batch_tokens=24), counts=(2,))
    rows, graphs = rows_of(service), service.runner.graphs
    assert graphs is not None
    first, second = rows.enter(TEXT), rows.enter(TEXT)
    rows.run(Chunk(first, 0, 2), Chunk(second, 0, 3))
    pages, before = rows.pages(), rows.state(rows.own_pages(second))
    played = graphs.played
    rows.run(Chunk(first, 2, 1), Chunk(second, 3, 1, [(4, pages)]))
    assert graphs.played == played + 1
    own = rows.state(rows.own_pages(second))
    assert all(torch.equal(a, b) for a, b in zip(rows.state(pages), own, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(before, own, strict=True))


@pytest.mark.parametrize("backends", [(REFERENCE,), (Triton(),)])
def test_a_capture_has_the_states_of_a_draft_model_too(backends: tuple[Backend, ...]) -> None:
    """After known tokens, although the row goes on with drafts. Red if the draft model drops captures, or takes one
    again after a draft."""
    plan = plan_of("lfm2", batch_tokens=24, lookahead=2, draft="lfm2")
    rows = rows_of(Service("lfm2", plan, backends=backends, draft="lfm2"))
    assert len(rows.arena.layers) == 8, "the layers of both models"
    row, other = rows.enter(TEXT), rows.enter(TEXT)
    inside, last = rows.pages(), rows.pages()
    rows.run(Chunk(row, 0, 6, [(4, inside), (6, last)], (DRAFTED, DRAFTED)))
    rows.run(Chunk(other, 0, 4))
    torch.testing.assert_close(rows.state(inside), rows.state(rows.own_pages(other)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rows.state(last), rows.state(rows.own_pages(row)), rtol=0, atol=0)


def test_kernels_that_capture_are_tried_out_before_the_first_request() -> None:
    """For rows of many tokens and of few. Red if they are compiled, or take memory, when a prompt first needs them."""
    plan, without = plan_of("lfm2", batch_tokens=48), plan_of("llama", batch_tokens=48)
    first, *others = boot.largest_steps(plan, plan.stages[0])
    assert [(one.entry, one.tokens) for one in first.captures] == [(0, 1), (0, 17), (0, 33), (1, 1)]
    assert not any(step.captures for step in others)
    assert len(boot.largest_steps(without, without.stages[0])) == len(others) == 2
    _, states = Service("lfm2", plan, backends=(Triton(),)).runner.model.prepare(first).kinds
    assert isinstance(states.kernel, StateRows)
    assert (len(states.kernel.few), len(states.kernel.many)) == (1, 1)
