"""Requests from beginning to end on this GPU, beside transformers' continuous batching, one run.

    python bench/batching.py [--requests 128] [--prompt 512] [--outputs 128] [--no-compile] [--json FILE]

The Llama-3.2-1B shape with random weights in bf16. All requests come at once and no two prompts are alike. Each side
first serves as many others, so that kernels are compiled and graphs recorded; then it is timed from the first request
in to the last token out. transformers runs with sdpa attention and CUDA graphs.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import triton
from transformers import ContinuousBatchingConfig, GenerationConfig

from measure import DEVICE, show
from quire.core.request import Request
from quire.engine.engine import Engine
from quire.plan.make import make_plan
from quire.plan.settings import Budget, Settings
from quire.worker.boot import boot, record
from quire.worker.meter import Meter
from random_models import config_of, model_of, shape_of

SHAPE = "Llama-3.2-1B"


def prompts_of(requests: int, tokens: int, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(3, 100_000, tokens).astype(np.int32) for _ in range(requests)]


def quire_engine(config: Any, options: argparse.Namespace) -> tuple[Engine, list[dict[str, object]]]:
    settings = Settings(
        max_length=options.prompt + options.outputs + 16, max_requests=options.requests, batch_tokens=8192
    )
    plan = make_plan(shape_of(config), settings, Budget(memory_bytes=torch.cuda.mem_get_info()[1])).require_fit()
    meter = Meter(DEVICE)
    runner = boot(plan, model_of(config, DEVICE), meter, is_compiled=not options.no_compile)
    engine = Engine(plan, runner)
    tables = tuple(tuple(table.view for table in memory.tables) for memory in engine.scheduler.memories)
    record(runner, meter, tables)
    lines = [
        {"line": m.name, "planned, MiB": m.planned_bytes >> 20, "measured, MiB": m.measured_bytes >> 20}
        for m in meter.lines(plan)
    ]
    return engine, lines


def quire_seconds(engine: Engine, prompts: list[np.ndarray], outputs: int, label: str) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    streams = [engine.submit(Request(f"{label}{place}", prompt, outputs)) for place, prompt in enumerate(prompts)]
    engine.drain()
    seconds = time.perf_counter() - begin
    assert all(len(stream.tokens()) == outputs for stream in streams), "every request yields all its tokens"
    return seconds


def peer_seconds(model: Any, runs: list[list[np.ndarray]], outputs: int) -> float:
    """Of the last run."""
    generation = GenerationConfig(max_new_tokens=outputs, do_sample=False, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(use_cuda_graph=True, auto_switch_to_flash=False)
    seconds = 0.0
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching
    ) as manager:
        for prompts in runs:
            torch.cuda.synchronize()
            begin, ended = time.perf_counter(), 0
            manager.add_requests(inputs=[prompt.tolist() for prompt in prompts], max_new_tokens=outputs)
            while ended < len(prompts):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    assert len(result.generated_tokens) == outputs, "every request yields all its tokens"
                    ended += 1
                elif result is None and not manager.is_running():
                    raise SystemExit("transformers' continuous batching stopped")
            seconds = time.perf_counter() - begin
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Requests from beginning to end on this GPU.")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of each prompt")
    parser.add_argument("--outputs", type=int, default=128, help="tokens that each request yields")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    parser.add_argument("--json", type=Path, help="write the tables there as well")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here: batching is timed on one")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, "
          f"transformers {transformers.__version__}, compiled: {not options.no_compile}", flush=True)  # fmt: skip
    config = config_of(SHAPE)
    runs = [prompts_of(options.requests, options.prompt, seed) for seed in range(3)]
    engine, ledger = quire_engine(config, options)
    show("ledger", ledger)
    times = [quire_seconds(engine, prompts, options.outputs, str(run)) for run, prompts in enumerate(runs)]
    print(f"Quire's runs, s: {', '.join(f'{seconds:.2f}' for seconds in times)}", flush=True)
    del engine
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    model = model_of(config, DEVICE)
    model.set_attn_implementation("sdpa")
    theirs = peer_seconds(model, runs[:2], options.outputs)
    total = options.requests * options.outputs
    table: list[dict[str, object]] = [
        {"engine": name, "seconds": round(seconds, 2), "output tokens/s": f"{total / seconds:,.0f}"}
        for name, seconds in (("transformers", theirs), ("Quire", times[-1]))
    ]
    show(f"{options.requests} requests, {options.prompt} in, {options.outputs} out", table)
    print(f"Quire is {theirs / times[-1]:.1f} times as fast")
    if options.json:
        options.json.write_text(json.dumps({"table": table, "ledger": ledger}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
