"""Decode steps of the whole engine on this GPU, beside bare replays of the same step and the memory's limit.

    python bench/decode.py [--shapes NAME …] [--no-compile] [--json FILE]

Random weights. Scheduler, tables, uploads, model, sampling and results are the engine's own; prompts are not computed,
their pages hold random numbers. A step of the engine is the mean over many, in wall-clock time. The bare step is the
median of replays of its graph, half-way between. The floor is the time to read weights, keys and values (and to write
states) at the speed of a plain read. `simulated` is what `quire simulate` takes for the step on an H200.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

from kernels import read_words
from measure import DEVICE, microseconds, show
from quire.core.request import Request
from quire.core.step import Step, StepResult
from quire.core.units import MIB
from quire.engine.engine import Engine
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.simulate.cost import CostModel, cost_model
from quire.simulate.devices import speed_of
from quire.worker.boot import boot, record
from quire.worker.device_runner import DeviceRunner
from quire.worker.meter import Meter
from random_models import SHAPES, config_of, model_of, shape_of, weights_read

CASES: dict[str, tuple[tuple[int, int], ...]] = {
    "Llama-3.2-1B": ((256, 1_024),),
    "Llama-3.1-8B": ((128, 1_024), (256, 1_024)),
    "Gemma-3-12B": ((128, 4_096),),
    "Qwen3-Next, 16 layers": ((128, 4_096),),
}
"""Rows and tokens, by shape."""
STEPS = 48
"""Timed before the bare replays, and again after them."""
REPLAYS = 30
OVERHEAD_SECONDS = 1e-3
"""What `quire simulate` takes for a step, whatever it does."""


class Unprompted:
    """Plays decode steps and skips all others: what prompts would have written is not there."""

    def __init__(self, runner: DeviceRunner) -> None:
        self.runner = runner
        self.waited_seconds = 0.0

    def launch(self, step: Step) -> None:
        graphs = self.runner.graphs
        assert graphs is not None, self.runner.no_graphs_because
        if graphs.takes(step):
            self.runner.launch(step)
        else:
            self.runner.skip(step)

    def collect(self) -> StepResult:
        begin = time.perf_counter()
        result = self.runner.collect()
        self.waited_seconds += time.perf_counter() - begin
        return result


def read_bandwidth() -> float:
    """Bytes per microsecond."""
    words, size = torch.randint(1 << 30, (1 << 29,), dtype=torch.int32, device=DEVICE), 8_192
    sums = torch.empty(len(words) // size, dtype=torch.int32, device=DEVICE)
    return 4 * len(words) / microseconds(lambda: read_words[(len(sums),)](words, sums, size))


class Decoding:
    """A model that is booted once, and decodes as many rows of as many tokens as it is told."""

    def __init__(self, name: str, is_compiled: bool) -> None:
        config = config_of(name)
        rows, length = (max(numbers) for numbers in zip(*CASES[name], strict=True))
        settings = Settings(max_length=length + 4 * STEPS, max_requests=rows, batch_tokens=8192)
        budget = Budget(memory_bytes=torch.cuda.mem_get_info()[1], memory_fraction=0.95)
        self.shape = shape_of(config)
        self.plan = make_plan(self.shape, settings, budget).require_fit()
        self.model, meter = model_of(config, DEVICE), Meter(DEVICE)
        self.runner = boot(self.plan, self.model, meter, is_compiled=is_compiled)
        for part in self.runner.arena.bytes.view(torch.bfloat16).split(1 << 28):
            part.normal_()
        self.unprompted = Unprompted(self.runner)
        self.engine = Engine(self.plan, self.unprompted, overlap=2)
        self.engine.scheduler.typical_output = 1.0
        views = tuple(tuple(table.view for table in memory.tables) for memory in self.engine.scheduler.memories)
        record(self.runner, meter, views, [count for count, _ in CASES[name]])
        self.measured = meter.lines(self.plan)

    def fill(self, rows: int, length: int) -> None:
        """All rows decode; half-way through what is timed they have `length` tokens."""
        engine, random = self.engine, np.random.default_rng(0)
        for number in range(rows):
            prompt = random.integers(3, 10_000, length - STEPS - 12).astype(np.int32)
            engine.submit(Request(str(number), prompt, 3 * STEPS))
        while len(engine.running()) < rows or min(len(stream.tokens()) for stream in engine.running()) < 4:
            engine.step()

    def empty(self) -> None:
        self.engine.close()
        self.engine.drop_cache()


def timed(engine: Engine) -> float:
    """Microseconds of a step: from one result to the next, when steps overlap as they do in service."""
    for _ in range(4):
        engine.step()
    begin = time.perf_counter()
    for _ in range(STEPS):
        engine.step()
    return 1e6 * (time.perf_counter() - begin) / STEPS


def bare(runner: DeviceRunner) -> float:
    """Microseconds of the graph that was played last."""
    assert runner.graphs is not None
    events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(REPLAYS)]
    torch.cuda.synchronize()
    for begin, end in events:
        begin.record()
        runner.graphs.replay_last()
        end.record()
    torch.cuda.synchronize()
    return 1e3 * statistics.median(begin.elapsed_time(end) for begin, end in events)


def measure(decoding: Decoding, rows: int, length: int, bandwidth: float) -> dict[str, object]:
    decoding.fill(rows, length)
    before = timed(decoding.engine)
    replayed = bare(decoding.runner)
    waited = decoding.unprompted.waited_seconds
    after = timed(decoding.engine)
    took = (before + after) / 2
    python = after - 1e6 * (decoding.unprompted.waited_seconds - waited) / (STEPS + 4)
    decoding.empty()
    floor = floor_bytes(decoding, rows, length) / bandwidth
    return {
        "rows × tokens": f"{rows} × {length:,}",
        "engine, ms": round(took / 1e3, 2),
        "bare, ms": round(replayed / 1e3, 2),
        "bare ÷ engine": f"{replayed / took:.1%}",
        "floor, ms": round(floor / 1e3, 2),
        "floor ÷ engine": f"{floor / took:.1%}",
        "tokens/s": f"{rows / took * 1e6:,.0f}",
        "Python, ms": round(python / 1e3, 2),
        "simulated, ms": round(simulated(decoding, rows, length) * 1e3, 2),
    }


def ledger(decoding: Decoding) -> dict[str, object]:
    return {
        line.name: f"{line.planned_bytes / MIB:,.0f} → {line.measured_bytes / MIB:,.0f}" for line in decoding.measured
    }


def floor_bytes(decoding: Decoding, rows: int, length: int) -> float:
    """Weights, and what rows keep in memory: all of it is read, and states are written too."""
    (stage,) = costs(decoding).stages
    kept = sum(kind.read_bytes * float(kind.kind.units(np.full(rows, length)).sum()) for kind in stage.kinds)
    return weights_read(decoding.model, rows) + kept + rows * sum(kind.row_bytes for kind in stage.kinds)


def simulated(decoding: Decoding, rows: int, length: int) -> float:
    return costs(decoding).seconds(np.full(rows, length - 1), np.ones(rows, dtype=np.int64), rows)


def costs(decoding: Decoding) -> CostModel:
    config = decoding.model.config
    share = getattr(config, "num_experts_per_tok", 1) / getattr(config, "num_experts", 1)
    return cost_model(decoding.plan, decoding.shape, speed_of("h200", None, None), OVERHEAD_SECONDS, share)


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode steps of the whole engine on this GPU.")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES), help="these alone")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    parser.add_argument("--json", type=Path, help="write the table there as well")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here: decode steps are timed on one")
    bandwidth = read_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, "
          f"compiled: {not options.no_compile}; a plain read reaches {bandwidth / 1e6:.2f} TB/s")  # fmt: skip
    table: list[dict[str, Any]] = []
    ledgers: list[dict[str, Any]] = []
    for name in options.shapes:
        begin = time.perf_counter()
        decoding = Decoding(name, not options.no_compile)
        print(f"{name} started in {time.perf_counter() - begin:.0f} s", flush=True)
        ledgers.append({"shape": name, **ledger(decoding)})
        for rows, length in CASES[name]:
            table.append({"shape": name, **measure(decoding, rows, length, bandwidth)})
            print(table[-1], flush=True)
        del decoding
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
    show("decode step", table)
    show("the ledger in MiB, planned → measured", ledgers)
    if options.json:
        options.json.write_text(json.dumps({"steps": table, "ledgers": ledgers}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
