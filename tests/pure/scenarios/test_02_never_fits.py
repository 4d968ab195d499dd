"""Never-fits is an answer, not a wait."""

from __future__ import annotations

import pytest
from scenes import World, ask, paged_plan

from quire.core.errors import NeverFits
from quire.core.events import RequestAccepted, RequestRefused
from quire.core.request import Ending
from quire.models.shape import ModelShape
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from small_kinds import KINDS


def test_what_could_never_run_is_refused_within_the_call_and_those_behind_it_finish() -> None:
    """32 pages of 16 tokens hold 512. A request of 513 is told so before submit returns, with the numbers; ten short
    ones sent right after it finish, and nothing of it is left anywhere."""
    world = World(paged_plan(32))
    sentence = (
        r"long of 500 \+ 13 tokens can never run: it needs 33 sheets \(33 for full\) and there are 32; "
        r"the longest that fits is 512 tokens"
    )
    with pytest.raises(NeverFits, match=sentence):
        world.engine.submit(ask("long", 500, 13))
    assert world.told(RequestRefused) == ["long"]
    assert "long" not in world.engine.streams
    assert world.engine.scheduler.is_idle()
    streams = [world.submit(ask(f"short {i}", 40, 9)) for i in range(10)]
    world.run(1000)
    assert [stream.ending for stream in streams] == [Ending.LENGTH] * 10
    assert "long" not in world.told(RequestAccepted)


def test_the_longest_that_fits_is_accepted_and_runs_alone_to_its_last_token() -> None:
    """What the refusal names as the longest is not a figure of speech."""
    world = World(paged_plan(32))
    stream = world.submit(ask("longest", 500, 12))
    world.run(1000)
    assert stream.ending is Ending.LENGTH
    assert len(stream.tokens()) == 12


def two_stages(sheets: tuple[int, int], **settings: int) -> Plan:
    """Full layers on the first, windows and chunks on the second."""
    layers = (KINDS["full"], KINDS["full"], KINDS["window"], KINDS["chunked"])
    shape = ModelShape("two", "test", layers, max_length=4096, weights_known=False)
    asked = Settings(max_requests=4, batch_tokens=64, page_tokens={"": 16}, pipeline_parallel=2, **settings)
    return make_plan(shape, asked, Budget(sheets=sheets))


def test_stages_are_not_mixed_up_when_only_the_configured_length_is_in_the_way() -> None:
    """The most that any stage needs is more than the least that any stage has, and no stage is short."""
    world = World(two_stages((100, 12), max_length=256))
    with pytest.raises(NeverFits, match=r"can never run: the longest that fits is 256 tokens$"):
        world.engine.submit(ask("long", 300, 20))


def test_the_stage_that_is_short_is_named_with_the_sheets_of_each_kind() -> None:
    plan = two_stages((20, 100))
    assert plan.max_length == 320
    with pytest.raises(NeverFits, match=r"it needs 25 sheets \(25 for full\) and there are 20 on stage 0; the longest"):
        World(plan).engine.submit(ask("long", 300, 100))


@pytest.mark.parametrize("length", [1, 17, 70, 71, 256, 1000])
def test_what_each_kind_takes_adds_up_to_the_minimum(length: int) -> None:
    for stage in two_stages((100, 100)).stages:
        assert sum(bound.minimum_by_kind(stage.kinds, length, 3, 1)) == bound.minimum(stage.kinds, length, 3, 1)
