"""Tokens on a GPU are those that transformers generates on a CPU, whatever the scheduler does. Tiny models in fp32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from quire.core.dtypes import DType
from quire.core.events import PagesCompacted, RequestAdmitted, RequestPreempted, TokensDrafted
from quire.core.reasons import Why
from quire.core.sampling import Sampling
from quire.engine.engine import Stream
from quire.text.ngrams import NGramDrafter
from tiny_models import PAGE, VARIANTS, Service, plan_of, tight_plan

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

from device_models import DeviceService

NAMES = (
    "llama", "gemma3_text", "gpt_oss", "llama4_text", "deepseek_v3", "lfm2", "bamba", "qwen3_next", "falcon_h1",
    "qwen3_moe", *VARIANTS,
)  # fmt: skip
"""Full; windows; sink logits; chunks; latents; short convolutions; Mamba-2; Gated DeltaNet; keys beside a state;
experts; what transformers derives from a whole call."""
PUT_OFF = {**dict.fromkeys(NAMES[:6], 1), "qwen3_next": 0}
"""Sheets beyond the fewest, so that somebody is put off."""
GUESSING = ("gemma3_text", "gpt_oss", "lfm2", "qwen3_next", "falcon_h1")
IN_EIGHT_BITS = ("llama", "gemma3_text", "deepseek_v3")
"""Not gpt_oss: on a CPU too, rounding to bf16 beside 8 bits changes a tenth of its choices of experts. Its tokens over
8 bits are compared in fp32, in tests/torch/kernels/test_device_runner.py."""
SENT_OUTPUTS = 6
SHAPED = Sampling(logit_bias=((0, 0.0),))
"""Nothing changes, and the sampler is asked for every token."""


@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_eight_requests_together_yield_what_each_yields_alone(name: str, overlap: int) -> None:
    service = DeviceService(name, plan_of(name, batch_tokens=24), overlap)
    service.check()
    assert service.runner.graphs is not None
    assert service.runner.graphs.played > 0


@pytest.mark.parametrize("name", NAMES)
def test_prompts_that_come_again_are_found_and_yield_the_same(name: str) -> None:
    """Whoever goes on from a partly filled page or a state gets its own copy."""
    service = DeviceService(name, plan_of(name, batch_tokens=64))
    service.check()
    before = service.engine.counters.sums[RequestAdmitted, "hit_tokens"]
    service.check(label="again")
    assert service.engine.counters.sums[RequestAdmitted, "hit_tokens"] > before


@pytest.mark.parametrize("name", PUT_OFF)
def test_a_pool_that_is_too_small_for_all_changes_no_token(name: str) -> None:
    service = DeviceService(name, tight_plan(name, PUT_OFF[name]))
    service.engine.scheduler.admission.typical_output = 1.0
    service.check()
    assert service.engine.counters.events[RequestPreempted, Why.NEEDS_PAGES] > 0


def test_pages_that_are_moved_together_change_no_token() -> None:
    moved = 0
    for more_sheets in range(6):
        service = DeviceService("gemma3_text", tight_plan("gemma3_text", more_sheets, {"full": 4, "window": PAGE}))
        service.engine.scheduler.admission.typical_output = 1.0
        service.check()
        moved += service.engine.counters.sums[PagesCompacted, "pages"]
    assert moved > 0


@pytest.mark.parametrize("name", GUESSING)
def test_guesses_change_no_token(name: str) -> None:
    service = DeviceService(name, plan_of(name, batch_tokens=64, lookahead=3), drafter=NGramDrafter())
    service.check()
    assert service.engine.counters.sums[TokensDrafted, "drafted"] > 0


@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize(
    ("name", "draft"), [("gemma3_text", "gemma3_text"), ("gemma3_text", "llama"), ("qwen3_next", "qwen3_next")]
)
def test_guesses_of_a_draft_model_change_no_token(name: str, draft: str, overlap: int) -> None:
    plan = plan_of(name, batch_tokens=64, lookahead=3, draft=draft)
    service = DeviceService(name, plan, overlap, draft=draft)
    service.check()
    drafted, accepted = (service.engine.counters.sums[TokensDrafted, told] for told in ("drafted", "accepted"))
    assert drafted > 0
    assert name != draft or accepted > 0.9 * drafted


@pytest.mark.parametrize("name", ["gemma3_text", "deepseek_v3", "lfm2"])
def test_a_compiled_model_yields_the_same_tokens(name: str) -> None:
    torch._dynamo.reset()
    DeviceService(name, plan_of(name, batch_tokens=24), is_compiled=True, counts=(3, 8)).check()


def test_a_request_draws_the_same_tokens_alone_and_in_a_batch() -> None:
    sampling = Sampling(temperature=0.9, top_p=0.95, seed=7)
    alone, together = (DeviceService("llama", plan_of("llama", batch_tokens=64)) for _ in range(2))
    (one,) = alone.send([5], 12, sampling=sampling)
    alone.engine.drain()
    among = together.send([2, 5, 7], 12, sampling=sampling)
    together.engine.drain()
    assert one.tokens().tolist() == among[1].tokens().tolist()
    assert len(np.unique(one.tokens())) > 1


@pytest.mark.parametrize("name", NAMES)
def test_logits_in_bf16_are_near_those_of_a_cpu_in_fp32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then another expert is chosen: hence medians."""
    service = DeviceService(
        name, plan_of(name, batch_tokens=64, kv_dtype=DType.BF16), counts=(2,), dtype=torch.bfloat16
    )
    assert np.median(errors_of(service, service.reference.tokens, service.reference.logits, monkeypatch)) < 0.05


