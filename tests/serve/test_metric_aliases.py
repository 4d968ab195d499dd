"""Metrics under vLLM's names repeat Quire's figures, in vLLM's units."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cached_traffic import UNIT, Traffic, plan_of, words
from quire.core.request import Request
from quire.explain.status import status_of
from quire.options.run import RunOptions
from quire.plan.plan import Plan
from quire.serve.client import EngineClient
from quire.serve.messages import EngineSetup, EngineTick
from quire.serve.metrics import Metrics
from quire.serve.progress import Progress


def scraped(plan: Plan, traffic: Traffic) -> dict[str, float]:
    client = EngineClient(EngineSetup(Path(), {}, RunOptions()), Progress(1), lambda *_a, **_k: None)
    client.tick = EngineTick(0, True, status=status_of(traffic.engine))
    text = Metrics(plan, client, lambda: False).text().decode()
    return {name: float(value) for name, value in re.findall(r"^(\S+) (\S+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("names", [("full",), ("full", "window"), ("full", "state")])
def test_running_and_waiting_requests_and_the_pool_that_they_hold(names: tuple[str, ...]) -> None:
    plan = plan_of(*names, rows=2)
    traffic = Traffic(plan)
    assert scraped(plan, traffic)["vllm:kv_cache_usage_perc"] == 0
    for one in "abc":
        traffic.engine.submit(Request(one, words(one, 40), 8))
    for _ in range(4):
        traffic.engine.step()
    found = scraped(plan, traffic)
    assert found["vllm:num_requests_running"] == found["quire_requests_running"] == 2
    assert found["vllm:num_requests_waiting"] == 1
    held = sum(
        found[f'quire_pages{{kind="{kind.name}",stage="0",state="used"}}'] * kind.page_bytes
        for kind in plan.stages[0].kinds
    )
    assert found["vllm:kv_cache_usage_perc"] == pytest.approx(held / plan.stages[0].pool_bytes)
    assert 0 < found["vllm:gpu_cache_usage_perc"] == found["vllm:kv_cache_usage_perc"] < 1
    traffic.engine.drain()
    assert scraped(plan, traffic)["vllm:kv_cache_usage_perc"] == 0


def test_prefix_queries_and_hits_count_tokens() -> None:
    plan = plan_of("full")
    traffic = Traffic(plan)
    traffic.ask("a", words("a", 100))
    traffic.ask("again", words("a", 100))
    found = scraped(plan, traffic)
    assert found["vllm:prefix_cache_queries_total"] == 200
    assert found["vllm:prefix_cache_hits_total"] == found["quire_hit_tokens_total"] == 96
    assert found["vllm:gpu_prefix_cache_hits_total"] == 96


def test_blocks_are_units_of_reuse() -> None:
    plan = plan_of("full")
    (stage,) = plan.stages
    info = next(name for name in scraped(plan, Traffic(plan)) if name.startswith("vllm:cache_config_info"))
    blocks = int(stage.pool_bytes // (UNIT * stage.kinds[0].token_bytes))
    assert info == f'vllm:cache_config_info{{block_size="{UNIT}",num_gpu_blocks="{blocks}"}}'
