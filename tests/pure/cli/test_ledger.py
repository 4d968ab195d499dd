"""The ledger as it is printed: sizes, and a bar of blocks in proportion."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command import run_json, run_text
from quire.cli.text import bar
from quire.core.units import format_bytes
from quire.explain.bars import cells


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
    counts = cells(sizes, 72)
    assert sum(counts) == 72
    assert [count > 0 for count in counts] == [size > 0 for size in sizes] or not any(sizes)
    pairs = sorted(zip(sizes, counts, strict=True))
    assert all(small[1] <= large[1] + 1 for small, large in pairwise(pairs))


@pytest.mark.story
def test_what_a_device_lacks_is_printed_as_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    """The ledger adds up with a number below 0; a reader sees how much is missing."""
    asked = ("llama-3.1-405b", "--memory", "80GiB")
    lacking = run_json(capsys, *asked, code=3)["ledger"][-1]
    report, _ = run_text(capsys, "plan", *asked, code=3)
    (line,) = [line for line in report.splitlines() if line.startswith("  missing ")]
    assert lacking["bytes"] < 0
    assert f" {format_bytes(-lacking['bytes'])} " in line
    assert line.endswith("beyond the device's memory, of which 8% should stay free in addition")
