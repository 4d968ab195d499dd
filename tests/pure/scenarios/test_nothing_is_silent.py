"""Nothing is silent: what is turned off, not found, padded or shortened is said, with the number and the reason."""

from __future__ import annotations

import numpy as np
import pytest
from scenes import World, own_tokens

from quire.core.events import RequestAdmitted
from quire.core.request import Request
from quire.core.units import GIB
from quire.models.read import read_model
from quire.models.shape import ModelShape
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.planner.document import document
from small_kinds import KINDS


def plan_of(*names: str, max_length: int = 400, sheets: int = 200) -> Plan:
    shape = ModelShape("small", "test", tuple(KINDS[name] for name in names), max_length=400, weights_known=False)
    return make_plan(shape, Settings(batch_tokens=64, max_requests=4, max_length=max_length), Budget(sheets=(sheets,)))


def said(plan: Plan, *prompts: tuple[str, int, int]) -> list[str]:
    """What each request in turn is told about reuse: (scope, tokens of everyone's, tokens of its own)."""
    world = World(plan)
    for place, (scope, shared, own) in enumerate(prompts):
        prompt = np.concatenate([own_tokens("everyone", shared), own_tokens(f"own {place}", own)])
        world.submit(Request(f"r{place}", prompt, 3, scope=scope))
        world.run(100)
    return [event.label for event in world.events if isinstance(event, RequestAdmitted)]


FIRST = ("", 150, 1)
REASONS = [
    (("full",), [FIRST, ("", 0, 150)], "no_overlap"),
    (("full",), [FIRST, ("", 9, 0)], "below_unit"),
    (("full", "state"), [FIRST, ("", 70, 80)], "checkpoint_absent"),
    (("full",), [FIRST, ("other", 150, 1)], "scope"),
    (("full", "cross"), [FIRST, FIRST], "disabled"),
    (("full", "window", "state"), [FIRST, FIRST], ""),
]


@pytest.mark.parametrize(("kinds", "prompts", "reason"), REASONS, ids=[reason or "hit" for *_, reason in REASONS])
def test_a_prompt_that_finds_nothing_is_told_why(
    kinds: tuple[str, ...], prompts: list[tuple[str, int, int]], reason: str
) -> None:
    """Each reason there is, and none on a hit."""
    assert said(plan_of(*kinds), *prompts)[-1] == reason


def test_a_prompt_whose_window_tail_was_evicted_on_its_way_is_told_so() -> None:
    """It parts from the first prompt in the middle, where spare pages of the window lay while there was room."""
    prompts = [FIRST, ("", 0, 100), ("", 70, 80)]
    assert said(plan_of("full", "window"), *prompts)[-1] == ""
    assert said(plan_of("full", "window", max_length=200, sheets=8), *prompts)[-1] == "tail_evicted"


def test_reuse_that_turns_itself_off_names_the_kind() -> None:
    index = World(plan_of("full", "cross")).engine.scheduler.reuse.index
    assert index.disabled == "cross-90 depends on more than the tokens"
    assert World(plan_of("full", "state")).engine.scheduler.reuse.index.disabled == ""


def test_a_shortened_length_a_coarser_unit_and_copied_heads_are_noted_with_their_numbers() -> None:
    """Each note is there because of what it says, and gone without it."""
    model = read_model("meta-llama-3.1-8b")
    roomy, tight = (make_plan(model, Settings(), Budget(pool_bytes=size * GIB)) for size in (64, 4))
    assert f"the longest length is {tight.max_length:,}, not 131,072: the memory holds no more" in tight.notes
    coarse = make_plan(model, Settings(page_tokens={"": 48}), Budget(pool_bytes=64 * GIB))
    unit = coarse.match_unit_tokens
    assert f"prefixes match in units of {unit} tokens, not 64: pages must divide" in coarse.notes
    copied = make_plan(model, Settings(tensor_parallel=16), Budget(pool_bytes=64 * GIB))
    assert "8 KV heads over 16 ranks: each keeps a copy or an unfilled row" in copied.notes
    assert not roomy.notes


def test_padding_is_printed_with_every_plan() -> None:
    """Bytes taken ÷ bytes alive at each length, and the sheets' unused tails."""
    told = document(make_plan(read_model("gemma-3-27b"), Settings(), Budget(pool_bytes=64 * GIB)), [2048])
    assert 1 <= told["waste"]["2048"] <= 1.03
    assert 0 <= told["tail_waste"] <= 0.005
