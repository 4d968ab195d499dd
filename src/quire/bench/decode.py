"""Decode steps of the whole engine, beside bare replays of the same step and the memory's limit.

Random weights. Scheduler, tables, uploads, model, sampling and results are the engine's own; prompts are not computed,
their pages hold random numbers. A step of the engine is the mean over many, in wall-clock time. The bare step is the
median of replays of its graph, half-way between. Before each of them the GPU works for a second: steps of a load that
begins were seen to take up to 14 % longer for some 0.4 seconds. The floor is the time to read weights, and what rows
hold half-way (and to write states), at the speed of a plain read; on a GPU once more at that of torch's sum, which is
slower. `simulated` is what `quire simulate` takes for the step on such a device.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from quire.bench.random_engine import RandomEngine, build_random
from quire.bench.random_models import config_of
from quire.bench.report import Report, Table, Tell, about
from quire.bench.unprompted import Unprompted, spoil
from quire.core.dtypes import DType
from quire.core.errors import InputError
from quire.core.request import Request
from quire.core.sampling import Sampling
from quire.core.units import MIB, ceil_div
from quire.options.run import RunOptions
from quire.plan import bound
from quire.plan.plan import Plan
from quire.plan.settings import Settings
from quire.simulate.cost import CostModel, cost_model
from quire.simulate.devices import DATASHEETS, speed_of
from quire.worker.pages.arena import Arena
from quire.worker.pages.staging import Staging
from quire.worker.steps.graphs import DecodeGraphs
from quire.worker.steps.runner import TorchRunner


@dataclass(frozen=True, slots=True)
class Case:
    """A model of the catalogue, and how many rows of how many tokens decode."""

    model: str
    sizes: tuple[tuple[int, int], ...]
    layers: int | None = None

    @property
    def name(self) -> str:
        return self.model if self.layers is None else f"{self.model}, {self.layers} layers"

    def check(self, steps: int) -> None:
        """The model must be known; rows must have begun before the steps that are timed."""
        config_of(self.model, self.layers)
        shortest = min(length for _, length in self.sizes)
        if shortest <= steps + LEAD_TOKENS:
            raise InputError(
                f"--length {shortest} is too short for {steps} steps: give at least {steps + LEAD_TOKENS + 1}, or "
                "fewer --steps"
            )


CASES: dict[str, tuple[Case, ...]] = {
    "cuda": (
        Case("llama-3.2-1b", ((256, 1_024),)),
        Case("llama-3.1-8b", ((128, 1_024), (256, 1_024))),
        Case("gemma-3-12b", ((128, 4_096),)),
        Case("qwen3-next-80b-a3b", ((128, 4_096),), layers=16),
    ),
    "cpu": (Case("smollm2-135m", ((4, 256),)),),
}
"""What is measured where nobody says what, by device."""
STEPS = 48
"""Timed before the bare replays, and again after them."""
LEAD_TOKENS = 8
"""Of each row, before the first step that is timed."""
WARM_STEPS = 4
"""Before each timing."""
STEPS_IN_FLIGHT = 2
"""Of an engine that nobody told otherwise."""
BATCH_TOKENS = 8192
REPLAYS = 30
SETTLING_SECONDS = 1.0
"""Of replays before each timing."""
GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per microsecond."""

    plain: float
    torch_sum: float

    def told(self) -> dict[str, str]:
        names = {"a plain read": self.plain, "torch's sum": self.torch_sum}
        return {name: f"{speed / 1e3:,.0f} GB/s" for name, speed in names.items()}


def read_bandwidth(device: str) -> Bandwidth:
    if device == "cuda":
        from quire.bench.kernels import read_bandwidth as on_gpu

        return Bandwidth(*on_gpu())
    words = torch.ones(1 << 26)
    took = []
    for _ in range(5):
        begin = time.perf_counter()
        words.sum()
        took.append(time.perf_counter() - begin)
    return Bandwidth(*[words.nbytes / min(took) / 1e6] * 2)


