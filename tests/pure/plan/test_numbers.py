"""The numbers to hold on to: facts of real models and of peers' mistakes that every release must reproduce."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType

import pytest
from shapes import FULL, GEMMA_3_27B, GEMMA_4_31B, attention, latent, model, state

from quire.core.dtypes import DType
from quire.core.errors import DoesNotFit, PlanError
from quire.core.units import GIB
from quire.kinds import Chunked, Full, Window
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.planner.waste import waste

GEMMA_POOL = Budget(pool_bytes=int(64.68 * GIB))


def test_gemma_4_writes_901120_bytes_per_token_and_grows_by_81920() -> None:
    """50 window layers × 16 × 256 and 10 full × 4 × 512, K and V both stored."""
    plan = make_plan(model(GEMMA_4_31B, 262_144), Settings(), GEMMA_POOL)
    assert sum(kind.token_bytes for kind in plan.stages[0].kinds) == 901_120
    assert plan.bytes_per_token == 81_920


def test_in_flight_tokens_are_one_budget_shared_by_all_requests() -> None:
    """3 / 5 / 19 requests of 262k / 131k / 32k in 64.68 GiB, and 2 / 5 / 17 beside a full 8,192-token chunk."""
    plan = make_plan(model(GEMMA_4_31B, 262_144), Settings(batch_tokens=8192), GEMMA_POOL)
    lengths = (262_144, 131_072, 32_768)
    assert [bound.concurrency(plan, length) for length in lengths] == [3, 5, 19]
    assert [bound.concurrency(plan, length, with_prefill=True) for length in lengths] == [2, 5, 17]


@pytest.mark.story
def test_a_100000_token_prompt_needs_4090_blocks_not_34375() -> None:
    """A peer froze for ever: 14,022 blocks of 2,621,440 B, 2,048 batched tokens; five groups of ten window layers in
    16-token blocks and ten full layers in 32-token blocks."""
    full = Full().peak(100_000, 2048, 0, 32)
    window = 5 * Window(1024).peak(100_000, 2048, 0, 16)
    assert (full, window, full + window) == (3125, 965, 4090)
    pool = Budget(pool_bytes=14_022 * 2_621_440)
    assert bound.admits(make_plan(model(GEMMA_4_31B, 262_144), Settings(batch_tokens=2048), pool), 100_000)


@pytest.mark.parametrize(("dtype", "expected"), [(DType.BF16, 61 * 1152), (DType.FP8, 61 * 656)])
def test_a_latent_takes_1152_bytes_in_bf16_and_656_in_fp8(dtype: DType, expected: int) -> None:
    """Rank 512 with a scale per 128 numbers in fp8; the 64 rotary numbers stay bf16."""
    plan = make_plan(model([latent()] * 61), Settings(kv_dtype=dtype), Budget(pool_bytes=GIB))
    assert plan.bytes_per_token == expected


def test_a_state_of_megabytes_does_not_dictate_the_attention_page() -> None:
    """Qwen3.5-4B's geometry: a peer's block is 528 tokens, ours at most 64, and prefixes match in at most 64."""
    layers = [state(2_146_304)] * 24 + [attention("full", 4, 256)] * 8
    plan = make_plan(model(layers, 262_144), Settings(), Budget(pool_bytes=8 * GIB))
    pages = {kind.name: kind.page_tokens for kind in plan.stages[0].kinds}
    assert pages["full"] in (16, 32, 64)
    assert plan.match_unit_tokens <= 64
    assert plan.checkpoint_bytes == 24 * 2_146_304


@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_replicated_latents_are_stored_once_on_the_host(ranks: int) -> None:
    """MLA 1,152 B × 61 layers, 64 tokens a page, 64 GiB: 15,279 pages whatever the ranks (3,819 with copies)."""
    settings = Settings(page_tokens=MappingProxyType({"": 64}), tensor_parallel=ranks, host_bytes=64 * GIB)
    host = make_plan(model([latent()] * 61), settings, Budget(pool_bytes=8 * GIB)).host
    assert host is not None
    assert dict(host.pages) == {"latent": 15_279}
    assert dict(host.page_bytes) == {"latent": 1152 * 61 * 64}


def test_host_pages_hold_every_head_once_even_when_ranks_keep_copies() -> None:
    """8 KV heads over 16 ranks: each rank stores one head, two ranks the same; the host stores eight."""
    forced = Settings(page_tokens=MappingProxyType({"": 16}), host_bytes=GIB)
    settings = [replace(forced, tensor_parallel=ranks) for ranks in (1, 8, 16)]
    pages = [make_plan(model([FULL] * 4), one, Budget(pool_bytes=8 * GIB)).host for one in settings]
    assert pages[0] == pages[1] == pages[2]


def test_a_host_block_of_four_pages_holds_a_quarter_as_often() -> None:
    """The fixture in pages of 16 tokens: blocks of 16, 32 or 64 of them, and as many pages as whole blocks hold."""
    forced = Settings(page_tokens=MappingProxyType({"": 16}), host_bytes=64 * GIB)
    blocks = {}
    for tokens in (16, 32, 64):
        host = make_plan(
            model([latent()] * 61), replace(forced, host_block_tokens=tokens), Budget(pool_bytes=8 * GIB)
        ).host
        assert host is not None
        assert host.block_bytes == 1152 * 61 * tokens
        assert dict(host.pages) == {"latent": host.blocks * tokens // 16}
        blocks[tokens] = host.blocks
    assert blocks == {16: 61_119, 32: 30_559, 64: 15_279}


@pytest.mark.parametrize(("asked", "page"), [(48, 16), (8, 16), (128, 32)])
def test_a_host_block_that_does_not_divide_is_refused_with_both_numbers_and_the_option(asked: int, page: int) -> None:
    settings = Settings(page_tokens=MappingProxyType({"": page}), host_block_tokens=asked)
    with pytest.raises(PlanError) as refused:
        make_plan(model([FULL] * 4), settings, Budget(pool_bytes=GIB))
    assert f"--host-block {asked}" in str(refused.value)
    assert f"pages of {page} tokens (full) and divide the 64 tokens" in str(refused.value)


def test_a_host_budget_smaller_than_a_block_holds_no_page() -> None:
    settings = Settings(page_tokens=MappingProxyType({"": 64}), host_bytes=1024)
    host = make_plan(model([latent()] * 61), settings, Budget(pool_bytes=GIB)).host
    assert host is not None
    assert (host.blocks, host.pages["latent"], host.warm_sessions) == (0, 0, 0)


def test_thirty_two_sheets_of_sixteen_tokens_refuse_16384_and_advertise_512() -> None:
    """Asked for 16,384: refused with the numbers. Automatic: 512, or 496 if the backend keeps one page for itself."""
    budget, automatic = Budget(sheets=(32,)), Settings(page_tokens=MappingProxyType({"": 16}))
    asked = make_plan(model([FULL] * 2), replace(automatic, max_length=16_384), budget)
    assert not asked.fits
    assert asked.max_length == 512
    for number in ("16,384", "1,024", "32", "512"):
        assert number in asked.problem
    with pytest.raises(DoesNotFit):
        asked.require_fit()
    assert make_plan(model([FULL] * 2), automatic, budget).max_length == 512
    reserved = make_plan(model([FULL] * 2), replace(automatic, reserved_pages=1), budget)
    assert reserved.max_length == 496
    assert bound.concurrency(reserved, 496) == 1
    assert not bound.admits(reserved, 497)


def test_closed_forms_that_are_one_page_short_in_a_peer() -> None:
    """Chunked with C = 1,000 and pages of 64; a window of 128 with 3 lookahead tokens and pages of 64."""
    assert Chunked(1000).minimum(100_037, 0, 64) == 17
    assert Window(128).minimum(100_000, 3, 64) == 4


def test_a_chunk_longer_than_a_request_is_that_of_several_newcomers() -> None:
    """8,192 tokens in flight beside requests of 1,024: eight newcomers, not one."""
    plan = make_plan(model([FULL] * 4), Settings(batch_tokens=8192), Budget(pool_bytes=GIB))
    alone, beside = (bound.concurrency(plan, 1024, with_prefill=chunk) for chunk in (False, True))
    assert alone - beside == 8


@pytest.mark.parametrize("folded", [3, 128, 4096])
def test_any_number_of_tokens_may_be_folded(folded: int) -> None:
    plan = make_plan(model([latent(tokens_per_state=folded)] * 4), Settings(), Budget(pool_bytes=GIB))
    page = plan.stages[0].kinds[0].page_tokens
    assert page % folded == 0
    assert page >= 16


def test_the_longest_length_does_not_fall_with_batch_tokens() -> None:
    """Gemma-3-27B in 8 GiB: a peer falls from 95,520 to 14,960 when batch tokens go from 512 to 16,384."""
    longest = {
        make_plan(model(GEMMA_3_27B), Settings(batch_tokens=tokens), Budget(pool_bytes=8 * GIB)).max_length
        for tokens in (512, 2048, 8192, 16_384)
    }
    assert len(longest) == 1
    assert longest.pop() > 95_520


def test_the_geometry_and_the_8k_answer_do_not_depend_on_the_configured_length() -> None:
    """With a fixed pool, changing only the maximum length does not change how many 8k requests fit."""
    plans = [
        make_plan(model(GEMMA_3_27B), Settings(max_length=length), Budget(pool_bytes=64 * GIB))
        for length in (8192, 32_768, 131_072)
    ]
    assert len({bound.concurrency(plan, 8192) for plan in plans}) == 1
    assert len({plan.stages[0].kinds for plan in plans}) == 1


def test_a_window_model_takes_its_long_prompt_where_a_full_one_is_refused() -> None:
    """Admission equals sizing: the same bytes, the same 100,000 tokens."""
    budget = Budget(pool_bytes=GIB)
    assert bound.admits(make_plan(model([attention("window", window=4096)] * 32), Settings(), budget), 100_000)
    assert not bound.admits(make_plan(model([FULL] * 32), Settings(), budget), 100_000)


def test_one_sheet_fewer_and_the_boot_check_refuses() -> None:
    needed = bound.minimum(make_plan(model(GEMMA_3_27B), Settings(), Budget(sheets=(1000,))).stages[0].kinds, 50_000, 0)
    assert make_plan(model(GEMMA_3_27B), Settings(max_length=50_000), Budget(sheets=(needed,))).fits
    assert not make_plan(model(GEMMA_3_27B), Settings(max_length=50_000), Budget(sheets=(needed - 1,))).fits


def test_nothing_is_admitted_below_one_token_and_nothing_is_live_before_the_first_fold() -> None:
    """A request of no tokens cannot exist; waste has no value where no byte is live."""
    plan = make_plan(model([latent(tokens_per_state=128)] * 4), Settings(), Budget(pool_bytes=GIB))
    assert not bound.admits(plan, 0)
    assert bound.minimum(plan.stages[0].kinds, 0, 0) == 0
    assert math.isnan(waste(plan, 1))
    assert waste(plan, 1024) >= 1


def test_a_page_size_is_forced_by_exact_name_or_by_sort() -> None:
    """`latent` is the plain latent's own name where there is one, and all latents otherwise."""
    both = model([latent(), latent(tokens_per_state=4)])
    plan = make_plan(both, Settings(page_tokens=MappingProxyType({"latent": 2})), Budget(pool_bytes=GIB))
    pages = {kind.name: kind.page_tokens for kind in plan.stages[0].kinds}
    assert pages["latent"] == 2
    assert pages["latent-4"] >= 16
    folded = make_plan(
        model([latent(tokens_per_state=4)]),
        Settings(page_tokens=MappingProxyType({"latent": 8})),
        Budget(pool_bytes=GIB),
    )
    assert folded.stages[0].kinds[0].page_tokens == 8
