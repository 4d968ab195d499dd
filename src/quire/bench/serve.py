"""Requests from beginning to end: all come at once, no two prompts are alike, prompts are computed.

Each run first serves as many others, so that kernels are compiled and graphs recorded; then it is timed from the first
request in to the last token out. The engine alone: HTTP and text are left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.bench.random_engine import RandomEngine, build_random
from quire.bench.random_models import config_of
from quire.bench.report import Report, Table, Tell, about
from quire.core.dtypes import DType
from quire.core.request import Request, Tokens
from quire.engine.engine import Engine
from quire.options.run import RunOptions
from quire.plan.settings import Settings

MODELS = {"cuda": "llama-3.2-1b", "cpu": "smollm2-135m"}
"""Where nobody says which, by device."""
SMALLEST_TOKEN = 3


@dataclass(frozen=True, slots=True)
class Load:
    requests: int
    prompt_tokens: int
    output_tokens: int


LOADS = {"cuda": Load(128, 512, 128), "cpu": Load(4, 32, 16)}


@dataclass(frozen=True, slots=True)
class Served:
    seconds: float
    firsts: tuple[float, ...]
    """Seconds to the first token of each request."""
    gaps: tuple[float, ...]
    """Seconds between tokens of each request, on average."""


def prompts_of(load: Load, vocabulary: int, seed: int) -> list[Tokens]:
    random = np.random.default_rng(seed)
    return [
        random.integers(SMALLEST_TOKEN, vocabulary, load.prompt_tokens).astype(np.int32) for _ in range(load.requests)
    ]


def serve(engine: Engine, prompts: Sequence[Tokens], output_tokens: int, label: str) -> Served:
    """All at once, until the last token of the last one."""
    begin = time.perf_counter()
    streams = [engine.submit(Request(f"{label}{place}", p, output_tokens)) for place, p in enumerate(prompts)]
    first, last = np.zeros(len(streams)), np.zeros(len(streams))
    waiting = dict(enumerate(streams))
    while waiting:
        engine.step()
        now = time.perf_counter() - begin
        for place in [place for place, stream in waiting.items() if len(stream.tokens())]:
            first[place] = first[place] or now
            if len(waiting[place].tokens()) == output_tokens:
                last[place] = now
                del waiting[place]
    gaps = (last - first) / max(1, output_tokens - 1)
    return Served(float(last.max()), tuple(first.tolist()), tuple(gaps.tolist()))


def build_for(config: Any, load: Load, options: RunOptions, kv_dtype: DType = DType.BF16) -> RandomEngine:
    length = load.prompt_tokens + load.output_tokens + 16
    settings = Settings(max_length=length, max_requests=load.requests, batch_tokens=8192, kv_dtype=kv_dtype)
    return build_random(config, settings, options)


def line_of(name: str, load: Load, served: Served) -> dict[str, object]:
    firsts, gaps = np.array(served.firsts), np.array(served.gaps)
    return {
        "shape": name,
        "requests": load.requests,
        "tokens in + out": f"{load.prompt_tokens:,} + {load.output_tokens:,}",
        "seconds": round(served.seconds, 2),
        "output tokens/s": f"{load.requests * load.output_tokens / served.seconds:,.0f}",
        "first token, ms, median": round(1e3 * float(np.median(firsts)), 1),
        "first token, ms, worst": round(1e3 * float(firsts.max()), 1),
        "between tokens, ms, median": round(1e3 * float(np.median(gaps)), 2),
    }


def run(
    model: str,
    load: Load,
    options: RunOptions,
    tell: Tell,
    *,
    layers: int | None = None,
    kv_dtype: DType = DType.BF16,
) -> Report:
    config = config_of(model, layers)
    tell(f"{model} starts")
    built = build_for(config, load, options, kv_dtype)
    tell(built.steps)
    table: Table = []
    for turn in ("warm", "timed"):
        tell(f"{load.requests} requests, {turn}")
        prompts = prompts_of(load, config.vocab_size, len(turn))
        table = [line_of(model, load, serve(built.engine, prompts, load.output_tokens, turn))]
    return Report(about(options.device, compiled=options.compile), {"requests": table})
