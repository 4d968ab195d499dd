"""Never-fits is an answer, not a wait."""

from __future__ import annotations

import pytest
from scenes import World, ask, paged_plan

from quire.core.errors import NeverFits
from quire.core.events import What
from quire.core.request import Ending


def test_what_could_never_run_is_refused_within_the_call_and_those_behind_it_finish() -> None:
    """32 pages of 16 tokens hold 512. A request of 513 is told so before submit returns, with the numbers; ten short
    ones sent right after it finish, and nothing of it is left anywhere."""
    world = World(paged_plan(32))
    sentence = (
        r"long of 500 \+ 13 tokens can never run: it needs 33 sheets and there are 32; the longest .* is 512 tokens"
    )
    with pytest.raises(NeverFits, match=sentence):
        world.engine.submit(ask("long", 500, 13))
    assert world.told(What.REFUSED) == ["long"]
    assert "long" not in world.engine.streams
    assert world.engine.scheduler.is_idle()
    streams = [world.submit(ask(f"short {i}", 40, 9)) for i in range(10)]
    world.run(1000)
    assert [stream.ending for stream in streams] == [Ending.LENGTH] * 10
    assert "long" not in world.told(What.ACCEPTED)


def test_the_longest_that_fits_is_accepted_and_runs_alone_to_its_last_token() -> None:
    """What the refusal names as the longest is not a figure of speech."""
    world = World(paged_plan(32))
    stream = world.submit(ask("longest", 500, 12))
    world.run(1000)
    assert stream.ending is Ending.LENGTH
    assert len(stream.tokens()) == 12
