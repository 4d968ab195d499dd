"""The least logit that top_k and top_p keep, on a GPU or under Triton's interpreter: what a CPU finds by ranking."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from paged_case import DEVICE

from quire.core.sampling import Sampling
from quire.worker.kernels.drawing import survey_rows, wishes_of
from quire.worker.kernels.nucleus import LIMIT, PIECE_TOKENS, limit_rows
from quire.worker.sampling import sampler

PIECE = PIECE_TOKENS.value
WISHES = [
    Sampling(temperature=1.0, top_k=top_k, top_p=top_p)
    for top_k in (0, 1, 7, 300, 10_000)
    for top_p in (1.0, 0.999, 0.9, 0.5, 1e-9)
    if top_k or top_p < 1
]


def found_and_expected(logits: torch.Tensor, wishes: list[Sampling]) -> tuple[list[float], list[float]]:
    scaled = logits - logits.amax(-1, keepdim=True)
    columns = np.array([sampler.columns_of(wish) for wish in wishes]).T
    expected = sampler._threshold(scaled, scaled.exp(), columns)
    asked = wishes_of(columns, np.zeros(len(wishes)), logits.shape[-1])
    given, placed = torch.from_numpy(asked.numbers).to(DEVICE), logits.to(DEVICE)
    _, notes = survey_rows(placed)
    for by_chance in (False, True):
        limit_rows(placed, given, notes, by_chance)
    return (-notes[:, LIMIT.value, 0]).tolist(), expected.squeeze(-1).tolist()


@pytest.mark.parametrize(
    ("spread", "vocabulary"),
    [
        *((0.0, 97), (0.01, 97), (1.0, PIECE + 5)),
        *(pytest.param(spread, 97, marks=pytest.mark.soak) for spread in (1.0, 9.0)),
        *(pytest.param(spread, PIECE + 5, marks=pytest.mark.soak) for spread in (0.0, 0.01, 9.0)),
    ],
)
def test_it_is_what_ranking_the_vocabulary_yields(spread: float, vocabulary: int) -> None:
    """Logits all alike, nearly alike, and far apart. Where all finite logits are kept, the limit may be any from the
    smallest one on."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = spread * torch.randn(len(WISHES), vocabulary, generator=generator)
    found, expected = found_and_expected(logits, WISHES)
    assert len(set(expected)) > (0 if spread == 0 else 5)
    assert found == expected


def test_tokens_that_may_not_come_are_kept_by_nobody_who_limits_them() -> None:
    logits = torch.full((len(WISHES), 40), -torch.inf)
    logits[:, :6] = torch.arange(6.0)
    found, expected = found_and_expected(logits, WISHES)
    limited = [place for place, wish in enumerate(WISHES) if 0 < wish.top_k < 6 or wish.top_p < 1]
    assert [found[place] for place in limited] == [expected[place] for place in limited]
    assert all(found[place] > float("-inf") for place in limited)


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.soak)])
def test_many_nearly_equal_logits_far_from_the_greatest_are_told_apart(every: int) -> None:
    """All of them fall into one fine bin, which has more tokens than are read at once."""
    wishes = WISHES[::every]
    logits = -10 - 1e-3 * torch.rand(len(wishes), 2 * PIECE + 77, generator=torch.Generator().manual_seed(1))
    logits[:, 5] = 0.0
    found, expected = found_and_expected(logits, wishes)
    assert found == expected
