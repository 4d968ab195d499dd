"""Metrics under the names of vLLM, for routers and dashboards that know only these. Each repeats a figure of Quire's.

The units are theirs: usage is a share of 1, and prefix queries and hits count tokens. Figures that Quire does not have
are left out, rather than reported as 0.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quire.explain.status import Status
from quire.plan.plan import Plan
from quire.serve.messages import EngineTick

_COUNTERS = (
    ("vllm:prefix_cache_queries", "Prompt tokens of accepted requests", ("accepted", "prompt")),
    ("vllm:prefix_cache_hits", "Prompt tokens reused from the pool", ("admitted", "hit_tokens")),
    ("vllm:gpu_prefix_cache_queries", "As vllm:prefix_cache_queries", ("accepted", "prompt")),
    ("vllm:gpu_prefix_cache_hits", "As vllm:prefix_cache_hits", ("admitted", "hit_tokens")),
    ("vllm:prompt_tokens", "As quire_prompt_tokens", ("accepted", "prompt")),
    ("vllm:generation_tokens", "As quire_output_tokens", ("ended", "outputs")),
)
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")


def aliases(plan: Plan, tick: EngineTick, running: float, waiting: float) -> Iterable[Metric]:
    """`running`, `waiting`: as Quire's own metrics count them."""
    yield GaugeMetricFamily("vllm:num_requests_running", "As quire_requests_running", value=running)
    yield GaugeMetricFamily("vllm:num_requests_waiting", "Sum of quire_requests_waiting", value=waiting)
    for name in _USAGE:
        yield GaugeMetricFamily(
            name, "Share of the pool that requests hold, from 0 to 1", value=usage(plan, tick.status)
        )
    sums = tick.status.sums if tick.status else {}
    for name, text, key in _COUNTERS:
        yield CounterMetricFamily(name, text, value=float(sums.get(key, 0)))
    if blocks := _blocks(plan):
        labels = {"block_size": str(plan.reuse_unit_tokens), "num_gpu_blocks": str(blocks)}
        info = GaugeMetricFamily("vllm:cache_config_info", "Blocks of the pool", labels=tuple(labels))
        info.add_metric(tuple(labels.values()), 1.0)
        yield info


def usage(plan: Plan, status: Status | None) -> float:
    """Bytes of pages that requests hold ÷ the pool, on the fullest stage. What only the cache holds counts as free."""
    stages = [stage for stage in plan.stages if stage.kinds]
    held = [0] * len(stages)
    for kind in status.kinds if status else ():
        sizes = {one.name: one.page_bytes for one in stages[kind.stage].kinds}
        held[kind.stage] += kind.used_pages * sizes[kind.kind]
    shares = [size / stage.pool_bytes for size, stage in zip(held, stages, strict=True) if stage.pool_bytes]
    return max(shares, default=0.0)


def _blocks(plan: Plan) -> int:
    """Units of reuse that the pool would hold of one prompt, by the kinds that grow; 0: no kind grows."""
    found = []
    for stage in plan.stages:
        token_bytes = sum(kind.token_bytes for kind in stage.kinds if kind.kind.grows)
        if token_bytes:
            found.append(int(stage.pool_bytes // (token_bytes * plan.reuse_unit_tokens)))
    return min(found, default=0)
