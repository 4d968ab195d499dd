"""The likeliest token of each row, on a GPU or under Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from paged_case import DEVICE

from quire.worker.kernels.greedy import PIECE_TOKENS, likeliest


@pytest.mark.parametrize("vocabulary", [97, PIECE_TOKENS, 3 * PIECE_TOKENS + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_greatest_and_of_equals_the_first(vocabulary: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, vocabulary + 3).to(DEVICE, dtype)[:, :vocabulary]
    logits[1] = -7.0
    logits[2, [vocabulary - 1, vocabulary // 2]] = 50.0
    last = torch.full((6,), -1, device=DEVICE)
    rows = torch.tensor([4, 0, 1, 5], device=DEVICE)
    tokens = likeliest(logits, rows, last)
    expected = np.argmax(logits.float().cpu().numpy(), axis=1).tolist()
    assert expected[1:3] == [0, vocabulary // 2]
    assert tokens.tolist() == expected
    assert last.tolist() == [expected[1], expected[2], -1, -1, expected[0], expected[3]]


@pytest.mark.story
@pytest.mark.parametrize("vocabulary", [97, 2 * PIECE_TOKENS + 5])
def test_what_is_no_number_never_wins_and_no_token_lies_beyond_the_vocabulary(vocabulary: int) -> None:
    logits = torch.full((4, vocabulary), torch.nan, device=DEVICE)
    logits[1, vocabulary - 1] = -3.0
    logits[2, [5, 60]] = torch.tensor([1.0, 2.0], device=DEVICE)
    logits[3] = -torch.inf
    rows, last = torch.arange(4, device=DEVICE), torch.full((4,), -1, device=DEVICE)
    expected = [0, vocabulary - 1, 60, 0]
    assert likeliest(logits, rows, last).tolist() == expected
    assert last.tolist() == expected
