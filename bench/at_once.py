"""How many requests decode at once in one pool, with keys and values in 16 and in 8 bits, beside vLLM.

    python bench/at_once.py [--model gemma-3-27b] [--length 8192] [--pool 64GiB] [--outputs 160] [--no-peer]

On a GPU the model is there with random weights and the pool with all its bytes: decode steps are computed, prompts are
not. Elsewhere the engine keeps its books and nobody computes; the numbers are the same. Twice as many requests come as
the plan holds; the figure is the most rows of a step in which all decode. All of them end, and the books balance.
The peer: what vLLM 0.32.0's planner promises for the same bytes, and what its scheduler runs of the same requests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from quire.bench.decode import forget
from quire.bench.random_engine import build_random
from quire.bench.random_models import config_of, shape_of
from quire.bench.report import Report, about
from quire.bench.unprompted import Unprompted, spoil
from quire.cache.audit import audit
from quire.core.dtypes import DType
from quire.core.events import RequestPreempted
from quire.core.request import Request
from quire.core.step import Step, StepResult
from quire.core.units import GIB, format_bytes
from quire.engine.engine import Engine
from quire.options.run import RunOptions
from quire.options.texts import parse_bytes
from quire.plan import bound
from quire.plan.make import make_plan
from quire.plan.plan import Plan
from quire.plan.settings import Budget, Settings

DTYPES = (DType.BF16, DType.FP8)
MOST_REQUESTS = 256
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class Asked:
    model: str
    length: int
    pool_bytes: int
    outputs: int
    """Of each request's length: enough that all have begun before the first one ends."""

    def settings(self, dtype: DType) -> Settings:
        return Settings(max_length=self.length, max_requests=MOST_REQUESTS, batch_tokens=BATCH_TOKENS, kv_dtype=dtype)


@dataclass(frozen=True)
class Found:
    planned: int
    beside_a_chunk: int
    at_once: int
    preempted: int
    seconds: float


class BooksAlone:
    """A runner that computes nothing."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque()
        self.rows: list[int] = []

    def launch(self, step: Step) -> None:
        if step.tokens == len(step.rows) and bool(step.samples.all()):
            self.rows.append(len(step.rows))
        self._steps.append(step)

    def collect(self) -> StepResult:
        step = self._steps.popleft()
        return StepResult(step.number, np.zeros(int(step.samples.sum()), dtype=np.int64))


def on_paper(asked: Asked, dtype: DType) -> Found:
    shape = shape_of(config_of(asked.model))
    plan = make_plan(shape, asked.settings(dtype), Budget(pool_bytes=asked.pool_bytes)).require_fit()
    runner = BooksAlone()
    return count(asked, plan, Engine(plan, runner), runner)


def on_gpu(asked: Asked, dtype: DType) -> Found:
    shape = shape_of(config_of(asked.model))
    held = bound.concurrency(make_plan(shape, asked.settings(dtype), Budget(pool_bytes=asked.pool_bytes)), asked.length)
    rows = min(MOST_REQUESTS, held + held // 8)
    options, config = RunOptions(device="cuda"), config_of(asked.model)
    size = {"pool_bytes": asked.pool_bytes, "counts": (rows,)}
    built = build_random(config, asked.settings(dtype), options, wrap=Unprompted, **size)
    spoil(built.runner.arena.bytes, dtype)
    assert isinstance(built.engine.runner, Unprompted)
    return count(asked, built.plan, built.engine, built.engine.runner)


def count(asked: Asked, plan: Plan, engine: Engine, runner: BooksAlone | Unprompted) -> Found:
    planned, beside = (bound.concurrency(plan, asked.length, with_prefill=chunk) for chunk in (False, True))
    engine.scheduler.admission.typical_output = 1.0  # all run to their end, as the engine would learn
    random, begin = np.random.default_rng(0), time.perf_counter()
    streams = [
        engine.submit(Request(str(number), random.integers(3, 10_000, asked.length - asked.outputs), asked.outputs))
        for number in range(2 * planned)
    ]
    engine.drain()
    if any(len(stream.tokens()) != asked.outputs for stream in streams):
        raise SystemExit("a request ended before its time")
    for memory in engine.scheduler.memories:
        audit(memory, {})
    preempted = sum(number for (what, _), number in engine.counters.events.items() if what is RequestPreempted)
    return Found(planned, beside, max(runner.rows), preempted, time.perf_counter() - begin)


def peer(asked: Asked, dtype: DType, requests: int) -> dict[str, float]:
    """Of models whose layers all have as many keys, and are full or have one window."""
    from peer_environment import peer_python

    config = config_of(asked.model)
    windows = sum(kind == "sliding_attention" for kind in getattr(config, "layer_types", None) or ())
    given = {
        "full": config.num_hidden_layers - windows,
        "windows": windows,
        "window": getattr(config, "sliding_window", None) or 1,
        "heads": config.num_key_value_heads,
        "width": config.head_dim,
        "length": asked.length,
        "outputs": asked.outputs,
        "pool": asked.pool_bytes,
        "number-bytes": dtype.bytes,
        "requests": requests,
    }
    script = Path(__file__).with_name("peer_at_once.py")
    command = [str(peer_python()), str(script), *(f"--{name}={value}" for name, value in given.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def line_of(asked: Asked, dtype: DType, first: Found | None, with_peer: bool) -> tuple[Found, dict[str, object]]:
    found = (on_gpu if torch.cuda.is_available() else on_paper)(asked, dtype)
    first = first or found
    line: dict[str, object] = {
        "keys and values": dtype.value,
        "plan": found.planned,
        "plan, with a chunk": found.beside_a_chunk,
        "engine": found.at_once,
        "gain: plan": f"{found.planned / first.planned:.3f}×",
        "gain: engine": f"{found.at_once / first.at_once:.3f}×",
        "preempted": found.preempted,
        "seconds": round(found.seconds, 1),
    }
    if with_peer:
        theirs = peer(asked, dtype, 2 * found.planned)
        line |= {"vLLM 0.32.0: planner": int(theirs["promised"]), "vLLM 0.32.0: scheduler": theirs["at_once"]}
        line["engine ÷ vLLM's scheduler"] = f"{found.at_once / theirs['at_once']:.2f}×"
    return found, line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma-3-27b", help="a shape of the catalogue")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--pool", type=parse_bytes, default=64 * GIB)
    parser.add_argument("--outputs", type=int, default=160, help="tokens of each request's length")
    parser.add_argument("--no-peer", action="store_true", help="leave out vLLM")
    parser.add_argument("--json", type=Path, help="write the table there as well")
    options = parser.parse_args()
    asked = Asked(options.model, options.length, options.pool, options.outputs)
    first, table = None, []
    for dtype in DTYPES:
        print(f"{asked.model} with keys and values in {dtype.value}", file=sys.stderr, flush=True)
        found, line = line_of(asked, dtype, first, not options.no_peer)
        first = first or found
        table.append(line)
        forget()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    title = f"requests of {asked.length:,} tokens decoding at once, {asked.model} in {format_bytes(asked.pool_bytes)}"
    report = Report(about(device, computed=device == "cuda"), {title: table})
    print(report.text())
    if options.json:
        options.json.write_text(report.json())


if __name__ == "__main__":
    main()
