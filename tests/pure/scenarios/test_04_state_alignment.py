"""State alignment: pages longer than a step's budget beside a recurrent state."""

from __future__ import annotations

import pytest
from scenes import FreeRunner, World, ask

from quire.core.events import RequestAdmitted
from quire.core.request import Ending
from quire.models.shape import ModelShape
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from small_kinds import KINDS


@pytest.mark.parametrize("prompt", [600, 527, 528, 529, 1056, 1100])
def test_a_page_longer_than_the_budget_never_leaves_a_step_without_new_tokens(prompt: int) -> None:
    """Attention pages forced to 528 tokens, 512 batched tokens, a prompt of 600 beside a state whose checkpoints lie at
    whole pages: it runs, every step computes at least one token, and the same prompt again finds its page."""
    shape = ModelShape("aligned", "test", (KINDS["state"], KINDS["full"]), max_length=4096, weights_known=False)
    chosen = Settings(batch_tokens=512, max_requests=4, page_tokens={"full": 528})
    runner = FreeRunner()
    world = World(make_plan(shape, chosen, Budget(sheets=(40,))), runner)
    assert world.engine.scheduler.reuse.index.unit == 528
    for name in ("first", "again"):
        stream = world.submit(ask("same", prompt, 20))
        world.run(prompt + 40)
        assert stream.ending is Ending.LENGTH, name
    assert min(runner.sizes) >= 1
    assert max(runner.sizes) <= 512
    hits = [event.hit_tokens for event in world.events if isinstance(event, RequestAdmitted)]
    assert hits == [0, (prompt - 1) // 528 * 528]
