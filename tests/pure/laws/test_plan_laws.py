"""What every plan keeps, whatever mix of kinds it is made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import oracle
import pytest
from hypothesis import HealthCheck, assume, example, given
from hypothesis import strategies as st
from mixes import ENOUGH, Mix, memory_of, mixes
from oracle import Remembers

from examples import examples
from quire.core.dtypes import DType
from quire.core.memory import Part
from quire.models.shape import Layer, ModelShape
from quire.plan import bound
from quire.plan.plan import Plan, StagePlan
from quire.plan.settings import Budget, Settings
from quire.planner.waste import waste

pytestmark = pytest.mark.law

often = examples(80, suppress_health_check=[HealthCheck.too_slow])
seldom = examples(40, suppress_health_check=[HealthCheck.too_slow])


def by_hand(*hows: Remembers, page: int, max_length: int, ahead: int = 0) -> Mix:
    """One layer of each, all of the same bytes: a page is a sheet."""
    layers = tuple(Layer((memory_of(how, (Part("key", 1, 128),)),)) for how in hows)
    chosen = Settings(page_tokens={"": page}, speculative_tokens=ahead, max_requests=8)
    return Mix(hows, ModelShape("by hand", "laws", layers, max_length=max_length), chosen)


CHUNKS = (Remembers("chunked", chunk=6), Remembers("chunked", chunk=10))
PART_WAYS = by_hand(*CHUNKS, page=2, max_length=28)
"""The two chunks are never full at the same time within 28 tokens, so their maxima do not add up."""
MET_ONCE = by_hand(*CHUNKS, page=2, max_length=45)
"""They are full together at 28 and 29 settled tokens, and not again in the 15 tokens after that."""


def beside_states() -> Mix:
    """A few attention layers among large states: weighed at short lengths alone, pages would be smaller."""
    hows = (Remembers("state"), Remembers("full"))
    state = memory_of(hows[0], (Part("state", 1, 2_146_304, dtype=DType.INT8, replicated=True),))
    attention = memory_of(hows[1], (Part("key", 1, 64), Part("value", 1, 64)))
    layers = (Layer((state,)),) * 4 + (Layer((attention,)),) * 2
    return Mix(hows, ModelShape("by hand", "laws", layers, max_length=262_144), Settings())


BESIDE_STATES = beside_states()


def cheapest(mix: Mix, stage: StagePlan, length: int) -> int:
    """Sheets without which the stage cannot take a lone request to `length`: by brute force."""
    chosen = mix.settings
    return int(
        oracle.lone_request(mix.shares(stage), length, 1, chosen.speculative_tokens, chosen.reserved_pages).max()
    )


def cut(plan: Plan) -> list[tuple[object, ...]]:
    """Where the bytes lie, apart from how many sheets there are."""
    return [(stage.first_layer, stage.layers, stage.kinds, stage.sheet_bytes) for stage in plan.stages]


def single_pool(data: st.DataObject, mix: Mix) -> tuple[int, int]:
    """A length and a number of sheets that may or may not hold it."""
    stages = [stage for stage in mix.plan(ENOUGH).stages if stage.kinds]
    length = data.draw(st.integers(1, mix.model.max_length or 1), "length")
    needed = max(cheapest(mix, stage, length) for stage in stages)
    return length, data.draw(st.integers(max(1, needed // 2), 2 * needed + 1), "sheets")


@often
@given(st.data(), mixes())
@example(None, PART_WAYS)
@example(None, MET_ONCE)
def test_the_minimum_is_the_dearest_moment_of_all_kinds_together(data: st.DataObject | None, mix: Mix) -> None:
    """minimum(L) = max over c < L of Σ over kinds ⌈groups · pages ÷ pages per sheet⌉: one maximum, not one per kind."""
    longest = mix.model.max_length or 1
    length = data.draw(st.integers(1, longest), "length") if data else longest
    for stage in mix.plan(ENOUGH).stages:
        told = bound.minimum(stage.kinds, length, mix.settings.speculative_tokens, mix.settings.reserved_pages)
        assert told == (cheapest(mix, stage, length) if stage.kinds else 0)


@pytest.mark.parametrize(("mix", "sheets"), [(PART_WAYS, 7), (MET_ONCE, 8)], ids=["never met", "met once"])
def test_maxima_add_up_only_if_they_meet(mix: Mix, sheets: int) -> None:
    """Chunks of 6 and 10 tokens in pages of 2 want 3 and 5 pages: 8 sheets once both are full, and 7 before."""
    (stage,) = mix.plan(ENOUGH).stages
    length = mix.model.max_length or 1
    assert [kind.pages_per_sheet for kind in stage.kinds] == [1, 1]
    assert [kind.kind.minimum(length, 0, 2) for kind in stage.kinds] == [5, 3]
    assert bound.minimum(stage.kinds, length, 0) == cheapest(mix, stage, length) == sheets


@often
@given(st.data(), mixes(), st.integers(1, 600))
def test_the_peak_of_a_lone_request_is_its_dearest_moment_in_prefill(data: st.DataObject, mix: Mix, chunk: int) -> None:
    """peak(L, chunk): the same joint maximum with up to a chunk in flight."""
    length = data.draw(st.integers(1, mix.model.max_length or 1), "length")
    ahead, reserved = mix.settings.speculative_tokens, mix.settings.reserved_pages
    chunks = [new for new in {1, chunk, *range(length - ahead - 1, length + 1)} if 1 <= new <= chunk]
    for stage in mix.plan(ENOUGH).stages:
        own = reserved if stage.kinds else 0
        sheets = [oracle.lone_request(mix.shares(stage), length, new, ahead, own).max() for new in chunks]
        assert bound.peak(stage.kinds, length, chunk, ahead, reserved) == max(sheets)


@often
@given(st.data(), mixes())
def test_a_request_is_admitted_if_and_only_if_it_is_within_the_advertised_length(data: st.DataObject, mix: Mix) -> None:
    """accepts(L) on an empty pool ⇔ L ≤ advertised length ⇔ brute force finds room for every moment of it."""
    _, sheets = single_pool(data, mix)
    plan = mix.plan(Budget(sheets=(sheets,)))
    limit = mix.model.max_length or 1
    near = range(max(1, plan.max_length - 3), plan.max_length + 4)
    others = data.draw(st.lists(st.integers(1, limit + 9), max_size=5), "others")
    for length in (*near, *others):
        room = all(cheapest(mix, stage, length) <= stage.sheets for stage in plan.stages if stage.kinds)
        assert bound.admits(plan, length) == (length <= plan.max_length) == (room and length <= limit)
    assert plan.fits == (plan.max_length >= 1)


@often
@given(st.data(), mixes(most_stages=1))
def test_one_sheet_fewer_than_the_minimum_and_the_plan_refuses(data: st.DataObject, mix: Mix) -> None:
    """With exactly the minimum of a length the plan fits and grants it; one sheet fewer, and it says no and why."""
    length = data.draw(st.integers(1, mix.model.max_length or 1), "length")
    (stage,) = mix.plan(ENOUGH).stages
    needed = cheapest(mix, stage, length)
    enough = mix.plan(Budget(sheets=(needed,)), max_length=length)
    assert enough.fits
    assert enough.max_length == length
    assert not enough.problem
    if needed > 1:
        short = mix.plan(Budget(sheets=(needed - 1,)), max_length=length)
        assert not short.fits
        assert short.max_length < length
        assert f"{needed:,}" in short.problem


@seldom
@given(st.data(), mixes(), st.integers(1, 40))
def test_a_larger_pool_never_shortens_the_longest_length(data: st.DataObject, mix: Mix, more: int) -> None:
    """n sheets, n + k sheets: the advertised length does not fall, nor does the number of requests."""
    length, sheets = single_pool(data, mix)
    small, large = (mix.plan(Budget(sheets=(count,))) for count in (sheets, sheets + more))
    assert small.max_length <= large.max_length
    for with_prefill in (False, True):
        assert bound.concurrency(small, length, with_prefill) <= bound.concurrency(large, length, with_prefill)


@seldom
@given(st.data(), mixes(), st.integers(0, 10**6), st.sampled_from((0.5, 0.92, 1.0)))
def test_a_larger_device_never_shortens_the_longest_length(
    data: st.DataObject, mix: Mix, more: int, fraction: float
) -> None:
    """Weights, tables and all: a device with more memory admits at least as long a request, and its ledger closes."""
    _, sheets = single_pool(data, mix)
    bare = mix.plan(Budget(sheets=(sheets,), is_accelerator=False))
    used = max(sum(line.bytes for line in rank.ledger) for rank in bare.ranks)
    wobble = data.draw(st.integers(-4 * max(stage.sheet_bytes for stage in bare.stages), 10**6), "wobble")
    memory = max(1, int(used / fraction) + wobble)
    plans = []
    for size in (memory, memory + more):
        plans.append(mix.plan(Budget(memory_bytes=size, memory_fraction=fraction, is_accelerator=False)))
        assert cut(plans[-1]) == cut(bare)
        for rank in plans[-1].ranks:
            ledger = {line.name: line.bytes for line in rank.ledger}
            assert sum(line.bytes for line in rank.ledger) == size
            if plans[-1].fits:
                assert ledger["weights"] > 0
                assert ledger["pool"] == rank.pool_bytes > 0 or not plans[-1].stages[rank.stage].kinds
                assert ledger["margin"] >= int(size * (1 - fraction))
    assert plans[0].max_length <= plans[1].max_length
    for plan in plans:
        limit = mix.model.max_length or 1
        for length in range(max(1, plan.max_length - 2), min(limit, plan.max_length + 2) + 1):
            assert bound.admits(plan, length) == (length <= plan.max_length)


@seldom
@given(st.data(), mixes(most_stages=1))
def test_sheets_and_the_bytes_of_as_many_sheets_are_the_same_pool(data: st.DataObject, mix: Mix) -> None:
    """An override in sheets equals one in bytes, and bytes short of another sheet buy nothing."""
    length, sheets = single_pool(data, mix)
    plan = mix.plan(Budget(sheets=(sheets,)))
    size = plan.stages[0].sheet_bytes
    for pool in (sheets * size, sheets * size + size - 1):
        other = mix.plan(Budget(pool_bytes=pool))
        assert other.stages == plan.stages
        assert other.max_length == plan.max_length
        assert bound.concurrency(other, length) == bound.concurrency(plan, length)
    less = mix.plan(Budget(pool_bytes=sheets * size - 1))
    assert less.stages[0].sheets == sheets - 1


@seldom
@given(st.data(), mixes(), st.integers(1, 10**9), st.integers(1, 20_000), st.integers(1, 300))
@example(None, BESIDE_STATES, 10**8, 512, 16)
def test_the_geometry_does_not_depend_on_budget_length_or_batch(
    data: st.DataObject | None, mix: Mix, pool: int, batch_tokens: int, max_requests: int
) -> None:
    """Pages and sheets follow from the model alone: a smaller limit, pool or batch cuts nothing differently."""
    asked = 500
    if data:
        longest = data.draw(st.integers(1, 100_000), "longest")
        mix = replace(mix, model=replace(mix.model, max_length=longest))
        asked = data.draw(st.integers(1, longest), "asked")
    plan = mix.plan(ENOUGH)
    other = mix.plan(Budget(pool_bytes=pool), max_length=asked, batch_tokens=batch_tokens, max_requests=max_requests)
    assert cut(other) == cut(plan)


@often
@given(st.data(), mixes())
def test_concurrency_is_what_a_pool_takes_when_requests_come_one_by_one(data: st.DataObject, mix: Mix) -> None:
    """concurrency(L): N requests fit and N + 1 do not, in whole sheets; likewise beside one full chunk in flight. None
    does where a lone one could not get there: with chunks, a moment before the last may be dearer."""
    length, sheets = single_pool(data, mix)
    sheets *= data.draw(st.integers(1, 6), "requests")
    plan = mix.plan(Budget(sheets=(sheets,)))
    ahead, reserved = mix.settings.speculative_tokens, mix.settings.reserved_pages
    stages = [stage for stage in plan.stages if stage.kinds]
    gets_there = all(cheapest(mix, stage, length) <= sheets for stage in stages)
    alone = min(oracle.together(mix.shares(stage), sheets, length, ahead, reserved) for stage in stages) * gets_there
    chunk = mix.settings.batch_tokens
    beside = min(oracle.together(mix.shares(stage), sheets, length, ahead, reserved, chunk) for stage in stages)
    beside *= gets_there
    assert bound.concurrency(plan, length) == alone
    assert bound.concurrency(plan, length, with_prefill=True) == beside <= alone


@seldom
@given(st.data(), mixes())
def test_fewer_sheets_never_hold_more_requests(data: st.DataObject, mix: Mix) -> None:
    """concurrency falls or stays as the pool shrinks sheet by sheet, and with it what fits beside a chunk."""
    length, sheets = single_pool(data, mix)
    pools = range(max(1, sheets - 6), sheets + 1)
    plans = [mix.plan(Budget(sheets=(count,))) for count in pools]
    for with_prefill in (False, True):
        held = [bound.concurrency(plan, length, with_prefill) for plan in plans]
        assert held == sorted(held)


@often
@given(mixes())
def test_every_byte_of_a_page_belongs_to_one_tensor_or_is_padding(mix: Mix) -> None:
    """Manifest entries lie inside their page, never overlap and add up to exactly what the kind stores."""
    for stage in mix.plan(ENOUGH).stages:
        for kind in stage.kinds:
            how = mix.how(kind.kind)
            stored = kind.unit_bytes * (1 if how.kind == "state" else kind.page_tokens // how.fold)
            assert {entry.group for entry in kind.manifest} == set(range(kind.groups))
            for group in range(kind.groups):
                entries = sorted((e for e in kind.manifest if e.group == group), key=lambda e: e.offset_bytes)
                assert entries[0].offset_bytes >= 0
                assert entries[-1].offset_bytes + entries[-1].bytes <= kind.page_bytes
                assert all(a.offset_bytes + a.bytes <= b.offset_bytes for a, b in pairwise(entries))
                assert kind.groups * sum(e.bytes for e in entries) == stored
            assert kind.groups * kind.page_bytes >= stored
            assert kind.page_bytes % 256 == 0
            assert kind.pages_per_sheet >= 1
            assert kind.pages_per_sheet * kind.page_bytes <= stage.sheet_bytes


@often
@given(mixes())
def test_every_tensor_of_every_layer_is_in_exactly_one_page(mix: Mix) -> None:
    """Nothing a layer remembers is forgotten, and nothing is kept twice: stages, kinds and groups divide the model."""
    model, chosen = mix.model, mix.settings
    wanted = Counter(
        (index, memory.kind, memory.purpose, part.name, part.heads, part.row_bytes(chosen.kv_dtype, chosen.state_dtype))
        for index, layer in enumerate(model.layers)
        for memory in layer.memories
        for part in memory.parts
    )
    kept = Counter(
        (entry.layer, kind.kind.kind, entry.purpose, entry.part, entry.heads, entry.row_bytes)
        for stage in mix.plan(ENOUGH).stages
        for kind in stage.kinds
        for entry in kind.manifest
    )
    assert kept == wanted


@often
@given(mixes(), st.integers(1, 700))
def test_no_plan_takes_less_than_it_needs(mix: Mix, length: int) -> None:
    """waste(L) = pages held × sheet bytes ÷ pages per sheet ÷ exact live bytes, over L … L + 63: never below 1."""
    plan = mix.plan(ENOUGH)
    lengths = np.arange(length, length + 64)
    taken, exact = np.zeros(64), np.zeros(64)
    for stage in plan.stages:
        for kind, share in zip(stage.kinds, mix.shares(stage), strict=True):
            taken += (
                share.groups * oracle.steady(share.how, lengths, share.page) * stage.sheet_bytes / share.pages_per_sheet
            )
            exact += np.array([oracle.units(share.how, int(one)) for one in lengths]) * kind.unit_bytes
    assume(exact.all())  # fewer tokens than one state folds: nothing is live yet
    told = waste(plan, length)
    assert told == pytest.approx(float((taken / exact).mean()), rel=1e-9)
    assert told >= 1


@often
@given(st.sampled_from((2, 4, 8)).flatmap(lambda ranks: mixes(tensor_parallel=ranks)))
def test_ranks_never_count_a_byte_twice(mix: Mix) -> None:
    """Unique bytes over all ranks do not depend on how many there are; what ranks keep together covers them."""

    def unique(plan: Plan) -> list[dict[str, int]]:
        return [{kind.name: kind.unique_unit_bytes for kind in stage.kinds} for stage in plan.stages]

    ranks = mix.settings.tensor_parallel
    plan, alone = mix.plan(ENOUGH), mix.plan(ENOUGH, tensor_parallel=1)
    assert unique(plan) == unique(alone)
    for stage, lone in zip(plan.stages, alone.stages, strict=True):
        for kind, whole in zip(stage.kinds, lone.kinds, strict=True):
            assert whole.unit_bytes == whole.unique_unit_bytes
            assert kind.unit_bytes * ranks >= kind.unique_unit_bytes
            assert kind.unit_bytes <= whole.unit_bytes


@seldom
@given(st.data(), mixes(), st.integers(512, 16_384), st.integers(512, 16_384))
def test_the_batch_does_not_change_the_longest_length(data: st.DataObject, mix: Mix, one: int, other: int) -> None:
    """In-flight tokens are one budget of the step: with a fixed pool the advertised length does not know the batch."""
    _, sheets = single_pool(data, mix)
    plans = [mix.plan(Budget(sheets=(sheets,)), batch_tokens=batch) for batch in (512, one, other, 16_384)]
    assume(plans[0].max_length > 0)
    assert len({plan.max_length for plan in plans}) == 1
    assert len({plan.stages for plan in plans}) == 1
