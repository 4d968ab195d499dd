"""`quire bench kernels --tables packed` on small shapes: products are compared before they are timed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from paged_case import DEVICE

from quire.bench import packed as bench


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A word for each timing."""
    ran: list[str] = []

    def timed(action: Callable[[], None]) -> float:
        action()
        ran.append("timed")
        return 6.0

    monkeypatch.setattr(bench, "TOKENS", (1, 20, 40))
    monkeypatch.setattr(bench, "SHAPES", ((64, 96), (96, 64)))
    monkeypatch.setattr(bench, "DEVICE", DEVICE)
    monkeypatch.setattr(bench, "microseconds", timed)
    monkeypatch.setattr(bench, "random_numbers", lambda *shape: torch.randn(*shape, device=DEVICE))
    return ran


def test_every_form_is_compared_with_bf16(small: list[str]) -> None:
    lines = bench.packed_table()
    assert [line["tokens"] for line in lines] == ["1", "20", "40"]
    for form in bench.FORMS:
        assert all((line[f"{form}, µs"], line[f"bf16 ÷ {form}"]) == (2.0, 1.0) for line in lines)
        assert all(float(str(line[f"error of {form}"])) < 1e-3 for line in lines), "fp32 here"
    assert len(small) == 3 * (1 + len(bench.FORMS))


def test_nothing_more_is_timed_where_results_differ(small: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "NEAR", 0.0)
    with pytest.raises(SystemExit, match=re.escape("int8, 1 tokens: off by ")):
        bench.packed_table()
    assert len(small) == 3, "bf16 alone"
