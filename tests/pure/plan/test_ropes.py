"""Rotary frequencies that depend on lengths: the plan chooses, once for all its requests, and says what it chose."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shapes import FULL, model

from quire.core.errors import PlanError
from quire.core.units import GIB
from quire.handover.portable import Portable
from quire.models.draft_model import with_draft_model
from quire.models.read import read_config, read_model
from quire.models.shape import ModelShape, Rope
from quire.plan.file import fingerprint, layout_fingerprint
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.planner.document import document, plan_of

LLAMA: dict[str, object] = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 4096,
}  # fmt: skip
GEMMA: dict[str, object] = {
    **LLAMA, "model_type": "gemma3_text", "head_dim": 16, "sliding_window": 512,
    "layer_types": ["full_attention", "sliding_attention"],
}  # fmt: skip
LONG = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0], "original_max_position_embeddings": 1024}
SU = {**LONG, "rope_type": "su", "original_max_position_embeddings": 77}


def shape_of(base: dict[str, object], **changes: object) -> ModelShape:
    return read_config({**base, **changes}, "tiny")


def a_plan(shape: ModelShape, max_length: int | None = None, lookahead: int = 0) -> Plan:
    settings = Settings(max_length=max_length, speculative_tokens=lookahead)
    return make_plan(shape, settings, Budget(pool_bytes=GIB)).require_fit()


@pytest.mark.parametrize(
    ("base", "changes", "ropes"),
    [
        (LLAMA, {}, ()),
        (LLAMA, {"rope_scaling": None, "rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, ()),
        (LLAMA, {"rope_scaling": LONG}, (Rope("longrope", 1024),)),
        (LLAMA, {"rope_scaling": {**LONG, "original_max_position_embeddings": None}}, (Rope("longrope", 4096),)),
        (LLAMA, {"rope_scaling": LONG, "original_max_position_embeddings": 512}, (Rope("longrope", 512),)),
        (LLAMA, {"model_type": "phi3", "rope_scaling": SU}, (Rope("longrope", 4096),)),
        (LLAMA, {"model_type": "phi3", "rope_scaling": SU, "original_max_position_embeddings": 99},
         (Rope("longrope", 99),)),
        (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, (Rope("dynamic", 4096, "", 2.0),)),
        (LLAMA, {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}}, ()),
        (GEMMA, {"rope_parameters": {"sliding_attention": {"rope_type": "default"}, "full_attention": LONG}},
         (Rope("longrope", 1024, "full_attention"),)),
    ],
)  # fmt: skip
def test_a_configuration_says_which_frequencies_depend_on_lengths(
    base: dict[str, object], changes: dict[str, object], ropes: tuple[Rope, ...]
) -> None:
    """In the old and the new spelling, for all layers or for those of one type; a fixed alpha depends on nothing."""
    assert shape_of(base, **changes).ropes == ropes


@pytest.mark.parametrize(
    ("max_length", "rope"), [(None, "longrope long"), (1025, "longrope long"), (1024, "longrope short")]
)
def test_long_factors_are_for_plans_whose_requests_may_exceed_the_original_length(
    max_length: int | None, rope: str
) -> None:
    """And the notes say what to ask for to have the short ones."""
    plan = a_plan(shape_of(LLAMA, rope_scaling=LONG), max_length)
    assert plan.rope == rope
    notes = [note for note in plan.notes if "rotary frequencies are longrope long for every request" in note]
    assert bool(notes) == (rope == "longrope long")
    assert all("--max-length 1024 keeps the original ones" in note for note in notes)


def test_dynamic_frequencies_stretch_as_far_as_is_asked_for() -> None:
    """Up to `factor` times the model's own length; a plan that nobody asked for a length stays within that."""
    shape = shape_of(LLAMA, rope_scaling={"type": "dynamic", "factor": 2.5})
    assert (a_plan(shape).max_length, a_plan(shape).rope) == (4096, "dynamic 4096")
    assert a_plan(shape, 100).rope == "dynamic 4096"
    assert a_plan(shape, 10_240).rope == "dynamic 10240"
    with pytest.raises(PlanError, match="choose at most 10,240"):
        a_plan(shape, 10_241)


def test_pages_of_plans_with_other_frequencies_are_never_exchanged() -> None:
    """Not through prefix keys or tiers, which go by the layout, nor by hand-over."""
    shape = shape_of(LLAMA, rope_scaling=LONG)
    short, long, longer = (a_plan(shape, length) for length in (1024, 1025, 4096))
    assert layout_fingerprint(long) == layout_fingerprint(longer) != layout_fingerprint(short)
    handed = [Portable(plan).fingerprint("w", "1") for plan in (short, long, longer)]
    assert handed[1] == handed[2] != handed[0]
    assert fingerprint(short) != fingerprint(replace(short, rope="longrope long"))


@pytest.mark.golden
def test_a_plan_without_such_frequencies_has_the_fingerprints_that_it_always_had() -> None:
    """Of a plan that was made before plans spoke of frequencies."""
    plan = make_plan(model([FULL]), Settings(), Budget(pool_bytes=GIB))
    assert plan.rope == ""
    assert fingerprint(plan).startswith("44c248a2062bbb40")
    assert layout_fingerprint(plan).startswith("fbeb0bd6ffbae646")


def test_the_catalogue_knows_which_models_have_them() -> None:
    """Phi-3 with 4k tokens has none."""
    known = {"phi-3-mini-4k": "", "phi-3-mini-128k": "longrope long", "phi-4-mini": "longrope long", "phi-4": ""}
    for name, rope in known.items():
        plan = make_plan(read_model(name), Settings(), Budget(pool_bytes=64 * GIB))
        assert plan.rope == rope, name


def test_frequencies_of_a_draft_model_are_part_of_the_plan() -> None:
    draft = shape_of(LLAMA, rope_scaling={"type": "dynamic", "factor": 2.0})
    both = with_draft_model(shape_of(LLAMA, rope_scaling=LONG), draft)
    assert a_plan(both, lookahead=3).rope == "longrope long, draft dynamic 4096"
    assert both.stretched_length == 4096, "the model itself cannot be stretched"
    assert with_draft_model(draft, draft).stretched_length == 8192


def test_a_saved_plan_keeps_its_frequencies() -> None:
    plan = a_plan(shape_of(LLAMA, rope_scaling=LONG))
    data = document(plan)
    assert data["rope"] == "longrope long"
    assert plan_of(data, "plan.json") == plan
