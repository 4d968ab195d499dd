"""Tokens per second on this CPU: Quire beside transformers, SmolLM2-135M in fp32, one run.

    python bench/cpu.py [--requests 16] [--prompt 128] [--outputs 64] [--rounds 2]

All produce the same number of tokens for the same random prompts, in fp32 with torch's own settings: transformers'
`generate` one request after another, a padded static batch, `generate_batch` with pages of its default size and of 64
tokens (its cache as large as Quire's pool, set up before the round that counts, nothing reused from round to round),
and Quire's engine. Rounds are interleaved; the best of each counts. Then the time to first token with a shared prefix:
the first request pays for it, the others find it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation import ContinuousBatchingConfig

from quire.core.request import Request
from quire.fetch.default import fetch_default
from quire.llm import LLM
from quire.plan.settings import Budget, Settings
from quire.worker.weights.expand import expand

POOL_BYTES = 2 << 30
POOL = Budget(pool_bytes=POOL_BYTES)
CONTINUOUS_PAGES = (ContinuousBatchingConfig().page_size, 64)


def prompts_of(count: int, length: int, shared: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    common = random.integers(100, 40_000, shared)
    return [np.append(common, random.integers(100, 40_000, length)).astype(np.int32) for _ in range(count)]


def peer_model(folder: Path) -> Any:
    """What the weights mean, in fp32."""
    with tempfile.TemporaryDirectory() as scratch:
        return AutoModelForCausalLM.from_pretrained(expand(folder, Path(scratch) / "plain")).eval()


def one_by_one(model: Any, prompts: list[np.ndarray], outputs: int) -> None:
    for prompt in prompts:
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=outputs, min_new_tokens=outputs,
                       do_sample=False, pad_token_id=0)  # fmt: skip


def static_batch(model: Any, prompts: list[np.ndarray], outputs: int) -> None:
    ids = torch.from_numpy(np.stack(prompts).astype(np.int64))
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=outputs, min_new_tokens=outputs,
                   do_sample=False, pad_token_id=0)  # fmt: skip


def continuous_batch(model: Any, prompts: list[np.ndarray], outputs: int, page_tokens: int) -> None:
    """The manager and its cache live on with the model, so that a second call does not pay for them."""
    text = model.config
    token_bytes = 4 * 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim
    found = model.generate_batch(
        [prompt.tolist() for prompt in prompts],
        generation_config=GenerationConfig(max_new_tokens=outputs, do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=page_tokens,
            num_blocks=POOL_BYTES // (token_bytes * page_tokens),
            allow_block_sharing=False,
        ),
        persistent_manager=True,
    )
    assert [len(one.generated_tokens) for one in found.values()] == [outputs] * len(prompts)


def continuous_ways(folder: Path, prompts: list[np.ndarray], outputs: int) -> dict[str, Callable[[int], None]]:
    """Each on a model of its own: a manager changes its model's attention."""
    models = {pages: peer_model(folder) for pages in CONTINUOUS_PAGES}
    return {
        f"transformers generate_batch, pages of {pages}": lambda _, pages=pages: continuous_batch(
            models[pages], prompts, outputs, pages
        )
        for pages in CONTINUOUS_PAGES
    }


def quire_batch(llm: LLM, prompts: list[np.ndarray], outputs: int, name: str) -> None:
    for i, prompt in enumerate(prompts):
        llm.engine.submit(Request(f"{name}-{i}", prompt, outputs, scope=name))
    llm.engine.drain()


def timed(action: Callable[[], None]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def first_tokens(llm: LLM, prompts: list[np.ndarray]) -> list[float]:
    """One after another: seconds until each one's first token."""
    seconds = []
    for i, prompt in enumerate(prompts):
        begin = time.perf_counter()
        stream = llm.engine.submit(Request(f"first-{i}", prompt, 1))
        while not stream.tokens().size:
            llm.engine.step()
        seconds.append(time.perf_counter() - begin)
        llm.engine.drain()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--outputs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    folder = fetch_default()
    model = peer_model(folder)
    llm = LLM(folder, settings=Settings(max_requests=options.requests, max_length=2048), budget=POOL)
    prompts = prompts_of(options.requests, options.prompt)
    ways: dict[str, Callable[[int], None]] = {
        "transformers generate, one by one": lambda _: one_by_one(model, prompts, options.outputs),
        "transformers generate, padded static batch": lambda _: static_batch(model, prompts, options.outputs),
        **continuous_ways(folder, prompts, options.outputs),
        "Quire": lambda turn: quire_batch(llm, prompts, options.outputs, f"round{turn}"),
    }
    best = dict.fromkeys(ways, float("inf"))
    for turn in range(options.rounds):
        for name, way in ways.items():
            best[name] = min(best[name], timed(lambda way=way, turn=turn: way(turn)))
            print(".", end="", file=sys.stderr, flush=True)
    tokens = options.requests * options.outputs
    print("\n| way | tokens/s | Quire ÷ it |\n| --- | --- | --- |")
    for name, seconds in best.items():
        print(f"| {name} | {tokens / seconds:.1f} | {seconds / best['Quire']:.2f}× |")
    seconds = first_tokens(llm, prompts_of(options.requests, 32, shared=1000))
    later = float(np.median(seconds[1:]))
    print(f"\nfirst token behind a shared prefix of 1,000 tokens: {seconds[0] * 1e3:.0f} ms for the first request, "
          f"{later * 1e3:.0f} ms for the others (median), {seconds[0] / later:.1f}×")  # fmt: skip


if __name__ == "__main__":
    main()
