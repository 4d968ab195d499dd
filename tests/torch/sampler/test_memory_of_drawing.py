"""What drawing takes is what the plan's ledger has for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from quire.core.sampling import Sampling
from quire.models.shape import ModelShape
from quire.plan import ledger
from quire.worker.sampling import sampler
from quire.worker.sampling.sampler import Sampler

VOCABULARY = 10_000
HARDEST = Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.1, seed=0)


def peak_bytes(rows: int) -> int:
    """Of the whole of it, logits too: all of them alike, so that a CPU ranks every one."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        logits, drawing = torch.zeros(rows, VOCABULARY), Sampler(rows, VOCABULARY)
        for row in range(rows):
            drawing.enter(row, HARDEST, ())
        drawing.sample(logits, range(rows), np.zeros(rows))
    assert seen.profiler is not None
    events = seen.profiler.kineto_results.events()
    return int(np.cumsum([event.nbytes() for event in events if event.name() == "[memory]"]).max())


def counted_bytes(rows: int, is_accelerator: bool) -> int:
    shape = ModelShape("any", "any", (), vocab_size=VOCABULARY)
    return ledger.activation_line(shape, 1000, rows, 0, 1, is_accelerator).bytes


@pytest.mark.story
@pytest.mark.parametrize("rows", [8, 24, 96])
@pytest.mark.parametrize("is_accelerator", [False, True])
def test_the_ledger_has_what_a_step_takes_in_which_every_row_draws_and_is_penalised(
    rows: int, is_accelerator: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few rows at once, half of them, all. A GPU's kernel finds thresholds in place, so none is looked for here."""
    monkeypatch.setitem(ledger.LOGITS_AT_ONCE, is_accelerator, 48 * VOCABULARY)
    monkeypatch.setitem(ledger.LOGITS_AT_ONCE, False, 48 * VOCABULARY)
    if is_accelerator:
        monkeypatch.setattr(sampler, "_threshold", lambda scaled, _likely, _columns: scaled[:, :1])
    assert 0.85 * counted_bytes(rows, is_accelerator) < peak_bytes(rows) <= 1.001 * counted_bytes(rows, is_accelerator)
