"""Many sessions: reuse sinks slowly as they outgrow the pool. `bench/sessions.py` has the whole curve."""

from __future__ import annotations

import pytest

from examples import rest_in_soak
from quire.core.units import GIB
from sessions import GOALS, MODELS, Talk, curve

SMALL, LARGE = [[(model, gib, rounds) for model in MODELS] for gib, rounds in ((12, 3), (24, 4))]
"""Pools and rounds of `make test` and of `make soak`."""


@pytest.mark.parametrize(("model", "gib", "rounds"), rest_in_soak(SMALL + LARGE, SMALL))
def test_sessions_that_come_round_in_turn_find_most_of_what_fits(model: str, gib: int, rounds: int) -> None:
    """Each session is sent again and again with a short suffix, all the others between. With a working set of up to
    85 % of the pool at least 95 % of earlier tokens are found, 60 % at 110 % and 40 % at 150 %."""
    shares = [85, 110, 150]
    found = curve(model, gib * GIB, shares, Talk(rounds=rounds), batch_tokens=2048)
    for share, point in zip(shares, found.points, strict=True):
        assert share <= 100 * point.share <= share + 120 / gib, "more sessions make finer steps"
        assert 100 * point.found >= GOALS[share], point


def test_a_list_of_single_pages_loses_everything_where_bundles_lose_little() -> None:
    """The baseline of the bench: least recently used pages, sessions in turn, a little more than fits."""
    (point,) = curve("gemma-3-27b", 16 * GIB, [50], Talk(rounds=3), batch_tokens=2048).points
    assert point.plain == 0
    assert point.found > 0.95
