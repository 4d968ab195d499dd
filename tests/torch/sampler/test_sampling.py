"""What can be asked of a sampler, and what is refused."""

from __future__ import annotations

from typing import Any, cast

import pytest

from quire.core.errors import InputError
from quire.core.sampling import Grammar, GrammarSort, Sampling
from quire.text.question import with_seed


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0: give 0 to 100"),
        ({"temperature": float("nan")}, "temperature is nan: give 0 to 100"),
        ({"temperature": 1e-50}, "temperature is 1e-50, too small to divide by: give at least 1e-05, or 0"),
        ({"top_p": 0.0}, "top_p is 0, which keeps no token: give more than 0"),
        ({"top_p": 1.5}, "top_p is 1.5: give 0 to 1"),
        ({"top_k": -1}, "top_k is -1: give a whole number from 0 up"),
        ({"min_p": 2.0}, "min_p is 2.0: give 0 to 1"),
        ({"presence_penalty": 3.0}, "presence_penalty is 3.0: give -2 to 2"),
        ({"frequency_penalty": -3.0}, "frequency_penalty is -3.0: give -2 to 2"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0: give 0.01 to 100"),
        ({"logit_bias": ((-1, 0.0),)}, "a token of logit_bias is -1"),
        ({"logit_bias": ((7, 101.0),)}, "the logit_bias of token 7 is 101.0: give -100 to 100"),
        ({"seed": -5}, "seed is -5: give 0 to 9223372036854775807"),
        ({"stop": ("end", "")}, "stop string 2 of 2 is empty"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"logprobs": 101}, "logprobs is 101: give 0 to 100"),
        ({"grammar": Grammar(GrammarSort.REGEX, "a+"), "min_tokens": 4}, "min_tokens is 4 beside a grammar"),
    ],
)
def test_a_wrong_wish_is_told_with_its_number_and_the_fix(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        Sampling(**wrong)
    assert message in str(refused.value)


def test_a_grammar_of_an_unknown_sort_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="json, regex, lark"):
        Grammar(cast(GrammarSort, "yaml"), "a: 1")


def test_samples_of_one_prompt_get_seeds_of_their_own() -> None:
    seeds = [with_seed(Sampling(temperature=1.0, seed=2**63 - 1), sample).seed for sample in range(100)]
    assert seeds[0] == 2**63 - 1
    assert len(set(seeds)) == 100
    assert with_seed(Sampling(seed=None)).seed != with_seed(Sampling(seed=None)).seed