class Decoding:
    """A model that is built once, and decodes any number of rows of any length."""

    def __init__(
        self,
        case: Case,
        options: RunOptions,
        kv_dtype: DType,
        steps: int,
        *,
        sampling: Sampling = GREEDY,
        wrap: Callable[[TorchRunner], Unprompted] = Unprompted,
        staging: Callable[[Plan, Arena], Staging] | None = None,
    ) -> None:
        self.steps, self.batch_tokens = steps, max(BATCH_TOKENS, *(2 * rows for rows, _ in case.sizes))
        self.sampling = sampling
        settings = Settings(
            max_length=max(length + self.outputs(rows, length) for rows, length in case.sizes),
            max_requests=max(rows for rows, _ in case.sizes),
            batch_tokens=self.batch_tokens,
            kv_dtype=kv_dtype,
        )
        counts, config = [count for count, _ in case.sizes], config_of(case.model, case.layers)
        self.built = build_random(config, settings, options, counts=counts, wrap=wrap, staging=staging)
        self.engine = self.built.engine
        assert isinstance(self.engine.runner, Unprompted)
        self.unprompted = self.engine.runner
        self.engine.scheduler.admission.typical_output = 1.0
        spoil(self.built.runner.arena.bytes, kv_dtype)

    def outputs(self, rows: int, length: int) -> int:
        """Of each row: the first one in decodes while all others come, and until both timings are over."""
        return self.filling(rows, length) + LEAD_TOKENS + 2 * (self.steps + WARM_STEPS) + STEPS_IN_FLIGHT

    def filling(self, rows: int, length: int) -> int:
        """Steps until all prompts have come."""
        return ceil_div(rows * length, self.batch_tokens - rows)

    def fill(self, rows: int, length: int) -> None:
        """All rows decode, and have about `length` tokens half-way through what is timed."""
        random, outputs = np.random.default_rng(0), self.outputs(rows, length)
        self.prompts = self.prompt_lengths(rows, length)
        prompts = [random.integers(3, 10_000, tokens, dtype=np.int32) for tokens in self.prompts]
        self.streams = streams = [
            self.engine.submit(Request(str(number), prompt, outputs, sampling=self.sampling))
            for number, prompt in enumerate(prompts)
        ]
        most = 0
        while most < rows or min(len(stream.tokens()) for stream in streams) < 4:
            self.engine.step()
            most = max(most, len(self.engine.running()))
            if any(stream.ended for stream in streams):
                holds = bound.concurrency(self.built.plan, length)
                raise InputError(
                    f"{rows} rows of {length:,} tokens never decode at once: {most} were there when the first one "
                    f"ended, and the pool holds {holds}: lower --rows or --length"
                )

    def prompt_lengths(self, rows: int, length: int) -> np.ndarray:
        """Prompts of rows that come first are shorter: they decode while the others come."""
        before_last = self.filling(rows, length) * (rows - 1 - np.arange(rows)) // rows
        lengths: np.ndarray = np.maximum(1, length - self.steps - LEAD_TOKENS - before_last)
        return lengths

    def lengths(self) -> np.ndarray:
        """What rows hold now, in tokens."""
        held = zip(self.prompts.tolist(), self.streams, strict=True)
        return np.array([prompt + len(stream.tokens()) for prompt, stream in held])

    def timed(self, rows: int) -> float:
        """Microseconds of a step: from one result to the next, when steps overlap as they do in service. `waited`: of
        these, for the GPU."""
        settle(self.built.runner)
        self.unprompted.rows.clear()
        for _ in range(WARM_STEPS):
            self.engine.step()
        waited, begin = self.unprompted.waited_seconds, time.perf_counter()
        for _ in range(self.steps):
            self.engine.step()
        took = time.perf_counter() - begin
        self.waited = 1e6 * (self.unprompted.waited_seconds - waited) / self.steps
        idle_steps = WARM_STEPS + self.steps - len(self.unprompted.rows)
        fewest = 0 if idle_steps else min(self.unprompted.rows)
        if fewest < rows:
            raise InputError(
                f"not all of {rows} rows decoded in every step that was timed, but {fewest} in one: lower --rows or "
                "--length"
            )
        return 1e6 * took / self.steps

    def empty(self) -> None:
        self.engine.close()
        self.engine.drop_cache()


def settle(runner: TorchRunner) -> None:
    """Replays of the graph that was played last, which the GPU is still at when this returns: whatever is timed next
    follows without a pause. Nothing where nothing is recorded."""
    graphs = getattr(runner, "graphs", None)
    if graphs is not None:
        one = statistics.median(replays(graphs, 3))
        for _ in range(math.ceil(1e6 * SETTLING_SECONDS / one)):
            graphs.replay_last()


def bare(runner: TorchRunner) -> float | None:
    """Microseconds of the graph that was played last; none where nothing is recorded."""
    graphs = getattr(runner, "graphs", None)
    if graphs is None:
        return None
    settle(runner)
    return float(statistics.median(replays(graphs, REPLAYS)))


