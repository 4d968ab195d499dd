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
