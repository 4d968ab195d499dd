"""Bugs that the scenarios found, each as short as it can be told."""

from __future__ import annotations

import numpy as np
import pytest
from scenes import World, ask

from quire.core.events import RequestAdmitted, RequestEnded, RequestPreempted
from quire.core.request import Ending, Request
from quire.models.shape import ModelShape
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from small_kinds import KINDS


@pytest.mark.story
def test_a_turn_may_end_on_a_unit_behind_which_another_one_ended() -> None:
    """One turn ended five tokens behind a unit, a later one of the same tokens exactly on it: the later one looked for
    tails in a unit that it does not have."""
    shape = ModelShape("small", "test", (KINDS["full"], KINDS["chunked"]), max_length=150, weights_known=False)
    settings = Settings(batch_tokens=48, max_requests=4, page_tokens={"": 8}, match_unit_tokens=8)
    world = World(make_plan(shape, settings, Budget(sheets=(60,))))
    tokens = np.arange(100, dtype=np.int32)  # what the runner yields goes on in the same way: each token its position
    for name, prompt, outputs in (("85 tokens", 82, 4), ("56 tokens", 50, 7), ("80 tokens", 79, 2)):
        stream = world.submit(Request(name, tokens[:prompt], outputs))
        world.run(100)
        assert stream.ending is Ending.LENGTH


@pytest.mark.story
def test_nobody_is_preempted_for_ever_though_chunks_take_most_on_the_way() -> None:
    """A and B take one page each with their last token, the first of a chunk, and nine before it; the pool has ten.
    Only the end was counted: B came back again and again, to stay, and was preempted nine times."""
    shape = ModelShape("small", "test", (KINDS["chunked"],), max_length=141, weights_known=False)
    settings = Settings(batch_tokens=48, max_requests=4, page_tokens={"": 8}, match_unit_tokens=8)
    world = World(make_plan(shape, settings, Budget(sheets=(10,))))
    world.engine.scheduler.admission.typical_output = 70.0
    for name in ("A", "B"):
        world.submit(ask(name, 71, 70))
    world.run(400)
    assert world.told(RequestPreempted) == ["B", "B"]


@pytest.mark.story
def test_the_elder_takes_no_page_of_one_who_may_stay_while_its_own_are_in_flight() -> None:
    """R was preempted twice and came back to stay: the pool holds what the elder and R need, one token at a time. With
    two tokens in flight the elder asked for a page more than that, and R was preempted for it."""
    shape = ModelShape("small", "test", (KINDS["window"],), max_length=120, weights_known=False)
    settings = Settings(batch_tokens=48, max_requests=2, page_tokens={"": 7}, match_unit_tokens=7, lease_bytes=0)
    world = World(make_plan(shape, settings, Budget(sheets=(16,))))
    for name in ("elder", "R"):
        world.submit(ask(name, 60, 60))
    waiting = world.engine.scheduler.queue.find("R")
    assert waiting is not None
    waiting.preemptions = 2
    world.run(400)
    assert world.told(RequestAdmitted) == ["elder", "R"]
    assert world.place_of(RequestAdmitted, "R") < world.place_of(RequestEnded, "elder")
    assert world.told(RequestPreempted) == []
