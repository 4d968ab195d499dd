"""Conversations of 20 turns under templates that drop reasoning: what each turn finds, with and without idle time."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from examples import rest_in_soak
from quire.cache.pool import Holder
from quire.engine.engine import Engine
from quire.explain.status import status_of
from quire.models.shape import ModelShape
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.prefix.forecast import Origin
from quire.prefix.keys import keys_of
from quire.warm.work import NAME, PrefixWarmed, TurnEnd, TurnEnded, Warm, WarmEnded
from small_engines import check
from small_kinds import KINDS
from talks import Talk, Turn

TURNS = 20
LONGEST = 2560
MIXES = (["full"], ["full", "window"], ["full", "state"])
STYLES = rest_in_soak(
    [(style, has_tools) for style in ("qwen", "harmony") for has_tools in (False, True)],
    [("qwen", False), ("harmony", True)],
)
"""Of thinking, with tools or without."""


@cache
def _plan(names: tuple[str, ...], sheets: int | None = None) -> Plan:
    layers = tuple(KINDS[name] for _ in range(2) for name in names)
    shape = ModelShape("small", "test", layers, max_length=LONGEST, weights_known=False)
    budget = Budget(pool_bytes=32 << 20) if sheets is None else Budget(sheets=(sheets,))
    return make_plan(shape, Settings(batch_tokens=256, max_requests=4, max_length=LONGEST), budget)


@cache
def _shared(style: str, kinds: tuple[str, ...], has_tools: bool, is_idle: bool, is_on: bool) -> Talk:
    return _talked(style, list(kinds), has_tools, is_idle, is_on)


def _talk(style: str, kinds: list[str], has_tools: bool, is_idle: bool, is_on: bool = True) -> Talk:
    """Shared by tests, which change nothing."""
    return _shared(style, tuple(kinds), has_tools, is_idle, is_on)


def _talked(style: str, kinds: list[str], has_tools: bool, is_idle: bool, is_on: bool = True) -> Talk:
    talk = Talk(style, _plan(tuple(kinds)), is_idle, is_on)
    for number in range(TURNS):
        is_result = has_tools and number % 3 == 2
        message: dict[str, Any] = {"role": "user", "content": f"question {number}, and why?"}
        if is_result:
            message = {"role": "tool", "content": f"{number} emus", "tool_call_id": "x", "name": "look"}
        call = {"bird": "emu", "n": number} if has_tools and number % 3 == 1 else None
        talk.speak(message, f"they say {number} is odd; " * (1 + number % 3), "" if call else f"it is {number}", call)
        check(talk.engine)
    return talk


def _whole(talk: Talk, tokens: int) -> int:
    """Where every kind grows, a hit ends with a unit."""
    index = talk.engine.scheduler.reuse.index
    return tokens if index.coverage.has_boundaries else tokens // index.unit * index.unit


def _after_call(talk: Talk) -> list[Turn]:
    """Turns that follow a call, whose arguments the template spells in its own way."""
    return [turn for number, turn in enumerate(talk.turns) if number % 3 == 2]


@pytest.mark.parametrize("kinds", rest_in_soak(MIXES, MIXES[1:]), ids="+".join)
@pytest.mark.parametrize(("style", "has_tools"), STYLES)
def test_with_idle_time_all_that_was_known_to_come_is_found(style: str, has_tools: bool, kinds: list[str]) -> None:
    talk = _talk(style, kinds, has_tools, is_idle=True)
    assert [turn.found for turn in talk.turns[1:]] == [_whole(talk, turn.expected) for turn in talk.turns[1:]]
    assert all(turn.expected > turn.recurs for turn in talk.turns[1:])
    assert talk.engine.counters.sums[PrefixWarmed, "tokens"] > 0
    assert talk.said == []


@pytest.mark.parametrize("kinds", rest_in_soak(MIXES, MIXES[1:]), ids="+".join)
@pytest.mark.parametrize(("style", "has_tools"), STYLES)
def test_without_idle_time_all_that_recurs_is_found_where_the_point_was_known(
    style: str, has_tools: bool, kinds: list[str]
) -> None:
    talk = _talk(style, kinds, has_tools, is_idle=False)
    later = _after_call(talk) if has_tools else []
    known = [turn for turn in talk.turns[1:] if turn not in later]
    assert [turn.found for turn in known] == [_whole(talk, turn.recurs) for turn in known]
    # a call's arguments are spelled again: the boundary before them stays, and the gap is counted
    assert all(0 < turn.found <= turn.recurs for turn in later)
    gap = talk.engine.counters.sums[TurnEnded, "gap"]
    if kinds != ["full"]:
        assert (gap > 0) == has_tools


@pytest.mark.parametrize("kinds", MIXES[1:], ids="+".join)
def test_turned_off_less_is_found(kinds: list[str]) -> None:
    """No point is kept and nothing is computed ahead: hits end where a prompt's last whole unit did."""
    off = _talk("qwen", kinds, False, is_idle=True, is_on=False)
    on = _talk("qwen", kinds, False, is_idle=True)
    assert sum(turn.found for turn in off.turns) < sum(turn.found for turn in on.turns)
    assert off.engine.counters.sums[PrefixWarmed, "tokens"] == 0
    assert off.engine.counters.sums[TurnEnded, "gap"] == 0


