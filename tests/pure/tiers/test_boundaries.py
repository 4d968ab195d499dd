"""Boundaries that lost a part of what they need."""

from __future__ import annotations

import numpy as np
import pytest

from quire.check.promises import check_books, check_nothing_left
from quire.core.request import Request
from quire.engine.engine import Engine
from scenes_of_tiers import Idle, small_plan


@pytest.mark.story
def test_a_boundary_that_has_its_checkpoint_and_lost_its_tail_gets_no_second_checkpoint() -> None:
    """Another chain that shares the beginning let the chunk's pages go. Whoever computes the prompt again brings the
    tail; the state is there, and a second copy would leave the first one held by nobody."""
    engine = Engine(small_plan(["state", "full", "chunked"]), Idle())
    index, prompt = engine.scheduler.reuse.index, np.arange(60, dtype=np.int32)
    engine.submit(Request("first", prompt, 1))
    engine.drain()
    chain = index.nodes.follow(engine_keys(engine, prompt), 7)
    index.boundaries.forget_pages(chain[:3], index.coverage.tails)
    engine.submit(Request("again", prompt, 1))
    engine.drain()
    check_books(engine.scheduler)
    assert index.coverage.usable(chain, index.nodes.tokens[chain])[-1], "and the boundary is whole again"
    check_nothing_left(engine.scheduler)


def engine_keys(engine: Engine, prompt: np.ndarray) -> list[bytes]:
    engine.submit(Request("keys", prompt, 1))
    waiting = engine.scheduler.queue.find("keys")
    assert waiting is not None
    engine.cancel("keys")
    return waiting.keys
