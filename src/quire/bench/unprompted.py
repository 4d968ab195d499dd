"""Decode steps behind prompts that nobody computed: their pages hold random numbers."""

from __future__ import annotations

import time

import torch

from quire.core.dtypes import DType
from quire.core.step import Step, StepResult
from quire.worker.steps.runner import TorchRunner


class Unprompted:
    """Plays decode steps and skips all others: what prompts would have written is not there."""

    def __init__(self, runner: TorchRunner) -> None:
        self.runner = runner
        self.waited_seconds = 0.0
        self.rows: list[int] = []
        """Of each step since somebody last cleared it; 0: it was skipped."""

    def launch(self, step: Step) -> None:
        if step.drafts is None and step.tokens == len(step.rows) and bool(step.samples.all()):
            self.rows.append(len(step.rows))
            self.runner.launch(step)
        else:
            self.rows.append(0)
            self.runner.skip(step)

    def collect(self) -> StepResult:
        begin = time.perf_counter()
        result = self.runner.collect()
        self.waited_seconds += time.perf_counter() - begin
        return result


def spoil(arena: torch.Tensor, kv_dtype: DType) -> None:
    """Random numbers where prompts would have written. In 8 bits from 0.5 to 1.9: such bytes are small numbers in every
    other dtype as well, and never NaN."""
    if kv_dtype is DType.FP8:
        arena.random_(0x30, 0x40)
        return
    numbers = arena.view(torch.bfloat16 if arena.is_cuda else torch.float32)
    for part in torch.split(numbers, 1 << 28):
        part.normal_()
