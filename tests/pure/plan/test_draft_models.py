"""A draft model is planned for in the plan of the model that it guesses for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.core.errors import InputError, PlanError
from quire.models.draft_model import with_draft_model
from quire.models.read import read_model
from quire.options.drafts import with_draft, with_draft_memory
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings

MODEL, DRAFT = read_model("qwen3-8b"), read_model("qwen3-0.6b")
BOTH = with_draft_model(MODEL, DRAFT)
SETTINGS = with_draft(Settings(), "small", 4)
ROOM = Budget(memory_bytes=80 << 30)


def test_a_token_of_both_models_takes_what_it_takes_in_each() -> None:
    plan = make_plan(BOTH, SETTINGS, ROOM)
    alone = [make_plan(one, SETTINGS, ROOM) for one in (MODEL, DRAFT)]
    assert plan.bytes_per_token == sum(one.bytes_per_token for one in alone)
    assert plan.stages[0].layers == len(MODEL.layers) + len(DRAFT.layers)


def test_the_ledger_has_the_weights_of_both() -> None:
    weights = [
        next(line.bytes for line in make_plan(shape, SETTINGS, ROOM).ranks[0].ledger if line.name == "weights")
        for shape in (BOTH, MODEL, DRAFT)
    ]
    assert weights[0] == weights[1] + weights[2]


def test_fewer_requests_fit_beside_a_draft_model_and_the_bound_knows() -> None:
    pool = Budget(pool_bytes=8 << 30)
    alone, both = (bound.concurrency(make_plan(shape, SETTINGS, pool), 8192) for shape in (MODEL, BOTH))
    assert 0 < both < alone


def test_layers_that_share_memory_share_it_with_layers_of_their_own_model() -> None:
    sharing = replace(DRAFT, layers=(*DRAFT.layers, replace(DRAFT.layers[0], memories=(), shares_with=0)))
    (stage,) = make_plan(with_draft_model(MODEL, sharing), SETTINGS, ROOM).stages
    assert stage.aliases == ((len(MODEL.layers) + len(DRAFT.layers), len(MODEL.layers)),)


def test_a_draft_model_of_another_vocabulary_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=f"{DRAFT.name} knows 99 tokens and {MODEL.name} {MODEL.vocab_size:,}"):
        with_draft_model(MODEL, replace(DRAFT, vocab_size=99))


def test_the_shorter_limit_of_both_counts() -> None:
    assert with_draft_model(MODEL, replace(DRAFT, max_length=1000)).max_length == 1000
    assert with_draft_model(replace(MODEL, max_length=None), replace(DRAFT, max_length=None)).max_length is None


@pytest.mark.parametrize(("own", "tokens"), [(3, 4), (0, 0)])
def test_numbers_of_guesses_that_contradict_each_other_are_refused(own: int, tokens: int) -> None:
    with pytest.raises(PlanError, match="--draft-tokens"):
        with_draft(Settings(speculative_tokens=own), "small", tokens)


def test_the_ledger_has_logits_for_every_guess() -> None:
    """Logits in fp32, twice; no more of them are worked on at once than before."""
    activations = [
        next(line.bytes for line in make_plan(MODEL, settings, ROOM).ranks[0].ledger if line.name == "activations")
        for settings in (Settings(max_requests=256), with_draft(Settings(max_requests=256), "small", 3))
    ]
    assert activations[1] - activations[0] == 8 * 256 * 3 * MODEL.vocab_size


def test_on_a_cpu_the_ledger_has_the_memory_of_drafts_that_are_looked_up() -> None:
    """On a GPU they lie in host memory, which the pool is not in."""
    settings = with_draft_memory(Settings(speculative_tokens=4), None, "suffix", 64 << 20)
    assert with_draft_memory(settings, None, "ngram", 1) is settings
    for is_accelerator, expected in ((False, {64 << 20}), (True, set())):
        ledger = make_plan(MODEL, settings, replace(ROOM, is_accelerator=is_accelerator)).ranks[0].ledger
        assert {line.bytes for line in ledger if line.name == "drafts"} == expected


def test_drafts_that_nothing_would_come_of_are_refused() -> None:
    with pytest.raises(PlanError, match="give --speculative-tokens too"):
        with_draft_memory(Settings(), None, "suffix", 1)
    with pytest.raises(PlanError, match="leave one of them out"):
        with_draft_memory(SETTINGS, "small", "suffix", 1)
