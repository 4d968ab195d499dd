"""A model on pipeline stages, which work on different steps at once, compared with one step in flight at a time.

python bench/stages.py                     two stages with one thread each, in turn, five times
python bench/stages.py --stages 3 --turns 7

Both sides have the same weights, requests and threads, and generate the same tokens.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig

from quire.build.engine import BuiltEngine, build_engine, prepare
from quire.core.request import Request
from quire.options.run import RunOptions
from quire.plan.settings import Budget, Settings
from quire.worker.model.model import build

LAYERS, HIDDEN, VOCABULARY = 12, 768, 8192
ROWS, PROMPT, OUTPUTS = 16, 128, 48


def make_checkpoint(folder: Path) -> None:
    config = LlamaConfig(
        hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=12, num_key_value_heads=4,
        intermediate_size=4 * HIDDEN, vocab_size=VOCABULARY,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        build(config, torch.float32).save_pretrained(folder)
    Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w0")).save(
        str(folder / "tokenizer.json")
    )


def open_engine(folder: Path, stages: int, overlap: int) -> BuiltEngine:
    settings = Settings(
        max_length=PROMPT + OUTPUTS, max_requests=ROWS, batch_tokens=ROWS * PROMPT, pipeline_parallel=stages
    )
    options = RunOptions(device="cpu", threads=1, overlap=overlap)
    return build_engine(prepare(folder, options, settings=settings, budget=Budget(pool_bytes=512 << 20)))


def seconds_of(built: BuiltEngine, turn: int) -> tuple[float, list[list[int]]]:
    """For all tokens of requests that decode at once, and the tokens."""
    random = np.random.default_rng(turn)
    prompts = random.integers(1, VOCABULARY, (ROWS, PROMPT)).astype(np.int32)
    begin = time.perf_counter()
    streams = [built.engine.submit(Request(f"{turn}.{row}", prompts[row], OUTPUTS)) for row in range(ROWS)]
    built.engine.drain()
    return time.perf_counter() - begin, [stream.tokens().tolist() for stream in streams]


def serve(folder: Path, stages: int, overlap: int, ours: Connection) -> None:
    """One side, in a process of its own: a model on stages needs one. Answers each turn until there are no more."""
    built = open_engine(folder, stages, overlap)
    try:
        while (turn := ours.recv()) is not None:
            ours.send(seconds_of(built, turn))
    finally:
        built.close()


@contextmanager
def side(folder: Path, stages: int, overlap: int) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(folder, stages, overlap, theirs))
    process.start()
    try:
        yield ours
    finally:
        ours.send(None)
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    found: dict[str, list[float]] = {"one step at a time": [], "a step for each stage": []}
    with tempfile.TemporaryDirectory() as name, ExitStack() as open_sides:
        folder = Path(name)
        make_checkpoint(folder)
        sides = [open_sides.enter_context(side(folder, options.stages, overlap)) for overlap in (1, 2)]
        for turn in range(options.turns + 1):  # the first one warms up
            tokens = []
            for times, one in zip(found.values(), sides, strict=True):
                one.send(turn)
                seconds, own = one.recv()
                tokens.append(own)
                times += [seconds] if turn else []
            assert tokens[0] == tokens[1], "both generate the same tokens"
    for name, times in found.items():
        rate = ROWS * OUTPUTS / statistics.median(times)
        print(f"{name:24} {statistics.median(times):7.2f} s   {rate:7.0f} tokens/s")
    ratios = [one / other for one, other in zip(*found.values(), strict=True)]
    print(f"{options.stages} stages, {options.turns} turns: {statistics.median(ratios):.2f} times as fast "
          f"({min(ratios):.2f} to {max(ratios):.2f})")  # fmt: skip


if __name__ == "__main__":
    main()
