"""Admission equals sizing: what the plan advertises is what an empty pool takes, for any mix of kinds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scenes import FreeRunner, World, ask

from examples import examples
from quire.check.definitions import fits_alone
from quire.core.errors import DoesNotFit, NeverFits
from quire.core.events import StepLaunched
from quire.core.request import Ending
from quire.engine.engine import Engine
from quire.models.read import read_model
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from small_kinds import KINDS

MOST = 180
PEER_POOL_BYTES = 14_022 * 2_621_440
"""Where a peer's gate asked for 34,375 of its 14,022 blocks, for ever, and 4,090 were needed."""


@dataclass(frozen=True)
class Mix:
    """A small model of any kinds, and how it is planned."""

    shape: ModelShape
    settings: Settings

    def plan(self, sheets: tuple[int, ...], max_length: int | None = None) -> Plan:
        return make_plan(self.shape, replace(self.settings, max_length=max_length), Budget(sheets=sheets))

    def smallest(self, length: int) -> tuple[int, ...]:
        """Sheets of each stage without which a request of `length` could not run."""
        chosen = self.settings
        return tuple(
            bound.minimum(stage.kinds, length, chosen.speculative_tokens, chosen.reserved_pages)
            for stage in self.plan((1,)).stages
        )


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True))
    layers = draw(st.permutations([KINDS[name] for name in names for _ in range(draw(st.integers(1, 3)))]))
    pages = {"": draw(st.sampled_from((4, 12, 16, 40)))} if draw(st.booleans()) and names != ["state"] else {}
    chosen = Settings(
        batch_tokens=draw(st.sampled_from((16, 64))),
        max_requests=4,
        page_tokens=pages,
        speculative_tokens=draw(st.sampled_from((0, 1, 3))),
        reserved_pages=draw(st.integers(0, 1)),
        pipeline_parallel=draw(st.integers(1, min(2, len(layers)))),
    )
    return Mix(ModelShape("mix", "test", tuple(layers), max_length=MOST, weights_known=False), chosen)


def is_accepted(engine: Engine, length: int) -> bool:
    try:
        engine.submit(ask("one", max(1, length - 1), 1 if length > 1 else length))
    except NeverFits:
        return False
    engine.cancel("one")
    return True


@pytest.mark.law
@examples(60)
@given(mixes(), st.integers(2, MOST), st.integers(0, 2))
def test_an_empty_pool_accepts_exactly_the_lengths_up_to_the_advertised_one(mix: Mix, length: int, more: int) -> None:
    """A length is accepted exactly where it is at most the advertised one, and that is where a request, tried token by
    token from the attention's definition, would not run out of sheets."""
    plan = mix.plan(tuple(max(1, sheets) + more for sheets in mix.smallest(length)))
    assert plan.max_length >= length
    engine = Engine(plan, FreeRunner())
    unlimited = replace(plan, max_length=MOST)
    for one in {2, length, plan.max_length, plan.max_length + 1, MOST}:
        assert is_accepted(engine, one) == (one <= plan.max_length), one
        if one <= MOST:
            assert (one <= plan.max_length) == fits_alone(unlimited, one), one


@pytest.mark.law
@examples(60)
@given(mixes(), st.integers(1, MOST), st.integers(0, 1))
def test_with_one_sheet_fewer_the_engine_does_not_start(mix: Mix, length: int, stage: int) -> None:
    """The length that was asked for fits into the smallest pool, and one sheet fewer on any stage is refused."""
    sheets = list(mix.smallest(length))
    stage %= len(sheets)
    mix.plan(tuple(sheets), length).require_fit()
    sheets[stage] -= 1
    assume(sheets[stage] > 0)
    with pytest.raises(DoesNotFit, match=r"sheets"):
        Engine(mix.plan(tuple(sheets), length), FreeRunner())


def test_a_window_model_takes_its_100_000_token_prompt_where_full_attention_refuses_it() -> None:
    """The pool in which a peer waits for ever, 2,048 batched tokens: the prompt is computed to its end. If all layers
    attended to everything, the same bytes would hold less than half of it, and submit says so."""
    windows = read_model("gemma-4-31b")
    chosen = Settings(batch_tokens=2048, max_requests=4)
    world = World(make_plan(windows, chosen, Budget(pool_bytes=PEER_POOL_BYTES)))
    stream = world.submit(ask("long", 100_000, 3))
    world.run(200)
    assert stream.ending is Ending.LENGTH
    assert sum(event.tokens for event in world.events if isinstance(event, StepLaunched)) == 100_002

    layers = tuple(
        replace(layer, memories=tuple(replace(one, kind="full", window=None) for one in layer.memories))
        for layer in windows.layers
    )
    everything = make_plan(replace(windows, layers=layers), chosen, Budget(pool_bytes=PEER_POOL_BYTES))
    with pytest.raises(NeverFits, match=r"100,000 \+ 3 tokens can never run"):
        World(everything).submit(ask("long", 100_000, 3))
