"""The bar of a ledger: one line of blocks in proportion."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cli.text import _cells, bar


@pytest.mark.story
def test_every_part_that_the_legend_names_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    """A part of 0.8% was left out while a smaller one after it was drawn."""
    bar([("weights", 500, "█"), ("activations", 8, "▓"), ("run time", 3, "▒"), ("none", 0, "x"), ("pool", 489, "░")])
    drawn, legend = capsys.readouterr().out.splitlines()
    assert all(block in drawn for block in "█▓▒░")
    assert "x" not in drawn + legend
    assert len(drawn.strip()) == 72 + len("┃┃")


@pytest.mark.law
@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=8))
def test_cells_are_shared_out_whole_and_a_larger_part_never_has_fewer(sizes: list[int]) -> None:
    cells = _cells(sizes, 72)
    assert sum(cells) == 72
    assert [count > 0 for count in cells] == [size > 0 for size in sizes] or not any(sizes)
    pairs = sorted(zip(sizes, cells, strict=True))
    assert all(small[1] <= large[1] + 1 for small, large in pairwise(pairs))
