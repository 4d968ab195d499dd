"""Absorbed latent attention over pages: one latent is key and value of all heads, beside a rotary key."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from paged_case import DEVICE, Heads, Pages, by_definition, rows_of

from examples import rest_in_soak
from quire.worker.backends.attention import Scores
from quire.worker.backends.launch import attend, launch_of
from quire.worker.kernels.shape import LayerViews, Tiles
from quire.worker.kernels.work import Sight

NARROW, WIDE = 24, 200
"""A wide one is read in quarters, here the last of them in part."""
ROPE = 16


@pytest.mark.parametrize(
    ("heads", "latent"),
    rest_in_soak(itertools.product([5, 32], [NARROW, WIDE, 256]), [(5, NARROW), (32, WIDE), (5, 256)]),
)
@pytest.mark.parametrize(("counts", "piece_tokens"), [([1, 1], 1 << 20), ([1, 1], 32), ([3, 2], 32)])
def test_results_follow_the_definition(heads: int, counts: list[int], piece_tokens: int, latent: int) -> None:
    assert error_of(heads, counts, piece_tokens, latent) < 2e-6


@pytest.mark.parametrize("latent", [NARROW, WIDE])
@pytest.mark.parametrize(("counts", "ends"), [([1, 0, 1], [40, 33, 65]), ([1, 1], [32, 64]), ([16, 3], [16, 48])])
def test_rows_without_queries_and_rows_that_fill_their_last_page_follow_it_too(
    counts: list[int], ends: list[int], latent: int
) -> None:
    assert error_of(5, counts, 32, latent, ends=ends) < 2e-6


@pytest.mark.parametrize("seed", rest_in_soak(range(4), (0, 1)))
def test_random_batches_follow_the_definition(seed: int) -> None:
    random = np.random.default_rng(seed)
    counts = random.integers(0, 5, 4).tolist()
    ends = [int(random.integers(max(1, count), 90)) for count in counts]
    heads, latent, pieces = (int(random.choice(one)) for one in ((1, 5, 16, 20), (8, NARROW, 100, WIDE), (16, 48)))
    assert error_of(heads, [*counts, 1], pieces, latent, ends=[*ends, 7]) < 2e-6


@pytest.mark.story
@pytest.mark.parametrize("latent", [NARROW, WIDE])
def test_latents_may_have_fewer_bits_than_queries(latent: int) -> None:
    assert error_of(5, [1, 1], 32, latent, torch.bfloat16) < 2e-6


def error_of(
    heads: int,
    counts: list[int],
    piece_tokens: int,
    latent: int,
    dtype: torch.dtype = torch.float32,
    ends: Sequence[int] = (40, 65),
) -> float:
    torch.manual_seed(0)
    ends = list(ends)
    pages = Pages(ends, Heads(heads, 1, latent, ROPE), dtype=dtype)
    pages.fill()
    query = torch.randn(sum(counts), heads, latent + ROPE).to(DEVICE)
    scores = Scores(0.2)
    group = min(heads, 16)
    tiles = Tiles(16 if max(counts) == 1 else 64, 16, 4, 2, 1, is_peeled=False)
    launch = launch_of(rows_of(counts, ends), Sight(), tiles, group, piece_tokens, DEVICE)
    out = torch.full((sum(counts), heads, latent), torch.nan).to(DEVICE)
    attend(query, LayerViews.latent(pages.key, pages.value), pages.table, launch, scores, out)
    ropes = pages.values
    pages.keys, pages.values = [torch.cat(both, -1) for both in zip(pages.keys, ropes, strict=True)], pages.keys
    expected = by_definition(pages, query, counts, ends, Sight(), scores)
    return float((out.double() - expected).norm() / expected.norm())
