"""Log-probabilities are those of transformers' logits, whatever the scheduler does."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from drafters import Reminded
from examples import rest_in_soak
from quire.cache.audit import audit
from quire.core.events import RequestAdmitted, RequestPreempted, TokensDrafted
from quire.core.reasons import Why
from quire.core.request import Request
from quire.core.sampling import Sampling
from quire.core.step import Step
from quire.engine.engine import Stream
from quire.explain.events import reason_of
from quire.plan.ledger import activation_line
from quire.worker.model.model import TorchModel
from quire.worker.sampling.logprobs import Scorer
from tiny_models import OUTPUTS, PAGE, Reference, Service, plan_of, reference, shape_of, tight_plan

torch.set_num_threads(1)
MODELS = ("llama", "gemma3_text", "llama4_text")
ASKED = Sampling(logprobs=3, prompt_logprobs=2)


def send(service: Service, sampling: Sampling = ASKED, label: str = "") -> list[Stream]:
    prompts = enumerate(service.reference.prompts)
    return [service.engine.submit(Request(f"{label}{i}", prompt, OUTPUTS, sampling=sampling)) for i, prompt in prompts]


@torch.inference_mode()
def expected(reference: Reference, place: int) -> torch.Tensor:
    """(position, vocabulary): what the model thought of each token of prompt and output, from the second on."""
    tokens = np.concatenate([reference.prompts[place], reference.tokens[place]]).astype(np.int64)
    logits = reference.model(input_ids=torch.from_numpy(tokens)[None], use_cache=False).logits[0].float()
    return torch.log_softmax(logits, -1)


def check(service: Service, streams: list[Stream]) -> None:
    for place, stream in enumerate(streams):
        theirs = expected(service.reference, place)
        prompt = len(stream.request.prompt)
        tokens = [*stream.request.prompt.tolist(), *stream.tokens().tolist()]
        assert sorted(stream.logprobs) == list(range(1, prompt + OUTPUTS))
        for position, one in stream.logprobs.items():
            row = theirs[position - 1]
            assert one.token == tokens[position]
            assert abs(one.value - float(row[one.token])) < 1e-4
            near = 1 + int((row > one.value + 1e-4).sum()), 1 + int((row > one.value - 1e-4).sum())
            assert near[0] <= one.rank <= near[1]
            assert len(one.top) == (2 if position < prompt else 3)
            assert np.allclose([value for _, value in one.top], row.topk(len(one.top)).values, atol=1e-4)
            assert all(abs(value - float(row[token])) < 1e-4 for token, value in one.top)


@pytest.mark.parametrize(
    ("name", "batch_tokens"),
    rest_in_soak(
        itertools.product([*MODELS, "deepseek_v3", "bamba"], [7, PAGE, 512]),
        [
            ("llama", PAGE),
            ("gemma3_text", 7),
            ("llama4_text", 512),
            ("deepseek_v3", PAGE),
            ("bamba", 7),
            ("bamba", 512),
        ],
    ),
)
def test_they_are_those_of_the_models_own_logits(name: str, batch_tokens: int) -> None:
    """However the prompts are cut."""
    service = Service(name, plan_of(name, batch_tokens=batch_tokens))
    streams = send(service)
    service.engine.drain()
    check(service, streams)


@pytest.mark.story
def test_who_has_ended_asks_about_nobody_elses_tokens() -> None:
    """A step's tokens are fetched at once where somebody asked about them, and only there."""
    scorer = Scorer()
    scorer.enter(2, Request("a", np.array([3, 4], dtype=np.int32), 5, sampling=ASKED))
    others, own = (np.array(rows) for rows in ([0, 1], [1, 2]))
    each = np.ones(2, dtype=np.int64)
    ids = np.zeros(2, dtype=np.int32)
    steps = [Step(0, rows, each, each, np.array([True, True]), each, ids) for rows in (others, own)]
    assert [scorer.has_output_targets(step) for step in steps] == [False, True]
    assert not scorer.has_output_targets(replace(steps[1], samples=np.array([True, False])))


