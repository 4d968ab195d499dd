"""Bugs that the scenarios found, each as short as it can be told."""

from __future__ import annotations

import numpy as np
import pytest
from scenes import World

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