def test_a_recurrent_model_has_its_checkpoint_at_the_end_of_what_is_expected() -> None:
    talk = _talk("qwen", ["full", "state"], False, is_idle=True)
    index = talk.engine.scheduler.reuse.index
    # boundaries on the way to it are dropped: a handful of states, however long the conversation is
    states = [int(kept.present.sum()) for memory in index.memories for kept in memory.kept if kept.each == 1]
    assert min(states) > 0
    expected = talk._before
    assert expected is not None
    root = talk.engine.scheduler.reuse.root_of("")
    (tokens,) = expected.nexts
    hit = index.find(keys_of(root, tokens, index.unit), root, tokens, len(tokens))
    assert hit.tokens == len(tokens)
    assert index.coverage.has_state(hit.chain.item(-1))


def _beyond(engine: Engine) -> int:
    nodes = engine.scheduler.reuse.index.nodes
    return int(np.count_nonzero(nodes.is_there & (nodes.origin == Origin.BEYOND)))


@pytest.mark.parametrize("kinds", MIXES, ids="+".join)
def test_what_lies_beyond_the_common_prefix_is_evicted_first_and_found_until_then(kinds: list[str]) -> None:
    talk = _talked("qwen", kinds, False, is_idle=True)
    index = talk.engine.scheduler.reuse.index
    while beyond := _beyond(talk.engine):
        nodes = len(index.nodes)
        assert index.evict(1.0, must=True).tokens
        assert beyond - _beyond(talk.engine) == nodes - len(index.nodes) > 0
    talk.speak({"role": "user", "content": "once more"}, "hm", "so it is")
    assert talk.turns[-1].found == _whole(talk, talk.turns[-1].expected)


def _ranks(engine: Engine) -> list[float]:
    nodes = engine.scheduler.reuse.index.nodes
    ends = nodes.is_there & ((nodes.is_boundary > 0) | (nodes.children == 0))
    return [float(rank) for rank in nodes.rank[ends].tolist()]


# ── warm work and requests ───────────────────────────────────────────────


def _idle_talk() -> Talk:
    talk = Talk("qwen", _plan(("full", "state")), is_idle_between=False)
    talk.speak({"role": "user", "content": "one"}, "hm " * 90, "two " * 60)
    return talk


def test_a_request_that_arrives_finds_neither_a_row_nor_a_place_taken() -> None:
    talk = _idle_talk()
    engine, work = talk.engine, talk.work
    steps = 0
    while work.step() and steps < 2:
        steps += 1
        assert NAME not in engine.streams, "a chunk leaves as soon as it is launched"
        assert len(engine.scheduler.running) == len(engine.scheduler.queue) == 0
    waiting = len(work)
    talk.speak({"role": "user", "content": "other"}, "x", "y")
    assert waiting
    assert talk.turns[-1].found > 0


def test_warm_work_is_counted_apart() -> None:
    talk = _idle_talk()
    before = status_of(talk.engine, talk.work)
    talk.idle()
    after = status_of(talk.engine, talk.work)
    for what in (("accepted", "prompt"), ("admitted", "hit_tokens"), ("step", "tokens")):
        assert after.sums.get(what) == before.sums.get(what), what
    assert after.events.get(("ended", "cancelled"), 0) == before.events.get(("ended", "cancelled"), 0)
    assert after.sums["warmed", "tokens"] > 0
    assert before.warm_waiting > after.warm_waiting == 0
    assert talk.engine.scheduler.admission.typical_output == 128.0 + (talk_outputs(talk) - 128.0) / 32


def talk_outputs(talk: Talk) -> int:
    return len(talk._now) - talk.turns[0].prompt


def test_jobs_of_a_conversation_replace_each_other_and_tenants_take_turns() -> None:
    talk = _idle_talk()
    talk.idle()
    work, ended = talk.work, talk.engine.counters.events
    tokens = np.arange(300, dtype=np.int32) % 200
    for tenant in ("blue", "green"):
        work.add(Warm(tokens[:200], tenant, tenant))
        work.add(Warm(tokens, tenant, tenant))
    assert len(work) == 2
    assert talk.engine.counters.events == ended
    talk.idle()
    work.add(Warm(np.zeros(LONGEST + 1, dtype=np.int32)))
    talk.idle()
    assert talk.engine.counters.events[WarmEnded, "refused"] == 1


def test_after_the_last_turn_only_the_cache_holds_pages() -> None:
    talk = _talked("harmony", ["full", "window"], True, is_idle=True)
    check(talk.engine)
    for memory in talk.engine.scheduler.memories:
        for shelf in memory.pool.shelves:
            assert not (shelf.count(Holder.REQUEST) + shelf.count(Holder.PIN)).any()
    talk.engine.scheduler.reuse.index.drop()
    assert all(memory.pool.free_sheets == memory.stage.sheets for memory in talk.engine.scheduler.memories)


def test_a_turn_of_another_scope_is_neither_kept_nor_evicted() -> None:
    talk = _idle_talk()
    before = _ranks(talk.engine)
    talk.work.end_turn(TurnEnd(talk._now, (10,), (), "another", ""))
    assert _ranks(talk.engine) == before
