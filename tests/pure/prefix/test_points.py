"""Boundaries at tokens that a request names before it runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.engine.engine import Engine
from quire.prefix.hit import Hit
from quire.prefix.keys import keys_of
from small_engines import check, engine_for, is_empty, request, run, small_plan

MIXES = (["full", "window"], ["full", "state"], ["full", "window", "state"], ["full", "chunked"])
POINTS = (1, 15, 16, 17, 40, 41, 47, 48, 49)
"""Of a prompt of 48 tokens: within units, at their ends, and one after the prompt."""


def _found(engine: Engine, tokens: np.ndarray) -> Hit:
    reuse = engine.scheduler.reuse
    reuse.catch_up()
    root = reuse.root_of("")
    return reuse.index.find(keys_of(root, tokens, reuse.index.unit), root, tokens)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kinds", MIXES, ids="+".join)
def test_a_request_that_is_still_running_leaves_a_boundary_exactly_at_its_point(kinds: list[str], point: int) -> None:
    engine, _ = engine_for(small_plan(kinds, 40))
    first = replace(request("first", 48, 60), points=(point,))
    stream = engine.submit(first)
    while engine.outputs("first").size < 40:
        engine.step()
        check(engine)
    tokens = np.concatenate([first.prompt, stream.tokens()])
    other = np.concatenate([tokens[:point], np.full(8, 7, dtype=np.int32)])
    assert _found(engine, other).tokens == point
    second = replace(request("second", 1, 5), prompt=other)
    engine.submit(second)
    run(engine, 400)
    assert is_empty(engine)


def test_where_every_kind_grows_a_point_is_no_boundary() -> None:
    engine, _ = engine_for(small_plan(["full"], 40))
    first = replace(request("first", 48, 20), points=(41,))
    engine.submit(first)
    run(engine, 100)
    unit = engine.scheduler.plan.reuse_unit_tokens
    other = np.concatenate([first.prompt[:41], np.full(8, 7, dtype=np.int32)])
    assert _found(engine, other).tokens == 41 // unit * unit
