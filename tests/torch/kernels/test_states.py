"""Recurrent layers over state pages, against their definition. Pages that nobody names stay as they were: NaN."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from state_case import DEVICE, Pages, convolution_by_definition, recurrence_by_definition

from examples import rest_in_soak
from quire.worker.backends.recurrent import Recurrence
from quire.worker.backends.states import convolve, recur

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Case:
    counts: tuple[int, ...] = (1, 1, 1)
    drafts: tuple[int, ...] = (0, 0, 0)
    heads: int = 4
    key_heads: int = 2
    keys: int = 8
    values: int = 12
    delta: bool = True
    by_key: bool = False
    dtype: torch.dtype = torch.float32
    kept: torch.dtype = torch.float32
    """States."""
    captures: tuple[tuple[int, int], ...] = ()
    """(row, tokens)"""


MIXED = (1, 0, 70)
CASES = {
    "delta rule: one token each": Case(),
    "delta rule: prompts of one chunk and more, a row without tokens": Case(counts=MIXED),
    "delta rule: a prompt that ends with its chunk": Case(counts=(64, 1, 128), heads=2),
    "delta rule: drafts": Case(counts=(1, 5, 3), drafts=(0, 3, 2)),
    "delta rule: bf16": Case(counts=MIXED, dtype=torch.bfloat16),
    "delta rule: in blocks of values": Case(counts=(1, 17, 2), heads=1, key_heads=1, keys=16, values=600),
    "decays of their own for each key": Case(counts=(1, 0, 20), drafts=(0, 0, 2), by_key=True),
    "no delta rule: one token each": Case(delta=False),
    "no delta rule: prompts, a row without tokens": Case(counts=MIXED, delta=False),
    "no delta rule: drafts": Case(counts=(1, 5, 3), drafts=(0, 3, 2), delta=False),
    "no delta rule: bf16": Case(counts=MIXED, delta=False, dtype=torch.bfloat16),
    "delta rule: states in bf16": Case(counts=MIXED, kept=torch.bfloat16),
    "delta rule: states in bf16, drafts": Case(counts=(1, 5, 3), drafts=(0, 3, 2), kept=torch.bfloat16),
    "no delta rule: all in bf16": Case(counts=MIXED, delta=False, dtype=torch.bfloat16, kept=torch.bfloat16),
}
CAPTURES = {
    "few tokens, the first and the last": Case(counts=(1, 6, 9), captures=((0, 1), (1, 2), (1, 6))),
    "beside drafts": Case(counts=(1, 6, 4), drafts=(0, 3, 1), captures=((1, 1), (1, 3), (2, 3))),
    "prompts: anywhere in a chunk, one after the other, at its end, at the row's end; a row without":
        Case(counts=(150, 1, 17, 40), drafts=(0, 0, 0, 0), heads=2, captures=(
            (0, 1), (0, 2), (0, 66), (0, 130), (0, 131), (0, 150), (1, 1), (2, 5))),
    "no delta rule: prompts": Case(counts=(100, 3, 33), delta=False, captures=((0, 37), (0, 99), (1, 2), (2, 32))),
    "decays of their own for each key": Case(counts=(40, 1, 5), by_key=True, captures=((0, 7), (0, 40), (2, 3))),
    "in blocks of values": Case(counts=(20, 2, 1), heads=1, key_heads=1, values=600, captures=((0, 9), (1, 1))),
    "states in bf16": Case(counts=(70, 3, 1), kept=torch.bfloat16, captures=((0, 40), (1, 2))),
}  # fmt: skip


def random_case(seed: int) -> Case:
    """Rows around the ends of chunks, and of where tokens go one by one; drafts where there are few."""
    random = np.random.default_rng(seed)
    counts = random.choice([0, 1, 2, 5, 15, 16, 17, 63, 64, 65, 100], 5)
    drafts = np.where(counts <= 5, random.integers(0, np.maximum(1, counts)), 0)
    share, key_heads = (int(one) for one in random.integers(1, 4, 2))
    keys, values = (int(one) for one in random.integers(1, 20, 2))
    delta = bool(random.integers(2))
    by_key = delta and bool(random.integers(2))
    return Case(tuple(counts), tuple(drafts), share * key_heads, key_heads, keys, values, delta, by_key)


def tokens_of(case: Case) -> Recurrence:
    count = sum(case.counts)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(count, *shape, device=DEVICE)

    both = random(2 * case.key_heads + 1, case.keys).to(case.dtype)
    faded = random(case.heads, case.keys) if case.by_key else random(case.heads)
    return Recurrence(
        query=both[:, : case.key_heads],
        key=both[:, case.key_heads : -1],
        value=random(case.heads, case.values).to(case.dtype),
        decay=-faded.exp() / 8,
        weight=random(case.heads).sigmoid(),
        scale=0.3,
        skip=None if case.delta else torch.randn(case.heads, device=DEVICE),
        has_delta=case.delta,
        is_normalised=case.delta,
    )


@pytest.mark.parametrize("name", CASES)
def test_recurrences_follow_the_definition(name: str) -> None:
    check_recurrence(CASES[name])


@pytest.mark.parametrize("seed", rest_in_soak(range(4), (1, 2)))
def test_random_recurrences_follow_the_definition(seed: int) -> None:
    check_recurrence(random_case(seed))


@pytest.mark.parametrize("name", CAPTURES)
def test_states_are_captured_after_the_tokens_named(name: str) -> None:
    """And rows end with what they end with otherwise. Red if a chunk is not cut at a capture, if a page is taken from
    the wrong token, or if a row or a group of rows without captures is written somewhere."""
    check_recurrence(CAPTURES[name])


def check_recurrence(case: Case) -> None:
    torch.manual_seed(0)
    tolerance = max(TOLERANCE[case.dtype], TOLERANCE[case.kept])
    width = case.heads * case.keys * case.values
    pages = Pages(list(case.counts), list(case.drafts), width, case.kept, case.captures)
    tokens, matrices = tokens_of(case), pages.matrices(case.heads, keys_first=case.delta)
    expected = recurrence_by_definition(pages, tokens, keys_first=case.delta)
    out = recur(pages.rows(), matrices, tokens)
    assert float((out.double() - expected).norm() / expected.norm()) < tolerance
    pages.check(tolerance * 3)


def test_keys_that_repeat_do_not_spoil_a_chunk() -> None:
    """Nothing fades, every token overwrites what the same key said before: sums of powers would lose all digits."""
    torch.manual_seed(0)
    pages, each = Pages([64], [0], 8 * 12, torch.float32), torch.ones(64, 1, device=DEVICE)
    key = torch.randn(1, 1, 8, device=DEVICE).expand(64, 1, 8).contiguous()
    value = torch.randn(64, 1, 12, device=DEVICE)
    tokens = Recurrence(key, key, value, 0 * each, each, 1.0, None, has_delta=True, is_normalised=True)
    expected = recurrence_by_definition(pages, tokens, keys_first=True)
    out = recur(pages.rows(), pages.matrices(1, keys_first=True), tokens)
    assert float((out.double() - expected).norm() / expected.norm()) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("taps", "has_silu"), [(4, True), (3, False)])
@pytest.mark.parametrize(
    ("counts", "drafts"),
    [((1, 0, 1), (0, 0, 0)), ((2, 1, 70), (0, 0, 0)), ((6, 2, 4), (3, 1, 0)), ((16, 17, 65, 129), (0, 0, 0, 0))],
)
@pytest.mark.parametrize("channels", [130, pytest.param(300, marks=pytest.mark.soak)])
def test_convolutions_follow_the_definition(
    counts: tuple[int, ...], drafts: tuple[int, ...], channels: int, taps: int, has_silu: bool, dtype: torch.dtype
) -> None:
    """In one block of channels and in two."""
    torch.manual_seed(0)
    pages = Pages(list(counts), list(drafts), channels * (taps - 1), dtype)
    inputs = torch.randn(sum(counts), channels + 3, device=DEVICE).to(dtype)[:, :channels]
    weight = torch.randn(channels, taps, device=DEVICE).to(dtype)
    bias = torch.randn(channels, device=DEVICE).to(dtype) if has_silu else None
    expected = convolution_by_definition(pages, inputs, weight, bias, has_silu)
    out = convolve(pages.rows(), pages.columns(torch.arange(channels) * (taps - 1)), inputs, weight, bias, has_silu)
    assert float((out.double() - expected).norm() / expected.norm()) < TOLERANCE[dtype]
    pages.check(0)


@pytest.mark.parametrize("taps", [4, 3])
@pytest.mark.parametrize("name", ["few tokens, the first and the last", "beside drafts", *list(CAPTURES)[2:3]])
def test_inputs_of_convolutions_are_captured_after_the_tokens_named(name: str, taps: int) -> None:
    """Among them inputs from before the step, which only the row's own page holds. Red if that page is written first,
    or if a column is one token off."""
    torch.manual_seed(0)
    case = CAPTURES[name]
    channels, captures = 300, case.captures
    pages = Pages(list(case.counts), list(case.drafts), channels * (taps - 1), torch.float32, captures)
    inputs, weight = (torch.randn(*size, device=DEVICE) for size in ((sum(case.counts), channels), (channels, taps)))
    expected = convolution_by_definition(pages, inputs, weight, None, False)
    out = convolve(pages.rows(), pages.columns(torch.arange(channels) * (taps - 1)), inputs, weight, None, False)
    assert float((out.double() - expected).norm() / expected.norm()) < TOLERANCE[torch.float32]
    pages.check(0)
