"""From logits to tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from quire.core.errors import InputError
from quire.core.sampling import Grammar, GrammarSort, Sampling
from quire.worker.sampling import sampler as sampler_module
from quire.worker.sampling.sampler import GREEDY, Sampler, columns_of, uniform

VOCABULARY = 50
HOT = Sampling(temperature=1.0, seed=7)


def drawn(logits: list[float], sampling: Sampling, times: int = 2_000) -> list[int]:
    """Tokens of one request at many positions, always with the same logits."""
    sampler = Sampler(1, len(logits))
    sampler.enter(0, sampling, [0])
    rows = torch.tensor([logits] * times)
    return [int(token) for token in sampler.sample(rows, [0] * times, np.arange(1, times + 1))]


def test_greedy_takes_the_most_likely_token_beside_hot_rows_too() -> None:
    logits = torch.randn(8, VOCABULARY, generator=torch.Generator().manual_seed(1))
    sampler = Sampler(8, VOCABULARY)
    assert torch.equal(sampler.sample(logits, range(8), [3] * 8), logits.argmax(-1))
    sampler.enter(5, HOT, [1])
    tokens = sampler.sample(logits, range(8), [3] * 8)
    assert tokens.dtype == torch.int64
    others = [0, 1, 2, 3, 4, 6, 7]
    assert torch.equal(tokens[others], logits.argmax(-1)[others])


WAYS = [GREEDY, *(replace(HOT, **more) for more in ({}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}))]  # type: ignore[arg-type]


@pytest.mark.story
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_one_logit_that_is_no_number_is_nobody_elses_business(way: Sampling, odd: float) -> None:
    """NaN is never drawn, infinity always; the other rows do not notice."""
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(1))
    spoilt = logits.clone()
    spoilt[1, 77] = odd
    sampler = Sampler(3, 300)
    for row in range(3):
        sampler.enter(row, way, [0])
    for position in range(1, 40):
        whole, tokens = (sampler.sample(one, range(3), [position] * 3).tolist() for one in (logits, spoilt))
        assert (tokens[0], tokens[2]) == (whole[0], whole[2])
        assert tokens[1] == 77 if odd == torch.inf else 0 <= tokens[1] < 300 and tokens[1] != 77


@pytest.mark.story
@pytest.mark.parametrize("way", [*WAYS, replace(HOT, repetition_penalty=0.5), replace(GREEDY, logit_bias=((3, 1.0),))])
@pytest.mark.parametrize("odd", [torch.nan, -torch.inf])
def test_a_row_without_numbers_yields_token_0(way: Sampling, odd: float) -> None:
    """As recorded steps have it; a token beyond the vocabulary would end the next step for everyone."""
    sampler = Sampler(2, 300)
    sampler.enter(0, way, [0])
    logits = torch.full((2, 300), odd)
    logits[1, 299] = -5.0
    assert sampler.sample(logits, [0, 1], [1, 1]).tolist() == [0, 299]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_the_softmax_says(temperature: float) -> None:
    logits, times = [0.0, 1.0, -1.0, 2.0, 0.5, -3.0], 20_000
    tokens = drawn(logits, replace(HOT, temperature=temperature), times)
    expected = torch.softmax(torch.tensor(logits, dtype=torch.float64) / temperature, -1).numpy() * times
    found = np.bincount(tokens, minlength=len(logits))
    chi_square = ((found - expected) ** 2 / expected).sum()
    assert chi_square < 20.5  # 5 degrees of freedom: exceeded once in a thousand seeds


def test_uniform_numbers_fill_their_interval_evenly_whatever_the_seed_and_position() -> None:
    seeds = np.repeat(np.arange(100, dtype=np.uint64), 1_000)
    numbers = uniform(seeds, np.tile(np.arange(1_000), 100))
    assert 0 <= numbers.min() <= numbers.max() < 1
    counts = np.histogram(numbers, 100, (0, 1))[0]
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 149  # 99 degrees of freedom, one in a thousand
    assert len(np.unique(numbers)) == len(numbers)


def test_top_k_keeps_the_k_most_likely_and_their_ties() -> None:
    assert set(drawn([1.0, 0.9, 0.8, 0.7], replace(HOT, top_k=2))) == {0, 1}
    assert set(drawn([1.0, 0.9, 0.9, 0.7], replace(HOT, top_k=2))) == {0, 1, 2}
    assert set(drawn([1.0, 0.9], replace(HOT, top_k=10))) == {0, 1}


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert set(drawn(logits, replace(HOT, top_p=0.39))) == {0}
    assert set(drawn(logits, replace(HOT, top_p=0.41))) == {0, 1}
    assert set(drawn(logits, replace(HOT, top_p=0.71))) == {0, 1, 2}
    assert set(drawn(logits, replace(HOT, top_p=0.91))) == {0, 1, 2, 3}
    assert set(drawn(logits, replace(HOT, top_p=1e-9))) == {0}


def test_top_p_counts_what_top_k_left() -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    # Of the first two, the first has 4/7.
    assert set(drawn(logits, replace(HOT, top_k=2, top_p=0.56))) == {0}
    assert set(drawn(logits, replace(HOT, top_k=2, top_p=0.58))) == {0, 1}


def test_min_p_keeps_what_is_likely_enough_beside_the_most_likely() -> None:
    logits = [math.log(p) for p in (0.5, 0.26, 0.24)]
    assert set(drawn(logits, replace(HOT, min_p=0.5))) == {0, 1}
    assert set(drawn(logits, replace(HOT, min_p=1.0))) == {0}


def kept(logits: npt.NDArray[np.float32], sampling: Sampling) -> set[int]:
    """The definition, token by token."""
    scaled = logits.astype(np.float64) / sampling.temperature
    chances = np.exp(scaled - scaled.max())
    order = list(np.argsort(-chances, kind="stable"))
    order = order[: sampling.top_k or len(order)]
    total, before, last = sum(chances[order]), 0.0, order[0]
    for token in order:
        if before >= sampling.top_p * total:
            break
        before, last = before + chances[token], token
    return {token for token in order if chances[token] >= max(chances[last], sampling.min_p * chances.max())}


@examples(60)
@given(
    seed=st.integers(0, 2**32),
    top_k=st.sampled_from([0, 1, 3, 17, 400]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.999]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    temperature=st.sampled_from([0.3, 1.0, 5.0]),
)
@pytest.mark.law
def test_what_is_drawn_was_kept_and_everything_kept_can_be_drawn(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    """Beyond CANDIDATES tokens too, where the whole vocabulary is ranked."""
    logits = np.random.default_rng(seed).normal(size=600).astype(np.float32)
    sampling = replace(HOT, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    scaled = torch.from_numpy(logits - logits.max())[None] / temperature
    columns = np.array([columns_of(sampling)]).T
    least = sampler_module._threshold(scaled, scaled.exp(), columns)
    assert set((scaled >= least)[0].nonzero().squeeze(-1).tolist()) == kept(logits, sampling)
    assert set(drawn(logits.tolist(), sampling, 50)) <= kept(logits, sampling)


@pytest.mark.law
def test_a_request_draws_the_same_tokens_alone_and_in_any_batch() -> None:
    generator = torch.Generator().manual_seed(3)
    samplings = [
        replace(HOT, seed=seed, temperature=0.5 + seed % 3, top_k=(0, 5, 400)[seed % 3], top_p=(1.0, 0.9)[seed % 2])
        for seed in range(12)
    ]
    samplings[3] = Sampling()
    samplings[4] = replace(samplings[4], presence_penalty=1.0, repetition_penalty=1.2)
    samplings[6] = replace(samplings[6], logit_bias=((3, 2.0),))
    logits = torch.randn(20, 12, 700, generator=generator)
    alone = []
    for request, sampling in enumerate(samplings):
        sampler = Sampler(1, 700)
        sampler.enter(0, sampling, [1, 2])
        alone.append([int(sampler.sample(logits[s, request : request + 1], [0], [2 + s])) for s in range(20)])
    order = torch.randperm(12, generator=generator).tolist()
    together = Sampler(16, 700)
    for place, request in enumerate(order):
        together.enter(place + 3, samplings[request], [1, 2])
    for s in range(20):
        shuffled = torch.randperm(12, generator=generator).tolist()
        rows = [place + 3 for place in shuffled]
        chosen = [order[place] for place in shuffled]
        tokens = together.sample(logits[s, chosen], rows, [2 + s] * 12).tolist()
        assert tokens == [alone[request][s] for request in chosen]


def test_after_a_preemption_penalties_and_draws_go_on_as_if_nothing_had_happened() -> None:
    logits = torch.randn(20, 1, VOCABULARY, generator=torch.Generator().manual_seed(4))
    sampling = replace(HOT, frequency_penalty=1.0, presence_penalty=0.5, repetition_penalty=1.3)
    sampler = Sampler(2, VOCABULARY)
    sampler.enter(0, sampling, [1, 2, 3])
    tokens = [int(sampler.sample(logits[s], [0], [3 + s])) for s in range(20)]
    again = Sampler(2, VOCABULARY)
    again.enter(1, sampling, [9])
    again.sample(logits[0], [1], [1])
    again.enter(1, sampling, [1, 2, 3], tokens[:8])
    assert [int(again.sample(logits[s], [1], [3 + s])) for s in range(8, 20)] == tokens[8:]


def test_penalties_are_what_a_loop_over_tokens_computes() -> None:
    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(5)) * 3
    sampling = Sampling(presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.5)
    prompt, outputs = [1, 2, 2, 3], [3, 4, 4, 4, 5]
    sampler = Sampler(2, VOCABULARY)
    sampler.enter(1, sampling, prompt, outputs)
    shaped = sampler.penalties.apply(logits, np.array([0, 1]))
    expected = logits[1].clone()
    for token in range(VOCABULARY):
        if token in prompt + outputs:
            expected[token] = expected[token] / 1.5 if expected[token] > 0 else expected[token] * 1.5
        expected[token] -= 0.3 * outputs.count(token) + (0.7 if token in outputs else 0)
    torch.testing.assert_close(shaped[1], expected)
    assert torch.equal(shaped[0], logits[0])


def test_a_token_put_out_counts_from_the_next_draw_on() -> None:
    sampler = Sampler(1, 3)
    sampler.enter(0, Sampling(presence_penalty=2.0), [0])
    logits = torch.tensor([[1.0, 0.5, 0.0]])
    assert [int(sampler.sample(logits, [0], [position])) for position in (1, 2, 3, 4)] == [0, 1, 2, 0]
    assert logits.tolist() == [[1.0, 0.5, 0.0]]


def test_a_row_forgets_its_penalties_when_someone_else_enters() -> None:
    sampler = Sampler(1, 3)
    sampler.enter(0, Sampling(presence_penalty=2.0), [0], [1, 1])
    sampler.enter(0, Sampling(), [0])
    assert int(sampler.sample(torch.tensor([[0.0, 1.0, 0.5]]), [0], [1])) == 1


def test_a_bias_lifts_its_token() -> None:
    sampler = Sampler(1, 3)
    sampler.enter(0, Sampling(logit_bias=((2, 5.0), (0, -1.0))), [0])
    assert int(sampler.sample(torch.tensor([[1.0, 0.5, 0.0]]), [0], [1])) == 2
    with pytest.raises(InputError, match="names token 3: the model's tokens are 0 to 2"):
        sampler.enter(0, Sampling(logit_bias=((3, 5.0),)), [0])


def test_stop_tokens_cannot_come_before_min_tokens() -> None:
    sampler = Sampler(1, 3)
    sampler.enter(0, Sampling(min_tokens=2), [0, 0], stop_tokens=(1,))
    logits = torch.tensor([[0.0, 9.0, 1.0]])
    assert [int(sampler.sample(logits, [0], [position])) for position in (2, 3, 4, 5)] == [2, 2, 1, 1]


class OnlyEven:
    """A grammar of even tokens below 34; the model has more tokens than it knows."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def mask(self, row: int) -> npt.NDArray[np.int32]:
        assert row == 1
        return np.array([0x55555555, 0x1], dtype=np.uint32).view(np.int32)

    def accept(self, row: int, token: int) -> None:
        self.told.append((row, token))


def test_a_grammar_allows_only_what_its_mask_has_and_hears_what_was_drawn() -> None:
    masks = OnlyEven()
    sampler = Sampler(2, 70, masks=masks)
    sampler.enter(1, replace(HOT, grammar=Grammar(GrammarSort.REGEX, "x")), [0])
    logits = torch.randn(1, 70, generator=torch.Generator().manual_seed(7)).expand(2, 70)
    tokens = [int(sampler.sample(logits, [0, 1], [0, p])[1]) for p in range(1, 400)]
    assert masks.told == [(1, token) for token in tokens]
    assert set(tokens) <= set(range(0, 34, 2))
    assert len(set(tokens)) > 8
    with pytest.raises(InputError, match="started without grammars"):
        Sampler(2, 70).enter(1, Sampling(grammar=Grammar(GrammarSort.REGEX, "x")), [0])
