"""Made-up traces about what prompts share."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from quire.core.request import Tokens
from quire.simulate.sharing import LEVELS, TURNS, WAVE_SECONDS, WAVE_SPREAD, zipf
from quire.simulate.synthetic import make_trace
from quire.simulate.tokens import mixed_tokens, seed_of
from quire.simulate.traces import Asked


def known(asked: Asked) -> Tokens:
    """Its prompt and its answer."""
    seeds, prompt = np.array([seed_of(asked.name)], dtype=np.uint64), asked.recipe.made()
    return np.concatenate([prompt, mixed_tokens(seeds, len(prompt) + np.arange(asked.output_tokens))])


def begins_with(prompt: Tokens, earlier: Tokens) -> bool:
    return len(earlier) < len(prompt) and bool(np.array_equal(prompt[: len(earlier)], earlier))


def test_a_zipf_law_draws_the_first_twice_as_often_as_the_second() -> None:
    random = np.random.default_rng(0)
    drawn = Counter(zipf(random, 4) for _ in range(20_000))
    assert drawn[0] / drawn[1] == pytest.approx(2, rel=0.1)
    assert drawn[0] / drawn[3] == pytest.approx(4, rel=0.1)


def test_nested_prompts_share_whole_levels_from_the_first_on() -> None:
    """Two prompts are alike exactly as far as their pieces are, and every level is shared by some of them."""
    requests = make_trace("nested", 60, 3).requests
    paths = [tuple(asked.recipe.seeds.tolist()) for asked in requests]
    assert {len(path) for path in paths} == {len(LEVELS)}
    distinct = [len({path[: level + 1] for path in paths}) for level in range(len(LEVELS))]
    assert distinct == sorted(distinct)
    assert distinct[0] <= LEVELS[0][0]
    for asked, path in zip(requests[1:], paths[1:], strict=True):
        level = next((i for i in range(len(LEVELS)) if path[i] != paths[0][i]), len(LEVELS))
        alike = int(asked.recipe.counts[:level].sum())
        one, two = requests[0].recipe.made(), asked.recipe.made()
        assert np.array_equal(one[:alike], two[:alike])


def test_sessions_come_one_at_a_time_and_each_turn_goes_on_from_the_last() -> None:
    requests = make_trace("sessions", 10 * TURNS, 0).requests
    assert [asked.after for asked in requests] == [None, *range(10 * TURNS - 1)]
    said: dict[str, Tokens] = {}
    for asked in requests:
        session, _, turn = asked.name.partition("t")
        if int(turn):
            assert begins_with(asked.recipe.made(), said[session])
        said[session] = known(asked)
    assert len(said) == 10


def test_some_seeds_send_sessions_in_turn_and_some_in_random_order() -> None:
    rounds = []
    for seed in range(10):
        names = [asked.name.partition("t")[0] for asked in make_trace("sessions", 8 * TURNS, seed).requests]
        rounds.append({tuple(names[begin : begin + 8]) for begin in range(0, 8 * TURNS, 8)})
    assert {len(orders) == 1 for orders in rounds} == {True, False}


def test_a_wave_brings_every_session_within_a_tenth_of_a_second() -> None:
    requests = make_trace("waves", 12 * TURNS, 1).requests
    for turn in range(TURNS):
        wave = requests[12 * turn : 12 * turn + 12]
        assert {asked.name for asked in wave} == {f"w{number}t{turn}" for number in range(12)}
        assert all(turn * WAVE_SECONDS <= asked.seconds < turn * WAVE_SECONDS + WAVE_SPREAD for asked in wave)
        assert all(asked.after is None for asked in wave)


def test_a_history_is_sent_again_with_more_and_branches_off_at_earlier_turns() -> None:
    """Every prompt but the first begins with what some earlier request knew at its end or before one of its turns."""
    requests = make_trace("history", 80, 2).requests
    assert [asked.after for asked in requests] == [None, *range(79)]
    earlier = [known(requests[0])]
    went_on = branched = 0
    for asked in requests[1:]:
        prompt = asked.recipe.made()
        if begins_with(prompt, earlier[-1]):
            went_on += 1
        else:
            branched += 1
            assert any(begins_with(prompt, one) for one in earlier)
        earlier.append(known(asked))
    assert went_on > 4 * branched
    assert branched > 2
