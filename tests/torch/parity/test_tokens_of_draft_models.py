"""A draft model in the same pool guesses, and nobody can tell from the tokens."""

from __future__ import annotations

import pytest
import torch

from examples import rest_in_soak
from quire.core.events import PagesCompacted, RequestAdmitted, RequestPreempted, TokensDrafted
from quire.core.reasons import Why
from tiny_models import PAGE, Service, plan_of, tight_plan

torch.set_num_threads(1)
LOOKAHEAD = 3
CUTS = (7, PAGE)
PAIRS = (
    ("llama", "qwen3", 1), ("llama", "gemma3_text", 2), ("gemma3_text", "llama", 1), ("gpt_oss", "mistral", 2),
    ("bamba", "llama", 2), ("llama", "bamba", 1), ("deepseek_v3", "llama", 2),
)  # fmt: skip
"""Model, draft model, steps in flight: kinds in common and kinds of one alone, states on either side."""


@pytest.mark.parametrize(("name", "draft", "overlap"), rest_in_soak(PAIRS, PAIRS[1:3] + PAIRS[4:6]))
def test_guesses_of_a_draft_model_change_no_token(name: str, draft: str, overlap: int) -> None:
    """Nor when prompts are found again, for both models at once."""
    service = Service(name, plan_of(name, batch_tokens=64, lookahead=LOOKAHEAD, draft=draft), overlap, draft=draft)
    service.check()
    before = service.engine.counters.sums
    service.check("again")
    after = service.engine.counters.sums
    assert after[TokensDrafted, "drafted"] > 0
    assert after[RequestAdmitted, "hit_tokens"] > before[RequestAdmitted, "hit_tokens"]


@pytest.mark.parametrize(
    ("name", "overlap", "batch_tokens"),
    rest_in_soak(
        [
            (name, overlap, tokens)
            for name, overlap in (("llama", 1), ("gemma3_text", 2), ("bamba", 2))
            for tokens in CUTS
        ],
        [("llama", 1, 7), ("gemma3_text", 2, PAGE), ("bamba", 2, PAGE)],
    ),
)
def test_guesses_of_the_model_itself_come_true(name: str, overlap: int, batch_tokens: int) -> None:
    """However prompts are cut, and after a prefix hit: what the draft model keeps was found with the rest. A token that
    it did not compute, or a page of another request, would show here."""
    plan = plan_of(name, batch_tokens=batch_tokens, lookahead=LOOKAHEAD, draft=name)
    service = Service(name, plan, overlap, draft=name)
    service.check()
    service.check("again")
    sums = service.engine.counters.sums
    assert sums[RequestAdmitted, "hit_tokens"] > 0
    assert sums[TokensDrafted, "accepted"] == sums[TokensDrafted, "drafted"] > 0


@pytest.mark.parametrize(
    ("name", "draft", "overlap"),
    [("llama", "gemma3_text", 1), ("gemma3_text", "gemma3_text", 1), ("llama", "llama", 2), ("bamba", "bamba", 2)],
)
def test_a_pool_that_is_too_small_for_all_changes_no_guess(name: str, draft: str, overlap: int) -> None:
    """Preempted while guesses are in flight, and computed again by both models."""
    service = Service(name, tight_plan(name, 1, lookahead=LOOKAHEAD, draft=draft), overlap, draft=draft)
    service.engine.scheduler.admission.typical_output = 1.0
    service.check()
    counters = service.engine.counters
    drafted, accepted = (counters.sums[TokensDrafted, word] for word in ("drafted", "accepted"))
    assert counters.events[RequestPreempted, Why.NEEDS_PAGES] > 0
    assert accepted == drafted if name == draft else accepted < drafted


def test_pages_of_two_models_are_moved_together() -> None:
    plan = tight_plan("gemma3_text", 4, {"full": 4, "window": PAGE}, LOOKAHEAD, "gemma3_text")
    service = Service("gemma3_text", plan, draft="gemma3_text")
    service.engine.scheduler.admission.typical_output = 1.0
    service.check()
    sums = service.engine.counters.sums
    assert sums[PagesCompacted, "pages"] > 0
    assert sums[TokensDrafted, "accepted"] == sums[TokensDrafted, "drafted"] > 0