def replays(graphs: DecodeGraphs, count: int) -> list[float]:
    """Microseconds of each."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]  # type: ignore[no-untyped-call]
    for begin, end in events:
        begin.record()
        graphs.replay_last()
        end.record()
    torch.cuda.synchronize()
    return [1e3 * begin.elapsed_time(end) for begin, end in events]


def measure(decoding: Decoding, rows: int, length: int, bandwidth: Bandwidth, device: str) -> dict[str, object]:
    decoding.fill(rows, length)
    before = decoding.timed(rows)
    replayed, lengths = bare(decoding.built.runner), decoding.lengths()
    after = decoding.timed(rows)
    took, python = (before + after) / 2, after - decoding.waited
    decoding.empty()
    read = floor_bytes(decoding.built, lengths)
    floor = read / bandwidth.plain
    line: dict[str, object] = {"rows × tokens": f"{rows} × {length:,}", "engine, ms": round(took / 1e3, 2)}
    if replayed is not None:
        line |= {"bare, ms": round(replayed / 1e3, 2), "bare ÷ engine": f"{replayed / took:.1%}"}
    line |= {"floor, ms": round(floor / 1e3, 2), "floor ÷ engine": f"{floor / took:.1%}"}
    if device == "cuda":
        line["the same at torch's speed"] = f"{read / bandwidth.torch_sum / took:.1%}"
    line["tokens/s"] = f"{rows / took * 1e6:,.0f}"
    if device == "cuda":  # a CPU computes while Python waits, so nothing is left to tell apart
        line["Python, ms"] = round(python / 1e3, 2)
    seconds = simulated(decoding.built, lengths, device)
    return line if seconds is None else {**line, "simulated, ms": round(seconds * 1e3, 2)}


def floor_bytes(built: RandomEngine, lengths: np.ndarray) -> float:
    """Weights, and what rows keep in memory: all of it is read, and states are written too."""
    rows = len(lengths)
    (stage,) = costs(built, "h200").stages  # bytes are the same on every device
    kept = sum(kind.read_bytes * float(kind.kind.units(lengths).sum()) for kind in stage.kinds)
    return built.weights.read(rows) + kept + rows * sum(kind.row_bytes for kind in stage.kinds)


def simulated(built: RandomEngine, lengths: np.ndarray, device: str) -> float | None:
    """Seconds; none where nobody knows how fast the device is."""
    name = torch.cuda.get_device_name().lower().replace(" ", "-") if device == "cuda" else ""
    known = sorted((one for one in DATASHEETS if one in name), key=len)
    if not known:
        return None
    return costs(built, known[-1]).seconds(lengths - 1, np.ones_like(lengths), len(lengths))


def costs(built: RandomEngine, device: str) -> CostModel:
    return cost_model(built.plan, built.shape, speed_of(device, None, None))


def ledger(built: RandomEngine) -> dict[str, object]:
    measured = built.report.measured
    return {line.name: f"{line.planned_bytes / MIB:,.0f} → {line.measured_bytes / MIB:,.0f}" for line in measured}


def forget() -> None:
    """What a model left behind that nobody holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def run(
    cases: Sequence[Case],
    options: RunOptions,
    tell: Tell,
    *,
    kv_dtype: DType = DType.BF16,
    steps: int = STEPS,
    sampling: Sampling = GREEDY,
) -> Report:
    for case in cases:
        case.check(steps)
    bandwidth = read_bandwidth(options.device)
    table: Table = []
    ledgers: Table = []
    for case in cases:
        tell(f"{case.name} starts")
        decoding = Decoding(case, options, kv_dtype, steps, sampling=sampling)
        tell(decoding.built.steps)
        if decoding.built.report.measured:
            ledgers.append({"shape": case.name, **ledger(decoding.built)})
        for rows, length in case.sizes:
            tell(f"{case.name}: {rows} rows of {length:,} tokens")
            table.append({"shape": case.name, **measure(decoding, rows, length, bandwidth, options.device)})
            tell("; ".join(f"{name} {value}" for name, value in table[-1].items()))
        del decoding
        forget()
    compiled = options.compile or options.deterministic
    drawn = {"temperature": sampling.temperature, "top_p": sampling.top_p} if sampling.temperature else {}
    known = about(options.device, compiled=compiled, deterministic=options.deterministic, **drawn, **bandwidth.told())
    return Report(known, {"decode step": table, "the ledger in MiB, planned → measured": ledgers})