def test_logits_of_prompts_take_no_more_room_than_the_ledger_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight prompts of up to 64 tokens at once, and never more rows of logits than eight requests draw from."""
    plan = plan_of("llama", batch_tokens=512)
    service, pieces, alive = Service("llama", plan), TorchModel.pieces, []

    def watched(self: TorchModel, *given: Any) -> Iterator[torch.Tensor]:
        found, held = pieces(self, *given), []
        for _ in given[2]:
            assert all(logits() is None for logits in alive), "a piece is still held when the next one is computed"
            held.append(next(found))
            rows.append(len(held[0]))
            alive.append(weakref.ref(held[0]))
            yield held.pop()

    rows: list[int] = []
    monkeypatch.setattr(TorchModel, "pieces", watched)
    streams = send(service)
    service.engine.drain()
    check(service, streams)
    asked = sum(len(prompt) - 1 for prompt in service.reference.prompts)
    assert sum(rows) == asked + OUTPUTS * len(streams)
    drawing = replace(shape_of("llama", service.reference.config), hidden_size=0, intermediate_size=0)
    counted = activation_line(drawing, 512, plan.max_requests, 0, 1, is_accelerator=False).bytes
    assert max(rows) * 4 * service.runner.model.vocab_size <= counted


@pytest.mark.parametrize("name", MODELS)
def test_whoever_asks_about_its_prompt_computes_all_of_it(name: str) -> None:
    """Although the cache has it; and others go on finding it there, without waiting."""
    service = Service(name, plan_of(name, batch_tokens=64))
    send(service, Sampling(), "before ")
    service.engine.drain()
    streams, others = send(service), send(service, Sampling(logprobs=0), "beside ")
    service.engine.drain()
    check(service, streams)
    for stream, other in zip(streams, others, strict=True):
        (admitted,) = (e for e in service.engine.history.of(stream.request.name) if isinstance(e, RequestAdmitted))
        assert (admitted.hit_tokens, admitted.miss) == (0, Why.PROMPT_LOGPROBS)
        events = service.engine.history.of(other.request.name)
        (admitted,) = (event for event in events if isinstance(event, RequestAdmitted))
        assert admitted.hit_tokens == (len(other.request.prompt) - 1) // PAGE * PAGE
        assert not [event for event in events if (why := reason_of(event)) and why.code is Why.PREFIX]
        assert [one.value for one in other.logprobs.values()] == pytest.approx(
            [stream.logprobs[position].value for position in other.logprobs], abs=1e-4
        )
    for memory in service.engine.scheduler.memories:
        audit(memory, {})


@pytest.mark.parametrize("overlap", [1, 2])
def test_a_request_that_was_put_off_gives_the_same(overlap: int) -> None:
    """In the middle of its prompt, or of its output."""
    service = Service("gemma3_text", tight_plan("gemma3_text", more_sheets=1), overlap)
    service.engine.scheduler.admission.typical_output = 1.0
    streams = send(service)
    service.engine.drain()
    check(service, streams)
    assert service.engine.counters.events[RequestPreempted, Why.NEEDS_PAGES] > 0


def test_rows_that_guess_beside_them_change_nothing() -> None:
    """Who asks for log-probabilities does not guess; others sample at several places of the same step."""
    model = reference("llama")
    said = [np.append(prompt, tokens) for prompt, tokens in zip(model.prompts, model.tokens, strict=True)]
    plan = plan_of("llama", batch_tokens=64, max_requests=16, lookahead=3)
    service = Service("llama", plan, drafter=Reminded(said))
    guessing, streams = send(service, Sampling(), "guessing "), send(service)
    service.engine.drain()
    check(service, streams)
    assert [stream.tokens().tolist() for stream in guessing] == model.tokens
    assert not any(stream.logprobs for stream in guessing)
    assert service.engine.counters.sums[TokensDrafted, "accepted"] > 0


def test_they_are_the_models_own_whatever_was_done_to_the_logits() -> None:
    """Temperature, penalties and biases change tokens; a likely token is likely still."""
    service = Service("llama", plan_of("llama", batch_tokens=64))
    bent = Sampling(temperature=2.0, top_k=9, presence_penalty=1.0, logit_bias=((5, 9.0),), seed=1, logprobs=97)
    (stream,) = send(service, bent)[-1:]
    service.engine.drain()
    tokens = np.concatenate([stream.request.prompt, stream.tokens()]).astype(np.int64)
    with torch.inference_mode():
        logits = service.reference.model(input_ids=torch.from_numpy(tokens)[None], use_cache=False).logits[0].float()
    theirs = torch.log_softmax(logits, -1)
    for position, one in stream.logprobs.items():
        assert abs(one.value - float(theirs[position - 1, one.token])) < 1e-4
        assert dict(one.top)[one.token] == one.value
        assert one.top[one.rank - 1][1] == one.value
    assert {one.rank for one in stream.logprobs.values()} > {1}


def test_who_does_not_ask_gets_none_and_pays_nothing() -> None:
    service = Service("llama", plan_of("llama", batch_tokens=64))
    plain, asking = send(service, Sampling()), send(service, Sampling(logprobs=0), "asking ")
    service.engine.drain()
    assert not any(stream.logprobs for stream in plain)
    assert all(list(s.logprobs) == list(range(len(s.request.prompt), len(s.request.prompt) + OUTPUTS)) for s in asking)
    service = Service("llama", plan_of("llama", batch_tokens=64))
    send(service, Sampling())
    step = service.engine.scheduler.schedule()
    assert step is not None
    service.runner.launch(step)
    assert service.runner.collect().logprobs is None
