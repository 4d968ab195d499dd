"""The cost of Python per step: Quire's engine loop beside vLLM 0.32.0's scheduler, interleaved in one run on one core.

    python bench/control.py [--rounds 3] [--without-peer]

The workload: N requests of 1,536 + (i mod 16) tokens, all prefilled, then decode steps in which every request gets one
token. Quire runs its whole loop (schedule, launch, collect, apply, stop checks, streams, prefix keys). The model's
output is made outside the timing, and what a boot leaves is frozen for the garbage collector, on either side as in
either one's server. A run's figure is the mean of its timed steps; the best of as many runs counts on either side,
because timings on shared machines vary by half.

Prefill: eight requests are alive, another comes (8,192 tokens that nobody has seen) and gets its first token, the
oldest is cancelled; in chunks of 2,048 tokens for Gemma-3-like layers, in one for full attention. Either side runs its
whole loop. "manager" sets the same work of Quire's whole loop beside vLLM's block manager alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quire.core.request import Request
from quire.core.step import Step, StepResult
from quire.engine.engine import Engine
from quire.kinds import counts
from quire.models.shapefile import shape_from_json
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings
from quire.scheduler.queue import Ticket

LAYOUTS = {
    "full": [{"count": 32, "kind": "full", "kv_heads": 1, "head_dim": 16}],
    "gemma3": [
        {"count": 52, "kind": "window", "window": 1024, "kv_heads": 1, "head_dim": 16},
        {"count": 10, "kind": "full", "kv_heads": 1, "head_dim": 16},
    ],
}
"""Layers as in Llama-3.1-8B and Gemma-3-27B; narrow heads, so that the pool can be addressed. No bytes are touched."""
PREFILL_PROMPT = 8192
CHUNK = {"full": PREFILL_PROMPT, "gemma3": 2048}
"""Tokens of a prompt that one step computes, on either side."""


@dataclass(frozen=True)
class Race:
    workload: str
    layout: str
    requests: int
    unit: int
    goal: float | None


RACES = (
    Race("decode", "full", 1024, 64, 15),
    Race("decode", "gemma3", 1024, 64, 25),
    Race("decode", "full", 64, 64, 4),
    Race("decode", "gemma3", 64, 64, 4),
    Race("prefill", "full", 8, 16, 2.5),
    Race("prefill", "full", 8, 64, 4),
    Race("prefill", "gemma3", 8, 16, 6),
    Race("prefill", "gemma3", 8, 64, 10),
    Race("manager", "full", 8, 16, None),
    Race("manager", "full", 8, 64, None),
    Race("manager", "gemma3", 8, 16, None),
    Race("manager", "gemma3", 8, 64, None),
    Race("lookup", "full", 1, 16, 6),
    Race("lookup", "full", 1, 64, 10),
)


class ConstantRunner:
    """Every row yields the same token."""

    def __init__(self) -> None:
        self.flying: list[Step] = []
        self.seconds = 0.0
        """Spent on making results: the model's time, not the loop's."""

    def launch(self, step: Step) -> None:
        self.flying.append(step)

    def collect(self) -> StepResult:
        begin = time.perf_counter()
        step = self.flying.pop(0)
        result = StepResult(step.number, np.full(int(step.samples.sum()), 7, dtype=np.int64))
        self.seconds += time.perf_counter() - begin
        return result


class Watch:
    """Milliseconds since it was made, less what the model took meanwhile."""

    def __init__(self, runner: ConstantRunner) -> None:
        self._runner = runner
        self._begin = time.perf_counter() - runner.seconds

    def read(self) -> float:
        return 1e3 * (time.perf_counter() - self._runner.seconds - self._begin)


@dataclass(frozen=True)
class Figure:
    workload: str
    layout: str
    requests: int
    mean_ms: float
    """Over the timed steps of one run, on both sides: steps that cross a page or a unit cost more than others."""


def plan_for(layout: str, requests: int, unit: int, length: int, batch_tokens: int = 16_384) -> Plan:
    """A pool that just holds so many requests of that length."""
    shape = shape_from_json({"quire_shape": 1, "name": layout, "max_length": 131_072, "layers": LAYOUTS[layout]})
    settings = Settings(max_requests=requests, batch_tokens=batch_tokens, max_length=length, match_unit_tokens=unit)
    stage = make_plan(shape, settings, Budget(pool_bytes=400 << 30)).stages[0]
    pages = [counts(requests * each) for each in bound.resident(stage.kinds, length, 0)]
    sheets = int(bound.sheets_needed(stage.kinds, pages)) + bound.peak(stage.kinds, length, batch_tokens, 0)
    return make_plan(shape, settings, Budget(sheets=(sheets,)))


def booted(plan: Plan, runner: ConstantRunner) -> Engine:
    engine = Engine(plan, runner, overlap=1)
    engine.scheduler.admission.typical_output = 1.0
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return engine


def ready_engine(layout: str, requests: int, prompt: int, unit: int, runner: ConstantRunner) -> Engine:
    """All requests prefilled and decoding."""
    engine = booted(plan_for(layout, requests, unit, prompt + 12_016), runner)
    random = np.random.default_rng(0)
    for i in range(requests):
        tokens = random.integers(0, 30_000, prompt + i % 16).astype(np.int32)
        engine.submit(Request(f"r{i}", tokens, 12_000, stop_tokens=(2,)))
    state = engine.scheduler.rows
    while len(engine.scheduler.queue) or (state.known - state.computed)[engine.scheduler.running.order()].max() > 1:
        engine.step()
    assert len(engine.scheduler.running.tickets) == requests
    return engine


def decode(
    layout: str, requests: int, prompt: int = 1536, unit: int = 64, steps: int = 320, warmup: int = 32
) -> Figure:
    runner = ConstantRunner()
    engine = ready_engine(layout, requests, prompt, unit, runner)
    times = []
    for step in range(warmup + steps):
        watch = Watch(runner)
        engine.step()
        if step >= warmup:
            times.append(watch.read())
    return Figure("decode", layout, requests, float(np.mean(times)))


def prefill(layout: str, requests: int = 8, unit: int = 64, steps: int = 320, warmup: int = 32) -> Figure:
    """Construct and hash a request, look it up (a miss), allocate it in chunks, free the oldest: ms for one of them."""
    plan = plan_for(layout, requests + 1, unit, PREFILL_PROMPT + 4096, CHUNK[layout] + requests)
    runner = ConstantRunner()
    engine = booted(plan, runner)
    random = np.random.default_rng(0)
    prompts = [random.integers(0, 128_000, PREFILL_PROMPT).astype(np.int32) for _ in range(requests + warmup + steps)]
    times = []
    for i, tokens in enumerate(prompts):
        watch = Watch(runner)
        stream = engine.submit(Request(f"r{i}", tokens, 1024))
        while not len(stream.tokens()):
            engine.step()
        if i >= requests:
            engine.cancel(f"r{i - requests}")
            times.append(watch.read())
    return Figure("prefill", layout, requests, float(np.mean(times[warmup:])))


def lookup(layout: str, unit: int = 64, prompt: int = 32_768, rounds: int = 64) -> Figure:
    """Find a prompt that the cache holds, its keys known: ms."""
    engine = booted(plan_for(layout, 2, unit, prompt + 4096), ConstantRunner())
    tokens = np.random.default_rng(0).integers(0, 128_000, prompt).astype(np.int32)
    engine.submit(Request("first", tokens, 1))
    engine.drain()
    waiting = Ticket(Request("again", tokens, 1), 1, (0, 1))
    reuse = engine.scheduler.reuse
    reuse.name(waiting)
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        hit = reuse.index.find(waiting.keys, waiting.root, tokens)
        times.append(1e3 * (time.perf_counter() - begin))
        assert hit.tokens == (prompt - 1) // reuse.index.unit * reuse.index.unit
    return Figure("lookup", layout, 1, float(np.mean(times)))


def peer(python: Path, workload: str, layout: str, requests: int) -> Figure:
    command = [str(python), "-P", str(Path(__file__).with_name("peer_control.py")), "--workload", workload]
    command += ["--layout", layout, "--requests", str(requests), "--repeat", "1"]
    environment = {**os.environ, "VLLM_TARGET_DEVICE": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    line = json.loads(done.stdout.strip().splitlines()[-1])
    return Figure(workload, layout, requests, line["best_ms"])


def run(race: Race) -> Figure:
    if race.workload == "decode":
        return decode(race.layout, race.requests, unit=race.unit)
    if race.workload == "lookup":
        return lookup(race.layout, race.unit)
    return prefill(race.layout, race.requests, race.unit)


def best(figures: list[Figure]) -> Figure:
    return min(figures, key=lambda figure: figure.mean_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; the best of each side counts")
    parser.add_argument("--without-peer", action="store_true", help="Quire alone, without installing anything")
    parser.add_argument("--only", choices=("decode", "prefill", "manager", "lookup"), help="one workload")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    python = None
    if not options.without_peer:
        from peer_environment import peer_python

        python = peer_python()
    print("| workload | layers | requests | match unit | Quire, ms | vLLM 0.32.0, ms | vLLM ÷ Quire | goal |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for race in RACES:
        if options.only and race.workload != options.only:
            continue
        ours, theirs = [], []
        for _ in range(options.rounds):
            ours.append(run(race))
            if python is not None:
                theirs.append(peer(python, race.workload, race.layout, race.requests))
            print(".", end="", file=sys.stderr, flush=True)
        mine = best(ours).mean_ms
        other = f"{best(theirs).mean_ms:.2f} | {best(theirs).mean_ms / mine:.1f}×" if theirs else "– | –"
        head = f"| {race.workload} | {race.layout} | {race.requests:,} | {race.unit} | {mine:.3f}"
        goal = f"≥ {race.goal}×" if race.goal else "–"
        print(f"{head} | {other} | {goal} |", flush=True)
    if options.only not in (None, "decode"):
        return
    for length in (1_024, 100_000):
        figure = decode("full", 1024, prompt=length)
        print(f"| decode at {length:,} tokens | full | 1,024 | 64 | {figure.mean_ms:.3f} | – | – | – |", flush=True)


if __name__ == "__main__":
    main()