@pytest.mark.parametrize("name", IN_EIGHT_BITS)
def test_logits_over_8_bits_are_near_those_of_a_cpu_over_8_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There in fp32 on the reference backend, with the same pages; here in bf16 on kernels."""
    plan = plan_of(name, batch_tokens=64, kv_dtype=DType.FP8)
    there, service = Service(name, plan), DeviceService(name, plan, counts=(2,), dtype=torch.bfloat16)
    tokens = [stream.tokens().tolist() for stream in finished(there, service.reference.prompts)]
    logits = [
        torch.stack([there.runner.logits[f"{place}", len(prompt) + output] for output in range(SENT_OUTPUTS)])
        for place, prompt in enumerate(service.reference.prompts)
    ]
    assert np.median(errors_of(service, tokens, logits, monkeypatch)) < 0.1


def finished(service: Service, prompts: list[np.ndarray]) -> list[Stream]:
    streams = service.send(prompts, SENT_OUTPUTS)
    service.engine.drain()
    return streams


def errors_of(
    service: DeviceService, tokens: Sequence[list[int]], logits: Sequence[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> list[float]:
    """Of prompts and of decode steps, as long as tokens agree."""
    sampler, seen = service.runner.sampler, list[torch.Tensor]()
    sample = sampler.sample

    def noting(found: torch.Tensor, rows: np.ndarray, positions: np.ndarray) -> torch.Tensor:
        seen.extend(found.to("cpu", torch.float32, copy=True))
        return sample(found, rows, positions)

    monkeypatch.setattr(sampler, "sample", noting)
    errors: list[float] = []
    for place, expected in enumerate(logits):
        seen.clear()
        (stream,) = service.send([place], SENT_OUTPUTS, sampling=SHAPED)
        service.engine.drain()
        assert len(seen) == SENT_OUTPUTS
        agree = np.cumprod(stream.tokens() == tokens[place][:SENT_OUTPUTS]).sum()
        pairs = zip(seen[: agree + 1], expected, strict=False)
        errors += [float((mine - theirs).norm() / theirs.norm()) for mine, theirs in pairs]
    assert len(errors) > 2 * len(service.reference.prompts)
    assert service.runner.graphs is not None
    assert service.runner.graphs.played > 0
    return errors
