"""Reuse granularity: a recurrent state of megabytes does not dictate how finely prefixes match."""

from __future__ import annotations

import numpy as np
import pytest
from scenes import World, own_tokens

from quire.core.events import RequestAdmitted
from quire.core.request import Request
from quire.core.units import GIB
from quire.models.read import read_model
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings

REQUESTS, OWN = 64, 700


def world_of_qwen() -> World:
    """States of 2 MiB a layer beside 4,096 B of attention a token: a peer's block is 528 tokens here."""
    plan = make_plan(read_model("qwen3.5-4b"), Settings(max_length=4096), Budget(pool_bytes=24 * GIB))
    (full,) = (kind for kind in plan.stages[0].kinds if kind.kind.grows)
    (state,) = (kind for kind in plan.stages[0].kinds if not kind.kind.grows)
    assert full.token_bytes / full.slots == 4096
    assert state.unit_bytes / state.slots == 2_146_304
    return World(plan)


def sharing(shared: int) -> list[Request]:
    common = own_tokens("system prompt", shared)
    return [Request(f"r{i}", np.concatenate([common, own_tokens(f"r{i}", OWN)]), 8) for i in range(REQUESTS)]


def good_hits(world: World, shared: int) -> int:
    least = shared - world.engine.scheduler.reuse.index.unit
    assert least > 0
    admitted = [event.hit_tokens for event in world.events if isinstance(event, RequestAdmitted)]
    assert len(admitted) == REQUESTS
    return sum(tokens >= least for tokens in admitted)


@pytest.mark.parametrize("shared", [1500, 480])
def test_prompts_that_come_one_by_one_find_what_they_share(shared: int) -> None:
    """64 prompts share their first tokens. The first cannot know, the second finds out where they part, and at least 62
    find all but a unit of it; a unit is at most 64 tokens."""
    world = world_of_qwen()
    assert world.engine.scheduler.reuse.index.unit <= 64
    for request in sharing(shared):
        world.submit(request)
        world.run(100)
    assert good_hits(world, shared) >= 62


@pytest.mark.parametrize("shared", [1500, 480])
def test_prompts_that_are_queued_together_compute_what_they_share_once(shared: int) -> None:
    """The queue knows where they part before any of them runs: at least 63 find it."""
    world = world_of_qwen()
    for request in sharing(shared):
        world.submit(request)
    world.run(1000)
    assert good_hits(world, shared) >= 63
