"""Whatever the scheduler does, tokens are those that transformers generates for each request alone."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet

from drafters import Reminded
from examples import rest_in_soak
from quire.core.events import PagesCompacted, RequestAdmitted, RequestPreempted, TokensDrafted
from quire.core.reasons import Why
from quire.text.ngrams import NGramDrafter
from tiny_models import PAGE, Service, plan_of, reference, tight_plan

torch.set_num_threads(1)
ARCHITECTURES = (
    "llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "mixtral", "gemma2", "gemma3_text", "gpt_oss", "llama4_text",
    "phi3", "olmo3", "cohere2", "smollm3", "granite", "glm4",
)  # fmt: skip
KINDS = {
    "qwen2": {"full": 2, "window": 2}, "qwen3": {"full": 2, "window": 2}, "mistral": {"window": 4},
    "mixtral": {"window": 4}, "gemma2": {"full": 2, "window": 2}, "gemma3_text": {"full": 2, "window": 2},
    "gpt_oss": {"full": 2, "window": 2}, "llama4_text": {"full": 2, "chunked": 2}, "phi3": {"window": 4},
    "olmo3": {"full": 2, "window": 2}, "cohere2": {"full": 2, "window": 2},
}  # fmt: skip
"""Layers of each kind; four full ones where nothing is said."""
VARIED = ("llama", "gemma3_text", "gpt_oss", "llama4_text")
"""Full attention, windows, chunks, sink logits and experts: these are tried in every way at each run."""
UNBOUNDED = 512
LOOKAHEAD = 3


def each_way(usual: int, others: Iterable[int]) -> list[ParameterSet]:
    """Those that vary in the usual way, and one of them in each of the others; in a soak every architecture in all."""
    tried = list(itertools.product(ARCHITECTURES, (usual, *others)))
    return rest_in_soak(
        tried, [*itertools.product(VARIED, [usual]), *zip(itertools.cycle(VARIED[1:]), others, strict=False)]
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_tiny_model_has_at_least_two_layers_of_each_kind(name: str) -> None:
    """And its window or chunk does not divide by the page."""
    (stage,) = plan_of(name, batch_tokens=UNBOUNDED).stages
    assert Counter({plan.kind.kind: plan.slots for plan in stage.kinds}) == KINDS.get(name, {"full": 4})
    for plan in stage.kinds:
        assert all(getattr(plan.kind, size, 1) % PAGE for size in ("window", "chunk"))


@pytest.mark.parametrize(
    ("name", "batch_tokens"),
    [*((name, 7) for name in ARCHITECTURES if name not in VARIED), *each_way(7, (1, PAGE, UNBOUNDED))],
)
def test_eight_requests_together_yield_what_each_yields_alone(name: str, batch_tokens: int) -> None:
    """However their prompts are cut."""
    Service(name, plan_of(name, batch_tokens=batch_tokens)).check()


@pytest.mark.parametrize("name", rest_in_soak(ARCHITECTURES, VARIED))
def test_prompts_that_come_again_are_found_and_yield_the_same(name: str) -> None:
    """Prefix hits; without overlapped steps too."""
    service = Service(name, plan_of(name, batch_tokens=64), overlap=1)
    service.check()
    before = service.engine.counters.sums[RequestAdmitted, "hit_tokens"]
    service.check("again")
    assert service.engine.counters.sums[RequestAdmitted, "hit_tokens"] > before


@pytest.mark.parametrize(("name", "overlap"), each_way(2, (1,)))
def test_a_pool_that_is_too_small_for_all_changes_no_token(name: str, overlap: int) -> None:
    """Requests that were thought to be short are put off and computed again."""
    service = Service(name, tight_plan(name, more_sheets=1), overlap)
    service.engine.scheduler.admission.typical_output = 1.0
    service.check()
    assert service.engine.counters.events[RequestPreempted, Why.NEEDS_PAGES] > 0


@pytest.mark.parametrize(("name", "overlap"), each_way(2, (1,)))
def test_guesses_change_no_token(name: str, overlap: int) -> None:
    service = Service(name, plan_of(name, batch_tokens=64, lookahead=LOOKAHEAD), overlap, NGramDrafter())
    service.check()
    before = service.engine.counters.sums
    service.check("again")
    after = service.engine.counters.sums
    assert after[TokensDrafted, "drafted"] > before[TokensDrafted, "drafted"] > 0
    assert after[RequestAdmitted, "hit_tokens"] > before[RequestAdmitted, "hit_tokens"]


@pytest.mark.parametrize(
    ("name", "batch_tokens"),
    rest_in_soak(
        itertools.product(["gemma3_text", "deepseek_v3", "lfm2"], [1, 7, PAGE, UNBOUNDED]),
        [("gemma3_text", 1), ("gemma3_text", 7), ("deepseek_v3", PAGE), ("lfm2", 7), ("lfm2", UNBOUNDED)],
    ),
)
def test_guesses_that_come_true_change_no_token_however_prompts_are_cut(name: str, batch_tokens: int) -> None:
    """Full and window, latent, full and state. Who may compute one token a step never guesses."""
    plan = plan_of(name, batch_tokens=batch_tokens, lookahead=LOOKAHEAD)
    service = Service(name, plan, drafter=Reminded(_said(name)))
    service.check()
    accepted, drafted = (service.engine.counters.sums[TokensDrafted, word] for word in ("accepted", "drafted"))
    assert 0 < accepted < drafted if batch_tokens > 1 else drafted == 0


@pytest.mark.parametrize(("name", "overlap"), each_way(2, (1,)))
def test_guesses_that_come_true_in_a_pool_that_is_too_small_change_no_token(name: str, overlap: int) -> None:
    """Some do not, and requests are put off while theirs are in flight."""
    plan = tight_plan(name, more_sheets=1, lookahead=LOOKAHEAD)
    service = Service(name, plan, overlap, Reminded(_said(name)))
    service.engine.scheduler.admission.typical_output = 1.0
    service.check()
    counters = service.engine.counters
    assert counters.events[RequestPreempted, Why.NEEDS_PAGES] > 0
    assert 0 < counters.sums[TokensDrafted, "accepted"] < counters.sums[TokensDrafted, "drafted"]


def _said(name: str) -> list[np.ndarray]:
    """What requests ask and yield."""
    model = reference(name)
    return [np.append(prompt, tokens) for prompt, tokens in zip(model.prompts, model.tokens, strict=True)]


@pytest.mark.parametrize(
    ("name", "pools"),
    rest_in_soak(
        [(name, pools) for name, kinds in KINDS.items() if len(kinds) > 1 for pools in (1, 6)],
        [(name, 1) for name in VARIED],
    ),
)
def test_pages_that_are_moved_together_change_no_token(name: str, pools: int) -> None:
    """Full pages are a quarter of a sheet here, and a window's or a chunk's page needs a whole one. Where all layers
    are of one kind, no sheet is wanted by another, and nothing is ever moved."""
    (other,) = set(KINDS[name]) - {"full"}
    moved = 0
    for more_sheets in range(6):
        if moved and more_sheets >= pools:
            break
        service = Service(name, tight_plan(name, more_sheets, {"full": 4, other: PAGE}))
        service.engine.scheduler.admission.typical_output = 1.0
        service.check()
        moved += service.engine.counters.sums[PagesCompacted, "pages"]
    assert moved > 0
