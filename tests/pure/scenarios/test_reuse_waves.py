"""Sessions that all return at once: bench/waves.py."""

from __future__ import annotations

import pytest

from quire.core.units import GIB
from quire.engine.engine import Engine
from quire.models.read import read_model
from quire.plan.make import make_plan
from quire.plan.settings import Budget
from sessions import FreeRunner
from waves import Waves, asked, on_virtual_time, spoken, through_engine, work_for

WAVES = Waves("gemma-3-1b", 8 * GIB, turns=3, opening=(700, 900))


def test_every_session_comes_once_in_each_wave_in_another_order() -> None:
    keys = asked(WAVES, 12)
    waves = [[session for session, turn in keys if turn == wave] for wave in range(3)]
    assert all(sorted(one) == list(range(12)) for one in waves)
    assert len({tuple(one) for one in waves}) == 3


def test_prompts_are_as_long_as_the_shares_are_counted_from() -> None:
    work = work_for(WAVES, 4)
    for (session, turn), prompt in zip(asked(WAVES, 4), work.prompts, strict=True):
        assert prompt == WAVES.earlier(session, turn) + WAVES.tokens(session, turn)
        assert 700 <= WAVES.tokens(session, 0) <= 900
    assert work.longest <= WAVES.longest


def test_a_share_is_of_earlier_tokens_without_the_first_wave() -> None:
    """Session 0: its second turn finds all of the first but 32 tokens, its third nothing."""
    earlier = [WAVES.earlier(0, turn) for turn in range(3)]
    found = {(0, 0): 5000, (0, 1): earlier[1] - 32, (0, 2): 0}
    assert WAVES.share(found) == pytest.approx((earlier[1] - 32) / (earlier[1] + earlier[2]))


def test_where_all_sessions_fit_nearly_all_is_found() -> None:
    """The last token of an answer is never computed, and pages end a little before that."""
    shares = on_virtual_time(WAVES, 4)
    assert set(shares) == {"Quire", "LRU", "LRU, prefix first"}
    assert all(0.97 < share < 1 for share in shares.values())


def test_an_engine_finds_the_same_when_its_answers_are_its_own() -> None:
    """The engine itself, as on a GPU; only what it answers is made up. A second run begins with an empty cache."""
    plan = make_plan(read_model(WAVES.model), WAVES.settings(), Budget(pool_bytes=WAVES.pool_bytes))
    engine = Engine(plan, FreeRunner())
    assert through_engine(engine, WAVES, 4, 1000) == pytest.approx(on_virtual_time(WAVES, 4)["Quire"], abs=0.01)
    assert 0.97 < through_engine(engine, WAVES, 5, 1000) < 1


def test_words_are_tokens_that_the_model_has() -> None:
    words = spoken(1, 0, WAVES, 50)
    assert words.min() >= 3
    assert words.max() < 50
    assert len(words) == WAVES.tokens(1, 0)
