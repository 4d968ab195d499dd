"""Requests from beginning to end on this GPU, beside transformers' continuous batching, one run.

    python bench/batching.py [--requests 128] [--prompt 512] [--outputs 128] [--no-compile] [--json FILE]

Quire's side is `quire bench serve`: the Llama-3.2-1B shape with random weights in bf16. Each side first serves as many
others, so that kernels are compiled and graphs recorded; then it is timed from the first request in to the last token
out. transformers runs with sdpa attention and CUDA graphs.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from quire.bench.decode import forget, ledger
from quire.bench.random_models import config_of, model_of
from quire.bench.report import Report, about
from quire.bench.serve import Load, build_for, prompts_of, serve
from quire.options.run import RunOptions

SHAPE = "llama-3.2-1b"
VOCABULARY = 100_000


def quire_seconds(
    load: Load, runs: list[list[np.ndarray]], options: RunOptions
) -> tuple[list[float], dict[str, object]]:
    """Of each run; and the ledger."""
    built = build_for(config_of(SHAPE), load, options)
    seconds = []
    for number, prompts in enumerate(runs):
        torch.cuda.synchronize()
        seconds.append(serve(built.engine, prompts, load.output_tokens, str(number)).seconds)
    return seconds, ledger(built)


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
    load = Load(options.requests, options.prompt, options.outputs)
    runs = [prompts_of(load, VOCABULARY, seed) for seed in range(3)]
    times, lines = quire_seconds(load, runs, RunOptions(device="cuda", compile=not options.no_compile))
    print(f"Quire's runs, s: {', '.join(f'{seconds:.2f}' for seconds in times)}", flush=True)
    forget()
    model = model_of(config_of(SHAPE), torch.device("cuda"))
    model.set_attn_implementation("sdpa")
    theirs = peer_seconds(model, runs[:2], options.outputs)
    total = options.requests * options.outputs
    table: list[dict[str, object]] = [
        {"engine": name, "seconds": round(seconds, 2), "output tokens/s": f"{total / seconds:,.0f}"}
        for name, seconds in (("transformers", theirs), ("Quire", times[-1]))
    ]
    title = f"{options.requests} requests, {options.prompt} in, {options.outputs} out"
    report = Report(about("cuda", compiled=not options.no_compile), {title: table, "ledger in MiB": [lines]})
    print(report.text())
    print(f"Quire is {theirs / times[-1]:.1f} times as fast")
    if options.json:
        options.json.write_text(report.json())


if __name__ == "__main__":
    main()
