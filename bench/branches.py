"""Memory of branches: bytes that N branches of one prompt hold ÷ the bytes that they need exactly.

    python bench/branches.py [--model qwen3-next-80b-a3b] [--prompt 65536] [--branches 16] [--outputs 256] [--pool 6GiB]

Exact: the prompt once, one state and one copied page of each other kind for each branch, and what each has generated.
Held: pages that running requests hold, each once, with their part of the sheets' unused ends. What the cache keeps for
later requests is printed next to it: it is evicted when requests need it. The scheduler and the memory are the engine's
own; no model computes anything, so every machine prints the same. Exits with 1 if the goal, 1.03, is missed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import numpy as np

from quire.cache.memory import StageMemory
from quire.cache.pool import BY_REQUESTS
from quire.core.events import Event, RequestAdmitted
from quire.core.request import Request
from quire.core.step import Step, StepResult
from quire.core.units import format_bytes
from quire.engine.engine import Engine
from quire.kinds import Keeps
from quire.models.read import read_model
from quire.options.texts import parse_bytes
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings

GOAL = 1.03
MORE = 64
"""Tokens that each branch would generate after the measurement."""


@dataclass(frozen=True, slots=True)
class Branches:
    """What was measured when each branch had generated the tokens that were asked for."""

    held_bytes: float
    exact_bytes: float
    cached_bytes: float
    """Held by the cache alone."""
    running: int
    """Branches that ran at once then; the bytes are theirs."""
    computed_prompt_tokens: int
    """By all branches together."""

    @property
    def ratio(self) -> float:
        return self.held_bytes / self.exact_bytes


class Counting:
    """A runner that computes nothing: every sampled token is another one."""

    def __init__(self) -> None:
        self._results: list[StepResult] = []

    def launch(self, step: Step) -> None:
        count = int(step.samples.sum())
        self._results.append(StepResult(step.number, 7 + np.arange(count, dtype=np.int64) + step.number % 11))

    def collect(self) -> StepResult:
        return self._results.pop(0)


def measure(plan: Plan, prompt: int, branches: int, outputs: int) -> Branches:
    """Runs the branches, each of which would generate some tokens more."""
    hits: dict[str, int] = {}

    def note(event: Event) -> None:
        if isinstance(event, RequestAdmitted):
            hits.setdefault(event.request, event.hit_tokens)

    engine = Engine(plan, Counting(), listeners=[note])
    tokens = np.random.default_rng(0).integers(0, 30_000, prompt).astype(np.int32)
    streams = [engine.submit(Request(f"b{n}", tokens, outputs + MORE, is_branch=True)) for n in range(branches)]
    while min(len(stream.tokens()) for stream in streams) < outputs:
        engine.step()
    engine.settle()
    memories = engine.scheduler.memories
    running = engine.running()
    generated = sum(len(stream.tokens()) for stream in running)
    return Branches(
        sum(_bytes(memory, True) for memory in memories),
        _exact(plan, prompt, len(running), generated),
        sum(_bytes(memory, False) for memory in memories),
        len(running),
        branches * prompt - sum(hits.values()),
    )


def _bytes(memory: StageMemory, by_requests: bool) -> float:
    """Of pages that requests hold, or that the cache holds alone, each once, with their part of a sheet."""
    size = 0.0
    for shelf in memory.pool.shelves:
        used, theirs = shelf.holders > 0, (shelf.holders & BY_REQUESTS) > 0
        pages = int(np.count_nonzero(used & (theirs if by_requests else ~theirs)))
        size += pages * memory.stage.sheet_bytes / shelf.pages_per_sheet
    return size


def _exact(plan: Plan, prompt: int, branches: int, generated: int) -> float:
    size = 0.0
    for stage in plan.stages:
        for kind in stage.kinds:
            if kind.kind.keeps is Keeps.STATE:
                size += branches * kind.fixed_bytes
            else:
                size += (prompt + generated) * kind.token_bytes + branches * kind.groups * kind.page_bytes
    return size


def plan_of(model: str, prompt: int, branches: int, pool: Budget) -> Plan:
    length = prompt + 4096
    settings = Settings(max_length=length, max_requests=max(32, branches), batch_tokens=8192)
    return make_plan(read_model(model), settings, pool).require_fit()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-next-80b-a3b")
    parser.add_argument("--prompt", type=int, default=65_536)
    parser.add_argument("--branches", type=int, default=16)
    parser.add_argument("--outputs", type=int, default=256)
    parser.add_argument("--pool", default="6GiB", type=parse_bytes)
    asked = parser.parse_args(arguments)
    plan = plan_of(asked.model, asked.prompt, asked.branches, Budget(pool_bytes=asked.pool))
    found = measure(plan, asked.prompt, asked.branches, asked.outputs)
    print(f"{asked.branches} branches of {asked.prompt:,} tokens, {asked.outputs} generated by each, {asked.model}")
    print(f"  held   {format_bytes(int(found.held_bytes))}")
    print(f"  exact  {format_bytes(int(found.exact_bytes))}")
    print(f"  ratio  {found.ratio:.4f} (goal {GOAL})")
    print(f"  cache  {format_bytes(int(found.cached_bytes))} more, evicted when requests need it")
    print(f"  prompt tokens computed: {found.computed_prompt_tokens:,}; unshared: {asked.prompt * asked.branches:,}")
    if found.running < asked.branches:
        print(f"  {found.running} of them ran at once: a larger --pool holds them all")
    return 0 if found.ratio <= GOAL and found.running == asked.branches else 1


if __name__ == "__main__":
    sys.exit(main())
