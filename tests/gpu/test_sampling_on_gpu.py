"""Rows that draw, are penalised, biased or kept from stopping: on a GPU no step waits for the device, and their tokens
are those of a CPU's sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.core.request import Request
from quire.core.sampling import Sampling
from quire.core.step import Step
from quire.engine.engine import Stream
from quire.worker.sampling.sampler import Sampler
from tiny_models import plan_of

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

from device_models import DeviceService

DRAWN = Sampling(temperature=1.0, top_p=0.9, seed=3)
WISHES = (
    DRAWN,
    Sampling(temperature=0.7, top_k=5, seed=4),
    Sampling(temperature=1.0, min_p=0.1, seed=5),
    Sampling(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.5),
    Sampling(logit_bias=((5, 3.0), (7, -2.0))),
    Sampling(min_tokens=6),
    replace(DRAWN, repetition_penalty=1.2, min_tokens=3, logit_bias=((9, 1.0),)),
    Sampling(),
)


class Hurried:
    """An engine whose launches may not wait for the device."""

    def __init__(self) -> None:
        self.service = DeviceService("llama", plan_of("llama", batch_tokens=64))
        self.launch, self.launches = self.service.runner.launch, 0

    def send(self, samplings: Sequence[Sampling], label: str = "") -> list[Stream]:
        prompts = zip(self.service.reference.prompts, samplings, strict=False)
        requests = [
            Request(f"{label}{place}", prompt, 10, sampling=sampling, stop_tokens=(2,))
            for place, (prompt, sampling) in enumerate(prompts)
        ]
        return [self.service.engine.submit(request) for request in requests]

    def checked(self, step: Step) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            self.launch(step)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        self.launches += 1


def test_no_launch_waits_whatever_rows_ask_of_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    hurried = Hurried()
    hurried.send(WISHES, "first")
    hurried.service.engine.drain()  # kernels are compiled, pinned memory is there
    monkeypatch.setattr(hurried.service.runner, "launch", hurried.checked)
    hurried.send(WISHES, "again")
    hurried.service.engine.drain()
    assert hurried.launches >= 10


@pytest.mark.story
def test_no_launch_waits_after_somebody_who_asked_for_logprobs_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    hurried = Hurried()
    hurried.send([*WISHES[:7], Sampling(logprobs=2)], "first")
    hurried.service.engine.drain()
    monkeypatch.setattr(hurried.service.runner, "launch", hurried.checked)
    hurried.send(WISHES[:1], "again")
    hurried.service.engine.drain()
    assert hurried.launches > 5


def test_a_launch_that_waits_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    hurried = Hurried()
    hurried.send(WISHES[:1], "first")
    hurried.service.engine.drain()
    monkeypatch.setattr(hurried.service.runner, "launch", hurried.checked)
    hurried.send([Sampling(logprobs=2)], "again")
    with pytest.raises(RuntimeError, match="synchroniz"):
        hurried.service.engine.drain()


def test_tokens_are_those_of_a_cpu() -> None:
    """The same logits, a vocabulary of many blocks. A draw lies a rounding error from the next token now and then."""
    rows, vocabulary, steps = len(WISHES), 5_000, 40
    logits = 3 * torch.randn(steps, rows, vocabulary, generator=torch.Generator().manual_seed(1))
    samplers = Sampler(rows, vocabulary), Sampler(rows, vocabulary, "cuda")
    for sampler in samplers:
        for row, sampling in enumerate(WISHES):
            sampler.enter(row, sampling, [1, 2, 3], stop_tokens=(2,))
    same = 0
    for position, step in enumerate(logits, 3):
        places = np.full(rows, position)
        own, other = (s.sample(step.to(s.device), np.arange(rows), places).cpu() for s in samplers)
        same += int((own == other).sum())
    assert same >= 0.99 * steps * rows
