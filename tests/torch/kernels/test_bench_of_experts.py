"""`quire bench kernels --tables experts` on a tiny model: the same module on both ways, compared before it is timed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from paged_case import DEVICE

from quire.bench import experts as bench
from quire.worker.model.model import build
from quire.worker.support.tiny import tiny_config


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which code ran in each timing."""
    ran: list[str] = []

    def timed(action: Callable[[], torch.Tensor]) -> float:
        action()
        ran.append("timed")
        return 2.0

    monkeypatch.setattr(bench, "TOKENS", (3, 40))
    monkeypatch.setattr(bench, "microseconds", timed)
    monkeypatch.setattr(bench, "random_numbers", lambda *shape: torch.randn(*shape, device=DEVICE))
    monkeypatch.setattr(bench, "config_of", lambda *_: tiny_config("qwen3_moe"))
    monkeypatch.setattr(bench, "model_of", lambda config, _: build(config, torch.float32).to(DEVICE).eval())
    return ran


def test_each_number_of_tokens_is_timed_on_both_ways(tiny: list[str]) -> None:
    lines = bench.experts_table()
    assert [(line["tokens"], line["ratio"]) for line in lines] == [("3", 1.0), ("40", 1.0)]
    assert len(tiny) == 4


def test_nothing_is_timed_where_results_differ(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "NEAR", 0.0)
    with pytest.raises(SystemExit, match=re.escape("results of 3 tokens differ by ")):
        bench.experts_table()
    assert len(tiny) == 2, "torch's times alone"


def test_nothing_is_timed_without_kernels(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "use_experts", lambda _model: 0)
    with pytest.raises(SystemExit, match="no kernel computes"):
        bench.experts_table()
    assert len(tiny) == 2
