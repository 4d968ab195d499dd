"""Tokens drawn by kernels, on a GPU or under Triton's interpreter: those that a CPU draws by ranking the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paged_case import DEVICE

from examples import examples
from quire.core.sampling import Sampling
from quire.worker.kernels.drawing import draw, wishes_of
from quire.worker.kernels.nucleus import PIECE_TOKENS
from quire.worker.pages.uploads import DirectUpload
from quire.worker.sampling import sampler

PIECE = PIECE_TOKENS.value
WISHES = (
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_p=0.9),
    Sampling(temperature=1.0, top_p=1e-6),
    Sampling(),
    Sampling(temperature=1.3, top_k=40, top_p=0.95),
    Sampling(temperature=1.0, min_p=0.05),
    Sampling(temperature=2.0, top_k=5),
    Sampling(temperature=0.3, top_p=0.999, min_p=0.001, top_k=1000),
)
LIMITED = (WISHES[1], WISHES[4], WISHES[5], WISHES[7])
Chances = npt.NDArray[np.float64]


def by_kernels(logits: torch.Tensor, wishes: Sequence[Sampling], chances: Chances) -> list[int]:
    columns = np.array([sampler.columns_of(wish) for wish in wishes]).T
    asked = wishes_of(columns, chances, logits.shape[-1])
    tokens: list[int] = draw(logits.to(DEVICE), torch.from_numpy(asked.numbers).to(DEVICE), asked).tolist()
    return tokens


def by_ranking(logits: torch.Tensor, wishes: Sequence[Sampling], chances: Chances) -> list[int]:
    """A draw of its own for each row."""
    found = []
    for logit, wish, chance in zip(logits.float(), wishes, chances, strict=True):
        columns = np.array([sampler.columns_of(wish)]).T
        one = logit[None]
        if wish.temperature:
            drawn = sampler._draw_tokens(one, columns, np.array([chance]), DirectUpload(torch.device("cpu")))
        else:
            drawn = sampler._likeliest(one)
        found.append(int(drawn))
    return found


def compare(logits: torch.Tensor, wishes: Sequence[Sampling], seed: int = 0) -> list[int]:
    chances = np.random.default_rng(seed).random(len(wishes))
    found = by_kernels(logits, wishes, chances)
    assert found == by_ranking(logits, wishes, chances)
    return found


def normal(rows: int, vocabulary: int, spread: float = 1.0, seed: int = 1) -> torch.Tensor:
    return spread * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "vocabulary",
    [1, 17, PIECE, PIECE + 1, *(pytest.param(size, marks=pytest.mark.soak) for size in (49_152, 128_257, 151_936))],
)
@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_rows_with_all_wishes_draw_what_a_cpu_draws(vocabulary: int, spread: float) -> None:
    compare(normal(len(WISHES), vocabulary, spread), WISHES)


@pytest.mark.soak
def test_a_vocabulary_of_many_pieces_draws_what_a_cpu_draws() -> None:
    """More pieces than are read at once."""
    vocabulary = 64 * PIECE + 300
    compare(normal(2, vocabulary), LIMITED[:2])
    late = torch.full((2, vocabulary), -torch.inf)
    late[:, -200:] = 0.0
    assert min(compare(late, LIMITED[:2])) >= vocabulary - 200


def test_logits_in_16_bits_draw_what_they_draw_in_32() -> None:
    """Half of the tokens tie with others."""
    logits = normal(len(WISHES), 3_000, 3.0).bfloat16()
    assert compare(logits, WISHES) == compare(logits.float(), WISHES)


@pytest.mark.parametrize("spread", [1e-6, 1e4, 1e37])
def test_logits_next_to_each_other_and_far_apart_draw_what_a_cpu_draws(spread: float) -> None:
    compare(normal(len(WISHES), 2_000, spread), WISHES)


@pytest.mark.story
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_zeros_of_either_sign_are_equal(sign: float) -> None:
    """A distance of -0 was an integer smaller than all others, and the bisection did not end."""
    logits = torch.zeros(len(WISHES), 20)
    logits[:, ::3] = -0.0
    compare(sign * logits, WISHES)


def test_tokens_that_a_mask_excludes_are_never_drawn() -> None:
    logits = torch.full((len(WISHES), 700), -torch.inf)
    logits[:, 300:320] = normal(len(WISHES), 20)
    for seed in range(3):
        assert all(300 <= token < 320 for token in compare(logits, WISHES, seed))


@pytest.mark.filterwarnings("ignore:overflow")  # of Triton's interpreter: a distance becomes infinite, as on a CPU
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_a_logit_that_is_no_number_does_to_a_draw_what_it_does_on_a_cpu(odd: float) -> None:
    logits = normal(len(WISHES), 300)
    logits[:, 77] = odd
    assert (set(compare(logits, WISHES)) == {77}) == (odd == torch.inf)
    assert set(compare(torch.full((len(WISHES), 300), odd), WISHES)) <= ({0} if odd != torch.inf else set(range(300)))


def test_the_last_chance_draws_a_token_that_is_kept_and_the_first_one_the_first() -> None:
    """1 − 2⁻⁵³ is the greatest uniform number: rounding must not carry it beyond the last token with a weight."""
    logits = normal(len(LIMITED), 2 * PIECE, 4.0)
    logits[:, PIECE + 9 :] = -torch.inf
    for chance in (0.0, 1 - 2.0**-53):
        chances = np.full(len(LIMITED), chance)
        assert by_kernels(logits, LIMITED, chances) == by_ranking(logits, LIMITED, chances)
    plain, last = [Sampling(temperature=1.0)] * 4, np.full(4, 1 - 2.0**-53)
    assert all(token <= PIECE + 8 for token in by_kernels(logits, plain, last))


@pytest.mark.law
def test_a_row_draws_the_same_token_alone_and_in_any_batch() -> None:
    logits, chances = normal(len(WISHES), 2_500, 2.0), np.random.default_rng(5).random(len(WISHES))
    alone = [by_kernels(logits[[row]], [WISHES[row]], chances[[row]])[0] for row in range(len(WISHES))]
    order = np.random.default_rng(6).permutation(len(WISHES))
    found = by_kernels(logits[order], [WISHES[row] for row in order], chances[order])
    assert found == [alone[row] for row in order]


@examples(12)
@given(
    seed=st.integers(0, 2**32),
    vocabulary=st.sampled_from([2, 31, 512, 700]),
    temperature=st.sampled_from([1e-5, 0.3, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 3, 50, 10_000]),
    top_p=st.sampled_from([1.0, 1e-6, 0.5, 0.9, 0.99999, 1 - 2.0**-53]),
    min_p=st.sampled_from([0.0, 1e-3, 0.3, 1.0]),
    levels=st.sampled_from([2, 9, 1 << 20]),
)
@pytest.mark.law
def test_any_wish_draws_what_a_cpu_draws(
    seed: int, vocabulary: int, temperature: float, top_k: int, top_p: float, min_p: float, levels: int
) -> None:
    """`levels`: how many different logits there are, so that many tokens tie."""
    random = np.random.default_rng(seed)
    logits = torch.from_numpy(random.integers(0, levels, (2, vocabulary)).astype(np.float32) * (6.0 / levels))
    logits[random.random(logits.shape) < 0.1] = -torch.inf
    compare(logits, [Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)] * 2, seed)
