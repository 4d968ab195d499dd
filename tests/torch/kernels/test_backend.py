"""On the `triton` backend, whole models yield the tokens that transformers generates."""

from __future__ import annotations

import pytest

from quire.core.errors import ModelError, PlanError
from quire.worker.backends.choice import REFERENCE, choose
from quire.worker.backends.triton_backend import Triton
from quire.worker.mixers.packed import PackedMixer
from tiny_models import Service, plan_of

NAMES = ("gpt_oss", "llama4_text", "deepseek_v3", "bamba", "qwen3_next", "lfm2", "bloom")
"""Windows, sink logits and heads that share keys; chunks; latents; Mamba-2, a delta rule, short convolutions; ALiBi."""
PROMPTS = (0, 5)
"""Of the reference: one token, and longer than a window."""
OUTPUTS = 3
BOTH = (Triton(), REFERENCE)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_in_chunks_and_decoding_rows_yield_the_right_tokens(name: str) -> None:
    service = Service(name, plan_of(name, batch_tokens=24), backends=BOTH[:1])
    streams = service.send([service.reference.prompts[place] for place in PROMPTS], OUTPUTS)
    service.engine.drain()
    for place, stream in zip(PROMPTS, streams, strict=True):
        assert stream.tokens().tolist() == service.reference.tokens[place][:OUTPUTS]


def test_states_that_it_does_not_know_go_to_the_reference() -> None:
    stage = plan_of("jamba", batch_tokens=8).stages[0]
    chosen = zip(stage.kinds, choose(stage, "cpu", BOTH), strict=True)
    assert {plan.kind.kind: choice.describe() for plan, choice in chosen} == {
        "state": "state on reference (triton does not know a state of conv, ssm)",
        "full": "full on triton",
    }
    with pytest.raises(PlanError, match="triton does not know a state of conv, ssm"):
        choose(stage, "cpu", BOTH[:1])


def test_attention_over_an_index_goes_to_the_reference() -> None:
    """The kernels' masks are windows, chunks and sinks: a selection is none of these."""
    plan = plan_of("deepseek_v32", batch_tokens=24)
    (choice,) = choose(plan.stages[0], "cpu", BOTH)
    assert choice.describe() == "indexed-19 on reference (triton does not know the mask of indexed)"
    with pytest.raises(PlanError, match="triton does not know the mask of indexed"):
        choose(plan.stages[0], "cpu", BOTH[:1])
    Service("deepseek_v32", plan, backends=BOTH).check()


def test_a_mixer_that_calls_what_nobody_here_knows_is_refused_by_name() -> None:
    service = Service("bamba", plan_of("bamba", batch_tokens=8), backends=BOTH[:1])
    mixer = next(module for module in service.runner.model.model.modules() if type(module).__name__ == "BambaMixer")
    mixer.__class__ = type("Renamed", (type(mixer),), {"forward": lambda *_arguments: None})
    with pytest.raises(ModelError, match="Renamed of this transformers calls nothing that is known here"):
        PackedMixer(mixer, service.runner.model.context, BOTH[0])
