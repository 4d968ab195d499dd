"""A prompt that is computed in chunks: others share what has settled of it, or will, before it is done."""

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

CHUNK, PROMPT = 256, 2048


def second(model: str, shared: int) -> tuple[int, int, int]:
    """One is four of eight chunks into its prompt when another comes that begins as it does: (tokens that it finds,
    steps that it waits, tokens of a unit)."""
    settings = Settings(max_length=4096, batch_tokens=CHUNK, max_requests=4)
    world = World(make_plan(read_model(model), settings, Budget(pool_bytes=4 * GIB)))
    common, scheduler = own_tokens("common", shared), world.engine.scheduler
    world.submit(Request("first", np.concatenate([common, own_tokens("first", PROMPT - shared)]), 4))
    while scheduler.rows.settled.max() < 4 * CHUNK:
        world.engine.step()
    came = scheduler.steps
    world.submit(Request("second", np.concatenate([common, own_tokens("second", 300)]), 4))
    world.run(1000)
    (admitted,) = [event for event in world.events if isinstance(event, RequestAdmitted) and event.request == "second"]
    return admitted.hit_tokens, admitted.step - came, scheduler.reuse.index.unit


@pytest.mark.parametrize(("shared", "waits"), [(512, 1), (1024, 1), (1536, 3)])
def test_whoever_comes_in_mid_prompt_shares_chunks_that_have_settled_and_waits_for_those_to_come(
    shared: int, waits: int
) -> None:
    hit, steps, unit = second("llama-3.1-8b", shared)
    assert hit == shared // unit * unit > 0
    assert steps == waits


def test_a_boundary_that_lies_ahead_of_a_prompt_in_progress_is_kept_for_who_asks_for_it() -> None:
    hit, _, unit = second("gemma-3-4b", 1536)
    assert hit == 1536 // unit * unit
