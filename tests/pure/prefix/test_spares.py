"""States that a prompt leaves on its way, in case another prompt parts from it there: kept where that is worth it."""

from __future__ import annotations

import numpy as np
import pytest

from cached_traffic import UNIT, Traffic, joined, plan_of, words
from quire.prefix.forecast import LINES, USES, Floats, Ints, Origin
from quire.prefix.spares import SPARES_ANYHOW

WAY = 512
"""Tokens after which a prompt leaves a state."""


class Valued:
    """What prompts leave on their way is worth `spare`, everything else 1."""

    learns = True

    def __init__(self, spare: float) -> None:
        self.spare = spare

    def values(self, classes: Ints, used: Floats, now: float, worths: Floats) -> Floats:
        del used, now, worths
        return np.array([self.value(int(kind), 0.0, 0.0, 0.0) for kind in classes])

    def value(self, kind: int, used: float, now: float, worth: float) -> float:
        del used, now, worth
        return self.spare if kind // (LINES * USES) == Origin.SPARE else 1.0

    def note_use(self, kind: int, age: float) -> None: ...

    def note_end(self, kind: int, age: float) -> None: ...


def crowded(spare: float) -> Traffic:
    """States of prompts that never come again take all the room that states may have; the last one evicted was one of
    them."""
    traffic = Traffic(plan_of("full", "state", sheets=160, max_length=1_000))
    traffic.index.eviction.forecast = Valued(spare)
    for number in range(100):
        traffic.ask(f"r{number}", words(f"r{number}", 20), 2)
    assert not traffic.index.coverage.has_checkpoint_room()
    traffic.index.eviction.last_rank = 1.0
    return traffic


def found_by_the_second(traffic: Traffic) -> int:
    """Two prompts that part after a little more than `WAY` tokens: what the second finds of the first."""
    first, second = words("first", 900), joined(words("first", 900)[: WAY + 20], words("second", 200))
    traffic.ask("first", first, 2)
    assert traffic.index.arrivals % SPARES_ANYHOW, "one that keeps what it leaves in any case"
    return traffic.ask("second", second, 2)["hit_tokens"]


@pytest.mark.story
def test_a_state_on_the_way_takes_the_place_of_something_that_is_worth_less() -> None:
    """Among states of prompts that never came again none was left on the way, whatever it was worth, and the
    second prompt that began like an earlier one was computed from its beginning."""
    assert found_by_the_second(crowded(spare=2.0)) == WAY


@pytest.mark.parametrize("spare", [0.5, 1.0])
def test_nothing_is_evicted_for_a_state_on_the_way_that_is_worth_no_more(spare: float) -> None:
    assert found_by_the_second(crowded(spare)) == 0


def test_while_there_is_room_every_prompt_leaves_states_on_its_way() -> None:
    traffic = Traffic(plan_of("full", "state", sheets=2_000, max_length=1_000))
    traffic.index.eviction.forecast = Valued(0.5)
    traffic.index.eviction.last_rank = 1.0
    assert found_by_the_second(traffic) == WAY


def test_a_state_on_the_way_that_a_queued_request_would_go_on_from_becomes_a_boundary() -> None:
    """So that it is not evicted with the group that it was left in."""
    traffic = Traffic(plan_of("full", "state", sheets=2_000, rows=1, max_length=1_000))
    traffic.ask("first", words("first", 900), 2)
    traffic.submit("busy", words("busy", 300), 50)
    traffic.step()
    traffic.submit("second", joined(words("first", 900)[: WAY + 20], words("second", 200)))
    place = traffic.waiting("second").awaits
    assert place is not None
    assert traffic.index.nodes.tokens[place.node] == WAY
    assert traffic.index.nodes.is_boundary[place.node]
    traffic.finish()
    assert traffic.admitted("second")["hit_tokens"] == WAY


def test_what_is_worth_as_much_as_what_was_evicted_last_is_not_worth_more() -> None:
    traffic = Traffic(plan_of("full", "state"))
    traffic.index.eviction.forecast = Valued(1.0)
    traffic.index.eviction.last_rank = 1.0
    assert not traffic.index.spares.are_worth_more()
    traffic.index.eviction.last_rank = 0.9
    assert traffic.index.spares.are_worth_more()


@pytest.mark.parametrize("kinds", [["full", "window"], ["full", "state"]])
def test_a_place_where_prompts_part_is_no_longer_wanted_once_it_is_kept(kinds: list[str]) -> None:
    """Two prompts of 100 tokens share 40: whoever computes these first keeps what the other needs there."""
    traffic = Traffic(plan_of(*kinds, rows=1))
    for name in ("a", "b"):
        traffic.submit(name, joined(words("shared", 40), words(name, 60)), 2)
    place = traffic.waiting("b").keys[40 // UNIT - 1]
    wanted = traffic.scheduler.reuse.junctions.wanted
    assert place in wanted
    traffic.finish()
    assert traffic.admitted("b")["hit_tokens"] == 40
    assert place not in wanted
