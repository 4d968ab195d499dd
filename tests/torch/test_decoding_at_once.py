"""The engine runs as many requests at once as the plan says, and keys in 8 bits gain what the plan says they gain."""

from __future__ import annotations

import pytest

from at_once import Asked, on_paper
from quire.core.dtypes import DType
from quire.core.units import GIB


@pytest.mark.parametrize("gib", [16, pytest.param(64, marks=pytest.mark.soak)])
def test_as_many_decode_at_once_as_the_plan_holds_in_16_and_in_8_bits(gib: int) -> None:
    """Requests of 8,192 tokens, all but the last 160 of them in the prompt. They are a little shorter than 8,192 while
    they decode, so one more than planned may fit; and one may still be at its prompt when the first one ends."""
    asked = Asked("gemma-3-27b", 8192, gib * GIB, 160)
    wide, narrow = (on_paper(asked, dtype) for dtype in (DType.BF16, DType.FP8))
    for found in (wide, narrow):
        assert abs(found.at_once - found.planned) <= 1
    planned, gained = narrow.planned / wide.planned, narrow.at_once / wide.at_once
    assert gained == pytest.approx(planned, rel=0.01)
