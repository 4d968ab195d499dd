"""Leases through the library: what is leased is found again under pressure, and a refusal says what is possible."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from quire import LLM, Sampling
from quire.core.errors import InputError
from quire.plan.settings import Budget, Settings
from tiny_folder import make_folder

WHOLE = Sampling(ignore_eos=True)
SETTINGS = Settings(max_requests=4, batch_tokens=64, max_length=256, match_unit_tokens=16)
POOL = Budget(pool_bytes=1 << 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def llm(folder: Path) -> LLM:
    return LLM(folder, settings=SETTINGS, budget=POOL)


def prompt(seed: int, tokens: int = 128) -> list[int]:
    return [3 + (seed * 31 + place * 7) % 50 for place in range(tokens)]


def press(llm: LLM) -> None:
    """Prompts that share nothing, several times the pool."""
    llm.generate([prompt(seed, 200) for seed in range(100, 130)], WHOLE, max_tokens=8)


def test_a_leased_prefix_is_found_after_any_pressure(llm: LLM) -> None:
    """Without the lease it is evicted."""
    (first,) = llm.generate([prompt(1)], WHOLE, max_tokens=8)
    lease = llm.lease(prompt(1), seconds=60, name="mine")
    assert lease.is_granted
    assert lease.tokens >= 112
    assert lease.until is not None
    assert 50 < lease.until - time.time() < 61
    llm.generate([prompt(2)], WHOLE, max_tokens=8)
    press(llm)
    (again,) = llm.generate([prompt(1)], WHOLE, max_tokens=8)
    assert again.reused_tokens >= lease.tokens - 16
    assert again.token_ids == first.token_ids
    assert llm.generate([prompt(2)], WHOLE, max_tokens=8)[0].reused_tokens == 0
    assert [one.name for one in llm.leases()] == ["mine"]
    assert llm.release("mine")
    assert not llm.release("mine")
    assert llm.leases() == []


def test_an_answer_with_retain_is_leased_whole_and_the_next_turn_moves_the_lease(llm: LLM) -> None:
    """A session has one lease, which grows with it."""
    history = prompt(1, 64)
    names = set()
    for _ in range(3):
        (turn,) = llm.generate([history], WHOLE, max_tokens=8, retain=60)
        assert turn.lease is not None
        assert turn.lease.is_granted
        assert turn.lease.until is not None
        names.add(turn.lease.name)
        press(llm)
        history = [*history, *turn.token_ids, 5, 6]
    assert turn.reused_tokens >= 64
    assert len(names) == 1
    assert [one.tokens for one in llm.leases()] == [turn.lease.tokens]
    assert llm.generate([prompt(9)], WHOLE, max_tokens=8)[0].lease is None


def test_a_refusal_says_why_and_what_is_possible(llm: LLM) -> None:
    absent = llm.lease(prompt(7), seconds=60)
    assert (absent.is_granted, absent.refusal) == (False, "absent")
    assert "send them in a request with retain" in absent.message
    granted = []
    for seed in range(40):
        (one,) = llm.generate([prompt(seed)], WHOLE, max_tokens=8, retain=100 + seed)
        assert one.lease is not None
        granted.append(one.lease)
    full = granted[-1]
    assert full.refusal == "memory"
    assert full.limit_bytes >= sum(one.size_bytes for one in granted if one.is_granted)
    assert full.earliest is not None
    assert 50 < full.earliest - time.time() <= 101
    assert "other leases leave room in" in full.message
    press(llm)


def test_what_cannot_be_a_lease_is_refused_at_once(llm: LLM) -> None:
    with pytest.raises(InputError, match="seconds is 0: give the seconds"):
        llm.lease(prompt(1), seconds=0)
    with pytest.raises(InputError, match="retain is -1: give the seconds"):
        llm.generate([prompt(1)], retain=-1)
    with pytest.raises(InputError, match="retain is for one answer, and n is 2"):
        llm.generate([prompt(1)], n=2, retain=10)


def test_a_lease_ends_at_its_time(llm: LLM) -> None:
    llm.generate([prompt(1)], WHOLE, max_tokens=8)
    assert llm.lease(prompt(1), seconds=0.05).is_granted
    time.sleep(0.1)
    assert llm.leases() == []
