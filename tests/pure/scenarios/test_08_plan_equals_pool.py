"""Plan equals pool: as many requests as the plan says fit together are what the real allocator holds, exactly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from examples import rest_in_soak
from quire.cache.memory import StageMemory
from quire.cache.pool import Holder
from quire.core.units import GIB
from quire.kinds import Counts
from quire.models.catalogue import catalogue_names
from quire.models.read import read_model
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from small_kinds import KINDS

POOL = Budget(pool_bytes=64 * GIB)
LENGTHS = (1024, 8192, 32_768, 131_072)
KEPT = (
    *("gemma-3-27b", "gpt-oss-20b", "meta-llama-3.1-8b", "llama-4-scout-17b-16e-instruct", "deepseek-v3"),
    *("deepseek-v4-pro", "qwen3-next-80b-a3b", "jamba-v0.1", "mistral-7b-v0.1", "lfm2-700m"),
    *("kimi-linear-48b-a3b", "gemma-3n-e4b"),
)
"""Every kind and the mixes of them: `make soak` tries the whole catalogue."""
CHUNK = 512
"""Tokens of a step: it makes tables wide, and has no part in what fits together."""


def stand(memory: StageMemory, rows: Counts, length: int) -> None:
    """Puts rows where `length` − 1 tokens are settled and what they read lies in pages that are to be taken."""
    for table in memory.tables:
        settled = np.full_like(rows, length - 1)
        assert not table.kind.kept_pages(settled, table.plan.page_tokens).any()
        table.first[rows] = table.end[rows] = table.kind.first_page(settled, table.plan.page_tokens)


def held_together(plan: Plan, length: int) -> int:
    """Requests in steady decode at `length` that the allocator lets in, out of one more than the plan says. Those let
    in take all their pages, and then there is no room for the next."""
    rows = np.arange(bound.concurrency(plan, length) + 1)
    memories = [StageMemory(stage, plan, len(rows)) for stage in plan.stages if stage.kinds]
    needs = []
    for memory in memories:
        stand(memory, rows, length)
        needs.append(memory.needs(rows, rows * 0 + length - 1, rows * 0 + 1, rows * 0))
    held = min(memory.fitting(rows, need) for memory, need in zip(memories, needs, strict=True))
    for memory, need in zip(memories, needs, strict=True):
        memory.grow([one.among(rows[:held]) for one in need])
        assert not any((shelf.count(Holder.REQUEST) > 1).any() for shelf in memory.pool.shelves)
    left = [[one.among(rows[held:]) for one in need] for need in needs]
    over = [memory.fitting(rows[held:], need) for memory, need in zip(memories, left, strict=True)]
    assert held == len(rows) or not min(over)
    return held


@pytest.mark.parametrize("name", rest_in_soak(catalogue_names(), KEPT))
def test_a_catalogue_models_concurrency_is_what_the_allocator_holds(name: str) -> None:
    """At 1k, 8k, 32k, 128k and the longest, as far as the model goes, in 64 GiB."""
    plan = make_plan(read_model(name), Settings(batch_tokens=CHUNK), POOL)
    for length in sorted({*(one for one in LENGTHS if one <= plan.max_length), plan.max_length}):
        assert held_together(plan, length) == bound.concurrency(plan, length) > 0, length


@pytest.mark.parametrize(
    ("name", "ranks"),
    rest_in_soak(
        itertools.product(["gemma-3-27b", "qwen3-next-80b-a3b", "gpt-oss-120b"], [(2, 1), (1, 3), (4, 2)]),
        [("gemma-3-27b", (2, 1)), ("gemma-3-27b", (1, 3)), ("qwen3-next-80b-a3b", (2, 1)), ("gpt-oss-120b", (2, 1))],
    ),
)
def test_it_holds_for_models_that_are_divided(name: str, ranks: tuple[int, int]) -> None:
    """Over tensor-parallel ranks and pipeline stages, whichever of them is the bottleneck."""
    tensor, pipeline = ranks
    settings = Settings(batch_tokens=CHUNK, tensor_parallel=tensor, pipeline_parallel=pipeline)
    plan = make_plan(read_model(name), settings, POOL)
    for length in LENGTHS:
        assert held_together(plan, length) == bound.concurrency(plan, length) > 0, length


def odd_plan(names: list[str]) -> Plan:
    layers = tuple(KINDS[name] for name in names for _ in range(3))
    shape = ModelShape("odd", "test", layers, max_length=400, weights_known=False)
    return make_plan(shape, Settings(batch_tokens=64), Budget(sheets=(90,)))


@pytest.mark.parametrize("names", [["cross", "window", "full"], ["cross", "state", "chunked"]])
def test_it_holds_beside_an_encoders_output(names: list[str]) -> None:
    plan = odd_plan(names)
    for length in (1, 17, 100, 215, 400):
        assert held_together(plan, length) == bound.concurrency(plan, length) > 0, length


@pytest.mark.parametrize("names", [["sink", "full"], ["sink", "window"], ["chunked", "state", "sink"]])
def test_it_holds_with_sinks_request_by_request(names: list[str]) -> None:
    """Each request takes its pages, its first tokens' too, before the next one asks."""
    plan = odd_plan(names)
    for length in (1, 17, 100, 215, 400):
        expected = bound.concurrency(plan, length)
        memory = StageMemory(plan.stages[0], plan, expected + 1)
        held = 0
        while held <= expected and takes(memory, held, length):
            held += 1
        assert held == expected > 0, length


def takes(memory: StageMemory, row: int, length: int) -> bool:
    settled, one = np.array([length - 1]), np.array([row])
    whole = [sum(pair) for pair in zip(memory.lacks(row, length - 1), next_pages(memory, length), strict=True)]
    if memory.pool.sheets_short(whole):
        return False
    memory.begin_at(row, length - 1)
    memory.grow(memory.needs(one, settled, np.array([1]), np.array([0])))
    return True


def next_pages(memory: StageMemory, length: int) -> list[int]:
    """Pages of each kind that the last token opens."""
    ends = [
        [
            int(table.kind.end_page(np.asarray(end), np.asarray(0), table.plan.page_tokens))
            for end in (length - 1, length)
        ]
        for table in memory.tables
    ]
    return [table.plan.groups * (after - before) for table, (before, after) in zip(memory.tables, ends, strict=True)]


@pytest.mark.parametrize("name", rest_in_soak(catalogue_names(), KEPT))
def test_the_maximum_length_does_not_change_how_many_shorter_requests_fit(name: str) -> None:
    """In the same pool, configured for 8k, for 32k or for all the model can: the same number of 8k requests."""
    model = read_model(name)
    short = min(8192, model.max_length or 8192)
    lengths = {short, min(32_768, model.max_length or 32_768), None}
    plans = [make_plan(model, Settings(batch_tokens=CHUNK, max_length=length), POOL) for length in lengths]
    assert len({held_together(plan, short) for plan in plans}) == 1
